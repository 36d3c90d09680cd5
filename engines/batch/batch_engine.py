"""The part of an engine that all engines share: one loaded model, stepped in place, and its groups under way.

Rules
1. A step to another version changes the folder on disk first, then the loaded model, by the same list of changes. If
   the second part fails, the loaded model is dropped: the folder on disk is whole, and is loaded again.
2. A load that fails leaves nothing loaded. Without a loaded model, every call but `load`, `cancel` and `rows` raises
   EngineError.
3. Weights that are damaged are told from weights that are whole and do not fit the model, or the program that computes
   (`UnfitSnapshot`): another copy of the same weights would not fit either.
4. A job is checked against the loaded model before it is queued.
5. A load tells of its progress (`on_progress`) as it reads the weights: a parent can tell slow from hung.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from echo2.engines.batch.job_rollouts import JobRollouts
from echo2.engines.batch.stepped_weights import SteppedWeights
from echo2.engines.engine import EngineError, EngineRows, Finished, Job, Loaded, SampledTurn
from echo2.weights.diff import Change
from echo2.weights.errors import BadSnapshot, UnfitSnapshot


class GroupBatch(Protocol):
    """Groups that are generated together, as of engines.engine.Engine: engines.batch.continuous_batch, for one."""

    @property
    def rows(self) -> EngineRows:
        """See `Engine.rows`."""

    def begin(self, ticket: int, job: Job) -> None:
        """See `Engine.begin`."""

    def cancel(self, ticket: int) -> None:
        """See `Engine.cancel`."""

    def turns(self) -> list[SampledTurn]:
        """See `Engine.turns`."""

    def answer(self, served: bytes, sample: int, turn_number: int, given: Sequence[int] | None) -> None:
        """See `Engine.answer`."""

    @property
    def idle(self) -> bool:
        """See `Engine.idle`."""

    def step(self) -> list[Finished]:
        """See `Engine.step`."""


class LiveModel(Protocol):
    """A model in an engine's memory. `weights`: the files that it was loaded from."""

    @property
    def weights(self) -> SteppedWeights: ...

    @property
    def rollouts(self) -> JobRollouts: ...

    @property
    def batch(self) -> GroupBatch: ...

    def describe_loaded(self) -> Loaded:
        """Return what is loaded now."""

    def apply(self, changes: Iterable[Change]) -> None:
        """Write a step's changes into the memory; `weights` is at its target already."""

    def close(self) -> None:
        """Free the memory."""


M = TypeVar("M", bound=LiveModel)


class BatchEngine(ABC, Generic[M]):
    """`engines.engine.Engine` but for `score`, over the model that a subclass builds."""

    def __init__(self) -> None:
        self._live: M | None = None
        self.on_progress: Callable[[], None] = lambda: None

    @abstractmethod
    def build(self, model: Path, weights: SteppedWeights) -> M:
        """Build the model of a folder with these weights. Raises EngineError, weights.errors.BadSnapshot."""

    def load(self, model: Path, weights: Path) -> Loaded:
        """See `Engine.load`. Raises EngineError (folder, device), weights.errors.BadSnapshot, UnfitSnapshot (rule 3),
        StoreCorrupt."""
        live, self._live = self._live, None
        if live is not None:
            live.close()
        del live  # two models at once may not fit
        stepped = SteppedWeights(weights, self.on_progress)
        try:
            self._live = self.build(model, stepped)
        except BadSnapshot as error:
            raise UnfitSnapshot(str(error)) from error
        return self._live.describe_loaded()

    def step_by(self, payload: Path, root: bytes, keep: int) -> Loaded:
        """See `Engine.step_by`."""
        return self._apply(self._live_model().weights.step_by(payload, root, keep))

    def step_to(self, root: bytes) -> Loaded:
        """See `Engine.step_to`."""
        for changes in self._live_model().weights.step_to(root):
            self._apply(changes)
        return self._live_model().describe_loaded()

    def begin(self, ticket: int, job: Job) -> None:
        """See `Engine.begin`."""
        live = self._live_model()
        live.rollouts.check(job)
        live.batch.begin(ticket, job)

    def cancel(self, ticket: int) -> None:
        """See `Engine.cancel`."""
        if self._live is not None:
            self._live.batch.cancel(ticket)

    def turns(self) -> list[SampledTurn]:
        """See `Engine.turns`."""
        return self._live.batch.turns() if self._live is not None else []

    def answer(self, served: bytes, sample: int, turn_number: int, given: Sequence[int] | None) -> None:
        """See `Engine.answer`. Raises EngineError for tokens that cannot be fed."""
        live = self._live_model()
        live.rollouts.check_given(given)
        live.batch.answer(served, sample, turn_number, given)

    @property
    def idle(self) -> bool:
        """See `Engine.idle`."""
        return self._live is None or self._live.batch.idle

    def step(self) -> list[Finished]:
        """See `Engine.step`."""
        return self._live_model().batch.step()

    @property
    def rows(self) -> EngineRows:
        """See `Engine.rows`."""
        return self._live.batch.rows if self._live is not None else EngineRows()

    def _live_model(self) -> M:
        if self._live is None:
            raise EngineError("no weights are loaded: call load first")
        return self._live

    def _apply(self, changes: Iterable[Change]) -> Loaded:
        live, self._live = self._live_model(), None
        try:
            live.apply(changes)
        except BaseException:
            live.close()
            raise
        self._live = live
        return live.describe_loaded()
