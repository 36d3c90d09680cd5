"""The engine protocol: load a snapshot, apply diffs, generate groups, score groups.

Rules
1. All calls are blocking; an engine lives in a child process (engines.process.process) and never in a daemon's main
   process.
2. Groups are generated together, in steps: `begin` queues a group, each `step` takes every row one token further, and
   returns the groups that ended. A row is one rollout. (engines.batch.continuous_batch does this for any engine that
   can compute one token for many rows.)
3. `load`, `step_by` and `step_to` are called only while no group is under way.
4. A group's tokens depend on its job and the loaded weights alone, not on what is generated beside it, but for choices
   that are equal to within the margin of the engine's class.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from echo2.engines.temperature import PLAIN_TEMPERATURE
from echo2.runtime.errors import LocalFault
from echo2.tasks.turn_ends import Ends

Dtype = Literal["float32", "float16", "bfloat16", "blocks"]
"""The type that weights are computed with. "blocks": a quantised base (weights.lora.frozen_base) is computed with as it
is stored, with activations in 8 bits, as far as the engine does so."""
DTYPES: Final[tuple[Dtype, ...]] = get_args(Dtype)
GAP_MOST = 1.0
"""Nats. A runner-up further behind the seeded choice counts as this far behind."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One group to generate: the engine's view of a lease.

    `prompt`: token ids. `seeds`: 16 bytes per sample, in order. `limit`: most sampled tokens per rollout. `eos`: the id
    that ends a turn. `other_ends`: further ones that do. `task`, `task_version`, `split`, `index`: the episode, for the
    tokens that the environment gives.
    `single_turn`: the episode is over after one sampled turn, and no task's code is asked. `served`: a name, by which
    each sampled turn is told and answered (`Engine.turns`, `Engine.answer`), and no task's code is asked; empty: not
    so. `opened`: of a served group: the environment's tokens come before the first sampled one, so each rollout begins
    with a turn of no tokens that is told and answered. `past`: what each sample has so far, of a served group that is
    taken up again; empty: nothing.
    `temperature`: thousandths, of the choice of tokens and of their log-probabilities (engines.temperature).
    Sampling is without top-p or top-k, with the noise of engines.sampling.sampling. `greedy`: the most likely token
    instead, no noise and no temperature; the seeds then only say how many samples.
    `tf32`: whether its samples may be scored in TF32, where the device has it: they are of a 16-bit class, whose own
    rounding is coarser. Generating takes no notice of it.
    """

    prompt: list[int]
    seeds: list[bytes]
    limit: int
    eos: int
    task: str
    task_version: int
    split: str
    index: int
    temperature: int = PLAIN_TEMPERATURE
    greedy: bool = False
    single_turn: bool = False
    served: bytes = b""
    opened: bool = False
    past: list["Sample"] = []
    other_ends: tuple[int, ...] = ()
    tf32: bool = False

    @property
    def ends(self) -> Ends:
        """All tokens that end a turn."""
        return (self.eos, *self.other_ends)

    @property
    def applied_temperature(self) -> int:
        """Temperature that its logits are brought to."""
        return PLAIN_TEMPERATURE if self.greedy else self.temperature


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout. `tokens` and `turns` as in tasks.task.Transcript; `logprobs`: one float32 for each *sampled*
    token, in order: log softmax(logits) of the token at the job's temperature, never above 0."""

    tokens: list[int]
    turns: list[int]
    logprobs: list[float]


class SampledTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A sampled turn of a served group that waits for its answer. `served`: the job's name for it. `sample`: number of
    the sample. `turn_number`: turn number of the turn, given ones counted. `tokens`, `logprobs`: tokens and logprobs of
    this turn."""

    served: bytes
    sample: int
    turn_number: int
    tokens: list[int]
    logprobs: list[float]


class SampleScore(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a teacher-forced pass over one sample: one value per sampled token.

    `logprobs`: logprobs under the scorer's weights: the behaviour log-probabilities. `margins`: margins by how many
    nats the seeded choice (argmax of logits + noise) beats the submitted token; 0.0 where both are the same token.
    `gaps`: gaps by how many nats, at most `GAP_MOST`, the seeded choice beats its runner-up; empty: the engine does not
    tell. An engine returns lists; values from a pipe (engines.process.messages.PackedScore) are arrays of float32.
    """

    logprobs: list[float] | NDArray[np.float32]
    margins: list[float] | NDArray[np.float32]
    gaps: list[float] | NDArray[np.float32] = []


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """The weights that an engine has loaded: content root of the weights, parameters (count), and bytes of memory they
    take. `behind`: content roots that `step_to` reaches by undoing steps; `ahead`: by redoing them. The nearest comes
    first."""

    root: bytes
    parameters: int
    nbytes: int
    behind: list[bytes] = []
    ahead: list[bytes] = []


