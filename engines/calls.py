"""Calls of the engine child, parent -> child, and their answers where engines.engine does not name them.

    probe          ProbeCall         -> Probed              once, first: picks the device and makes the engine
    load           LoadCall          -> Loaded
    forward        ForwardCall       -> Loaded
    go             GoCall            -> Loaded
    generate       GenerateCall      -> list[Sample]
    generate_many  GenerateManyCall  -> list[list[Sample]]
    score          ScoreCall         -> list[PackedScore]

Errors but a full disk come back as engines.child.ChildError; its `kind` is the name of a class of engines.engine,
engines.devices, weights.errors or tasks. Paths are absolute.
"""

from collections.abc import Sequence
from typing import Literal, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from engines.engine import Job, Sample, SampleScore


class ProbeCall(msgspec.Struct, frozen=True, kw_only=True):
    """`device`: as engines.devices.choose takes it. `dtype`: what weights are computed with."""

    device: str = "auto"
    dtype: Literal["float32", "bfloat16"] = "float32"


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """`kind`, `name`, `why`: as in engines.devices.Device. `engine_class`: "<engine>/<dtype>/<device kind>",
    for example transformers/float32/cpu: what a RunSpec admits and a Calibration is published for."""

    kind: str
    name: str
    why: str
    engine_class: str


class LoadCall(msgspec.Struct, frozen=True, kw_only=True):
    """`model`: folder of config.json and tokenizer.json. `weights`: snapshot file, or folder of weights.rolling."""

    model: str
    weights: str


class ForwardCall(msgspec.Struct, frozen=True, kw_only=True):
    """`payload`: file. `root`: content root that must come out, 32 bytes. `keep`: steps that can then be undone."""

    payload: str
    root: bytes
    keep: int = 0


class GoCall(msgspec.Struct, frozen=True, kw_only=True):
    """`root`: content root within reach, 32 bytes."""

    root: bytes


class GenerateCall(msgspec.Struct, frozen=True, kw_only=True):
    job: Job


class GenerateManyCall(msgspec.Struct, frozen=True, kw_only=True):
    jobs: list[Job]
    greedy: bool = False


class PackedSample(msgspec.Struct, frozen=True, kw_only=True):
    """A `Sample` whose parent need not read it. `packed`: token ids as MessagePack. `logprobs`: float32
    little-endian."""

    packed: msgspec.Raw
    turns: list[int]
    logprobs: bytes

    def sample(self) -> Sample:
        """The sample with its values as Python's."""
        tokens = msgspec.msgpack.decode(self.packed, type=list[int])
        return Sample(tokens=tokens, turns=self.turns, logprobs=floats(self.logprobs).tolist())


class PackedScore(msgspec.Struct, frozen=True, kw_only=True):
    """A `SampleScore` whose values are float32 little-endian."""

    logprobs: bytes
    margins: bytes

    @classmethod
    def of(cls, score: SampleScore) -> Self:
        """Pack the values."""
        return cls(logprobs=float_bytes(score.logprobs), margins=float_bytes(score.margins))

    def score(self) -> SampleScore:
        """The values as arrays."""
        return SampleScore(logprobs=floats(self.logprobs), margins=floats(self.margins))


class ScoreCall(msgspec.Struct, frozen=True, kw_only=True):
    job: Job
    samples: list[PackedSample]


def packed(samples: Sequence[Sample]) -> list[PackedSample]:
    """Pack samples for the pipe."""
    return [
        PackedSample(
            packed=msgspec.Raw(msgspec.msgpack.encode(one.tokens)), turns=one.turns, logprobs=float_bytes(one.logprobs)
        )
        for one in samples
    ]


def floats(data: bytes) -> NDArray[np.float32]:
    """float32 little-endian, as on the wire."""
    return np.frombuffer(data, "<f4")


def float_bytes(values: Sequence[float] | NDArray[np.float32]) -> bytes:
    """The other way round."""
    return np.asarray(values, "<f4").tobytes()
