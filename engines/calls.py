"""Calls of the engine child, parent -> child, and their answers where engines.engine does not name them.

    probe          ProbeCall         -> Probed              once, first: picks the device and makes the engine
    load           LoadCall          -> Loaded
    forward        ForwardCall       -> Loaded
    go             GoCall            -> Loaded
    generate       GenerateCall      -> list[Sample]
    generate_many  GenerateManyCall  -> list[list[Sample]]
    score          ScoreCall         -> list[SampleScore]

Errors but a full disk come back as engines.child.ChildError; its `kind` is the name of a class of engines.engine,
engines.devices, weights.errors or tasks. Paths are absolute.
"""

from typing import Literal

import msgspec

from engines.engine import Job, Sample


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


class ScoreCall(msgspec.Struct, frozen=True, kw_only=True):
    job: Job
    samples: list[Sample]