class EngineRows(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of an engine. `running`: those that each step takes further. `waiting`: those of groups begun that have
    no place yet. `limit`: the most that it runs at once now; it changes as the engine measures
    (engines.batch.row_limit). `parked`: those of served groups that wait for an answer; they take part in no step, and
    their places are free."""

    running: int = 0
    waiting: int = 0
    limit: int = 0
    parked: int = 0

    @property
    def free(self) -> int:
        """The places for rows of further groups."""
        return max(0, self.limit - self.running - self.waiting)


class Finished(NamedTuple):
    """A group that ended. `ticket`: ticket as given to `begin`. `outcome`: its samples in the order of its seeds, or
    why there are none."""

    ticket: int
    outcome: list[Sample] | Exception


class EngineError(Exception):
    """The engine cannot continue: bad model folder, out of memory, wedged device. The message names the fix."""


class LogitsNotFinite(EngineError):
    """A group's logits are not finite: its outcome, while others go on."""

    def __init__(self) -> None:
        super().__init__(
            "the weights give logits that are not finite: either they are damaged, or this model leaves the range of "
            "the type in which this engine computes"
        )


class NoMemory(EngineError):
    """The device has no memory for a group, not even for one row of it: its outcome, while others go on. Or it has none
    for the model. Another program may have taken the memory for a moment."""


class EngineUnusable(LocalFault):
    """No engine can work on this machine as it is set up. The message names the fix."""


def dtype_named(name: str) -> Dtype | None:
    """Return the type of this name; None where this build computes in none of it."""
    return next((one for one in DTYPES if one == name), None)


class Engine(Protocol):
    """Generates and scores under exactly one version at a time."""

    def load(self, model: Path, weights: Path) -> Loaded:
        """Build the model of folder `model` (config.json, tokenizer.json) with `weights`: a snapshot file, or a folder
        of weights.logged_weights, in which a step that a kill interrupted is finished first. Raises weights.errors for
        invalid weights."""

    def step_by(self, payload: Path, root: bytes, keep: int) -> Loaded:
        """Apply an edge's payload to the loaded folder, in place; the result must have content root `root`. `keep`:
        number of steps that can then be undone, at least this one; steps undone before cannot be redone any more.
        Raises weights.errors when payload, base or resulting root is wrong; the old version then stays loaded."""

    def step_to(self, root: bytes) -> Loaded:
        """Undo or redo steps of the loaded folder, in place, until it is at content root `root`. Raises
        weights.errors.WrongBase if no kept step leads there."""

    def begin(self, ticket: int, job: Job) -> None:
        """Queue a group. `ticket`: names it, unique among those under way. Raises for a job that cannot be generated:
        nothing is queued then."""

    def cancel(self, ticket: int) -> None:
        """End a group without an outcome; nothing happens if there is none of this name."""

    def turns(self) -> list[SampledTurn]:
        """Return the turns of served groups that ended since the last call. Their rows have no place until they are
        answered; other rows go on."""

    def answer(self, served: bytes, sample: int, turn_number: int, given: Sequence[int] | None) -> None:
        """Give a row the environment's tokens after its sampled turn; None: the episode is over. Nothing happens where
        no row waits for this answer."""

    def step(self) -> list[Finished]:
        """Take every row one token further; return the groups that ended. The prompt of a group is computed once. An
        error that concerns one group is its outcome, and the others go on. Raises only where none can go on; all are
        then lost."""

    @property
    def idle(self) -> bool:
        """Whether a step would change nothing: all rows that are left wait for answers."""

    @property
    def rows(self) -> EngineRows:
        """Number of rows that run, and of those that may."""

    def score(self, job: Job, samples: list[Sample]) -> list[SampleScore]:
        """Score a group by a teacher-forced pass under the loaded version."""


class GroupToScore(NamedTuple):
    """A group with its samples, one per seed of the job."""

    job: Job
    samples: list[Sample]

    @property
    def tokens(self) -> int:
        """Return the tokens of the prompt and of all samples."""
        return len(self.job.prompt) + sum(len(sample.tokens) for sample in self.samples)


@runtime_checkable
class TellsProgress(Protocol):
    """An engine that tells of its progress while it loads. `on_progress`: called as it reads the weights."""

    on_progress: Callable[[], None]


@runtime_checkable
class ScoresTogether(Protocol):
    """An engine that scores several groups in one pass. Engines without this are given group after group."""

    @property
    def pass_tokens(self) -> int:
        """The tokens of prompts and samples from which a pass gains nothing by further groups."""

    def score_groups(self, groups: Sequence[GroupToScore]) -> list[list[SampleScore] | Exception]:
        """Score groups under the loaded version. The outcome of each is its scores, or its own error: no group's error
        takes part in that of another."""
