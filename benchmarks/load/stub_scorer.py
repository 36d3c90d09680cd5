"""The scorer's process with an engine that confirms every node's claims: `scorer=benchmarks.load.stub_scorer`
(runtime/stand_ins.py).

Pipe, frames and types are the product's own (engines/process/host.py), and so is their cost for the coordinator.
Versions are stepped in place as by a real engine. Only the teacher-forced pass is left out.
"""

from collections.abc import Sequence
from pathlib import Path

from echo2.engines.engine import EngineRows, Finished, Job, Loaded, Sample, SampledTurn, SampleScore
from echo2.engines.process import host
from echo2.engines.process.messages import ProbeCall, Probed
from echo2.weights.journaled import Rolling
from echo2.weights.snapshot import Snapshot


class StubEngine:
    """`engines.engine.Engine` without a model. None of its turns waits for an answer."""

    idle = False

    def __init__(self) -> None:
        self._rolling: Rolling | None = None
        self._root = bytes(32)
        self._begun: dict[int, Finished] = {}

    def turns(self) -> list[SampledTurn]:
        return []

    def answer(self, served: bytes, sample: int, turn_number: int, given: Sequence[int] | None) -> None:
        """Do nothing: no row waits."""

    def load(self, model: Path, weights: Path) -> Loaded:
        self._rolling = Rolling(weights) if weights.is_dir() else None
        self._root = self._rolling.root if self._rolling else Snapshot(weights).root
        return self._loaded()

    def step_by(self, payload: Path, root: bytes, keep: int) -> Loaded:
        rolling = self._folder()
        rolling.apply(payload, root, keep=keep)
        return self._loaded()

    def step_to(self, root: bytes) -> Loaded:
        rolling = self._folder()
        while rolling.root != root:
            if root in rolling.behind():
                rolling.back()
            else:
                rolling.redo()
        return self._loaded()

    def begin(self, ticket: int, job: Job) -> None:
        samples = [Sample(tokens=[job.eos], turns=[1], logprobs=[-0.5]) for _ in job.seeds]
        self._begun[ticket] = Finished(ticket, samples)

    def cancel(self, ticket: int) -> None:
        self._begun.pop(ticket, None)

    def step(self) -> list[Finished]:
        finished, self._begun = list(self._begun.values()), {}
        return finished

    @property
    def rows(self) -> EngineRows:
        return EngineRows(limit=1024)

    def score(self, job: Job, samples: list[Sample]) -> list[SampleScore]:
        return [SampleScore(logprobs=one.logprobs, margins=[0.0] * len(one.logprobs)) for one in samples]

    def _folder(self) -> Rolling:
        assert self._rolling is not None, "step_by and step_to come after load"
        return self._rolling

    def _loaded(self) -> Loaded:
        behind, ahead = (self._rolling.behind(), self._rolling.ahead()) if self._rolling else ([], [])
        root = self._rolling.root if self._rolling else self._root
        return Loaded(root=root, parameters=1, nbytes=1, behind=behind, ahead=ahead)


class StubHost(host.EngineHost):
    """The engine host, with the stub engine."""

    def probe(self, call: ProbeCall) -> Probed:
        self._engine = StubEngine()
        return Probed(kind="cpu", name="none", why="a stub", engine_class="stub/float32/cpu")


def main() -> None:
    """Serve the engine's calls until the daemon ends."""
    host.main(StubHost)
