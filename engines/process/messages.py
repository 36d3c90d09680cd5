"""The calls of an engine's process, parent -> child. Each call is one class: its name on the pipe, fields, type of
answer, and `run`, which calls the engine. A new class here needs no other code: `engines.process.process` and
`engines.process.host` handle all calls alike. `DEFERRED_CALLS` are answered later: groups are generated together, in
steps, and scored together, in passes; a caller that is cancelled takes its group back. `VERSION_CALLS` wait until the
groups begun before are done.

    inventory      InventoryCall     -> Inventory           needs no probe
    probe          ProbeCall         -> Probed              first: picks engine and device
    duty           DutyCall          -> None                the share of the time that it computes
    load           LoadCall          -> Loaded
    step_by        StepByCall        -> Loaded
    step_to        StepToCall        -> Loaded
    rate           RateCall          -> Rate
    generate       GenerateCall      -> list[Sample]
    score          ScoreCall         -> list[PackedScore]

    answer         AnswerCall        -> None

Notifications, child -> parent: "rows", with EngineRows, whenever places become free or full, a group begins or ends,
and the limit changes, and every 30 s while groups are generated or weights read; "sampled", with SampledTurn, at each
end of a sampled turn of a served group, which goes on by "answer".

Errors return as runtime.child.ChildError, except a full disk (DiskFull). `kind` is the name of a class of
engines.engine, engines.devices.devices, engines.registry, weights.errors or tasks. Paths are absolute.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from echo2.engines.engine import Dtype, Engine, GroupToScore, Job, Loaded, Sample, SampleScore
from echo2.engines.rate import Rate, Workload, measure

A = TypeVar("A")


class InventoryCall(msgspec.Struct, frozen=True, kw_only=True):
    """`engine`: a name of engines.registry, whose devices are listed."""

    engine: str


class ProbeCall(msgspec.Struct, frozen=True, kw_only=True):
    """`engine`: a name of engines.registry, or auto. `device`: device as engines.devices.devices.choose takes it.
    `dtype`: the type that weights are computed with."""

    engine: str = "auto"
    device: str = "auto"
    dtype: Dtype = "float32"


class DutyCall(msgspec.Struct, frozen=True, kw_only=True):
    """`percent`: percent of the time in which steps of groups to generate are made."""

    percent: int


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """`kind`, `name`, `why`: the same as in engines.devices.devices.ComputeDevice. `engine_class`:
    "<engine>/<dtype>/<device kind>", for example transformers/float32/cpu: RunSpecs admit these, and each has a
    Calibration of its own. `dtypes`: the types that the engine computes in, in the order of `engines.engine.DTYPES`.
    `builds`: builds of the engine and of the libraries that it computes with."""

    kind: str
    name: str
    why: str
    engine_class: str
    dtypes: list[Dtype] = []
    builds: list[str] = []

    @property
    def hardware(self) -> str:
        """The hardware's name, as a greeting may carry it."""
        return self.name[:200] or self.kind

    def sentence(self) -> str:
        """Return one line for people: the device and engine that generate, and the reason for the choice."""
        return f"generating on {self.hardware} ({self.engine_class}): {self.why}"


class EngineCall(msgspec.Struct, Generic[A], frozen=True, kw_only=True):
    """One call. `method`: its name on the pipe. `answer`: the type A, as msgspec decodes it. `withdraw`: whether a
    caller that is cancelled takes it back. `changes_weights`: whether it changes the weights loaded, which it
    answers."""

    method: ClassVar[str]
    answer: ClassVar[Any]
    withdraw: ClassVar[bool] = False
    changes_weights: ClassVar[bool] = False

    def run(self, engine: Engine) -> A:
        """Run the call on `engine`, in the child; for calls that are answered at once."""
        raise NotImplementedError


class LoadCall(EngineCall[Loaded], frozen=True, kw_only=True):
    """`model`: folder of config.json and tokenizer.json. `weights`: snapshot, or folder of weights.logged_weights."""

    method: ClassVar[str] = "load"
    answer: ClassVar[Any] = Loaded
    changes_weights: ClassVar[bool] = True
    model: str
    weights: str

    def run(self, engine: Engine) -> Loaded:
        return engine.load(Path(self.model), Path(self.weights))


class StepByCall(EngineCall[Loaded], frozen=True, kw_only=True):
    """`payload`: file. `root`: content root that must result, 32 bytes. `keep`: number of steps that can then be
    undone, at least this one."""

    method: ClassVar[str] = "step_by"
    answer: ClassVar[Any] = Loaded
    changes_weights: ClassVar[bool] = True
    payload: str
    root: bytes
    keep: int = 0

    def run(self, engine: Engine) -> Loaded:
        return engine.step_by(Path(self.payload), self.root, self.keep)


class StepToCall(EngineCall[Loaded], frozen=True, kw_only=True):
    """`root`: content root within reach, 32 bytes."""

    method: ClassVar[str] = "step_to"
    answer: ClassVar[Any] = Loaded
    changes_weights: ClassVar[bool] = True
    root: bytes

    def run(self, engine: Engine) -> Loaded:
        return engine.step_to(self.root)


class RateCall(EngineCall[Rate], frozen=True, kw_only=True):
    """Measure the rate of generation while no group is under way. `model`: folder of tokenizer.json. `seconds`: seconds
    of the measurement."""

    method: ClassVar[str] = "rate"
    answer: ClassVar[Any] = Rate
    model: str
    workload: Workload
    seconds: float

    def run(self, engine: Engine) -> Rate:
        return measure(engine, self.workload.jobs(Path(self.model)), self.seconds, time.monotonic, time.process_time)


class AnswerCall(EngineCall[None], frozen=True, kw_only=True):
    """Give a row of a served group the environment's tokens after its sampled turn; None: the episode is over."""

    method: ClassVar[str] = "answer"
    answer: ClassVar[Any] = None
    served: bytes
    sample: int
    turn_number: int
    given: list[int] | None

    def run(self, engine: Engine) -> None:
        engine.answer(self.served, self.sample, self.turn_number, self.given)


class GenerateCall(EngineCall[list[Sample]], frozen=True, kw_only=True):
    method: ClassVar[str] = "generate"
    answer: ClassVar[Any] = list[Sample]
    withdraw: ClassVar[bool] = True
    job: Job


class PackedSample(msgspec.Struct, frozen=True, kw_only=True):
    """A `Sample` that the parent process passes on undecoded. `packed`: token ids as MessagePack. `logprobs`: float32
    little-endian."""

    packed: msgspec.Raw
    turns: list[int]
    logprobs: bytes

    def sample(self) -> Sample:
        """Return the sample with its values as Python's."""
        tokens = msgspec.msgpack.decode(self.packed, type=list[int])
        return Sample(tokens=tokens, turns=self.turns, logprobs=floats(self.logprobs).tolist())


class PackedScore(msgspec.Struct, frozen=True, kw_only=True):
    """A `SampleScore` whose values are float32 little-endian."""

    logprobs: bytes
    margins: bytes
    gaps: bytes = b""

    @classmethod
    def of(cls, score: SampleScore) -> Self:
        return cls(
            logprobs=float_bytes(score.logprobs), margins=float_bytes(score.margins), gaps=float_bytes(score.gaps)
        )

    def score(self) -> SampleScore:
        """Return the values as arrays."""
        return SampleScore(logprobs=floats(self.logprobs), margins=floats(self.margins), gaps=floats(self.gaps))


class ScoreCall(EngineCall[list[PackedScore]], frozen=True, kw_only=True):
    method: ClassVar[str] = "score"
    answer: ClassVar[Any] = list[PackedScore]
    withdraw: ClassVar[bool] = True
    job: Job
    samples: list[PackedSample]

    def group(self) -> GroupToScore:
        """Return the group with its values as Python's."""
        return GroupToScore(self.job, [one.sample() for one in self.samples])


CALLS: Final[tuple[type[EngineCall[Any]], ...]] = (LoadCall, StepByCall, StepToCall, RateCall, AnswerCall)
"""Calls that are answered at once."""
DEFERRED_CALLS: Final = (GenerateCall, ScoreCall)
"""Calls that are answered later (engines.process.host)."""
VERSION_CALLS: Final = tuple(call for call in CALLS if call.changes_weights)
ROWS_NOTICE: Final = "rows"
SAMPLED_NOTICE: Final = "sampled"
"""The notifications' names."""


def pack_samples(samples: Sequence[Sample]) -> list[PackedSample]:
    return [
        PackedSample(
            packed=msgspec.Raw(msgspec.msgpack.encode(one.tokens)), turns=one.turns, logprobs=float_bytes(one.logprobs)
        )
        for one in samples
    ]


def floats(data: bytes) -> NDArray[np.float32]:
    """Read float32 little-endian, as on the wire."""
    return np.frombuffer(data, "<f4")


def float_bytes(values: Sequence[float] | NDArray[np.float32]) -> bytes:
    """Write float32 little-endian, as on the wire."""
    return np.asarray(values, "<f4").tobytes()
