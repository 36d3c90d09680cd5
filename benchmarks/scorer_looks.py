"""Measure the scorer's cost of checking a group: a fabricated group against an honest one.

The scorer checks one sample of a group first. In a fabricated group that sample is proof, and the check ends. An honest
group is checked in one pass, and also in two: that sample, then the others. The cost is CPU time of the engine's own
passes over groups that it generated; a fabricated group has random tokens of the same lengths.

Bar for a fabricated group, as a share of an honest one of as many tokens: 0.15 for 16 samples whose prompt is no longer
than a completion, else 1.2 (P + C) / (P + G C). P, C: tokens of the prompt and of a completion. G: samples.
"""

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from benchmarks.harness import bench
from benchmarks.plays.direct import generate
from echo2.coordinator.verification.submitted_group import ClaimedRollout, UnreadRollout
from echo2.coordinator.verification.verification import EXACT_THRESHOLDS, find_fault, judge
from echo2.engines.engine import Job, Sample, SampleScore
from echo2.engines.process.messages import pack_samples
from echo2.protocol.leases import Segment

TURNS: Final = 5
FIRST: Final = 3
"""The sample that is checked first."""


class Shape(NamedTuple):
    """The size of a group: tokens of the prompt and of each completion, and samples."""

    prompt: int
    completion: int
    samples: int

    @property
    def name(self) -> str:
        return f"{self.samples} x ({self.prompt} + {self.completion})"

    @property
    def bar(self) -> float:
        if self.samples == 16 and self.prompt <= self.completion:
            return 0.15
        return 1.2 * (self.prompt + self.completion) / (self.prompt + self.samples * self.completion)


SHAPES: Final = (Shape(64, 64, 16), Shape(32, 128, 16), Shape(128, 32, 16), Shape(64, 64, 8), Shape(256, 64, 4))


class ShapeCost(NamedTuple):
    """Result of one shape. `whole`: CPU seconds of an honest group in one pass. `made_up`, `two`: cost of a fabricated
    group, and of an honest one in two passes, as shares of `whole`. `apart`: largest difference of a log-probability
    between one pass and two. `margin`: largest margin, in nats."""

    shape: Shape
    whole: float
    made_up: float
    two: float
    apart: float
    margin: float


def claims(engine: Any, eos: int) -> list[bench.Claim]:
    """Measure an engine that holds weights, print the table, and return the claims. `eos`: id of the token that ends a
    turn."""
    measured = [_measured(engine, shape, eos, number) for number, shape in enumerate(SHAPES)]
    bench.table(
        ("group", "CPU s, whole", "made up", "bar", "honest, in two passes"),
        [(one.shape.name, one.whole, one.made_up, one.shape.bar, one.two) for one in measured],
    )
    apart, margin = max(one.apart for one in measured), max(one.margin for one in measured)
    print(f"one pass or two: log-probabilities apart by {apart:.2g} at most, margins {margin:.2g} at most\n")
    costs = [
        bench.Claim(f"a made-up group of {one.shape.name}", one.made_up, "an honest one", one.shape.bar, at_most=True)
        for one in measured
    ]
    change = apart / EXACT_THRESHOLDS.drift_most
    return [*costs, bench.Claim("what two passes change", change, "the drift allowed", 0.1, at_most=True)]


def _measured(engine: Any, shape: Shape, eos: int, seed: int) -> ShapeCost:
    job, others = _job(shape, eos, seed), [number for number in range(shape.samples) if number != FIRST]
    honest = generate(engine, job)
    forged = _made_up(honest, seed)

    def whole() -> list[SampleScore]:
        return _looked(engine, job, honest, *range(shape.samples))

    def one() -> list[SampleScore]:
        return _looked(engine, job, forged, FIRST)

    def two() -> list[SampleScore]:
        first, rest = _looked(engine, job, honest, FIRST), _looked(engine, job, honest, *others)
        return [*rest[:FIRST], *first, *rest[FIRST:]]

    _check(honest, two(), forged, *one())
    pairs = list(zip(whole(), two(), strict=True))
    ways = {"whole": whole, "made up": one, "two": two}
    costs = bench.take_turns({name: bench.timed(partial(_done, work)) for name, work in ways.items()}, TURNS)
    return ShapeCost(
        shape,
        min(one.cpu for one in costs["whole"]),
        _share(costs["made up"], costs["whole"]),
        _share(costs["two"], costs["whole"]),
        max(float(np.abs(np.subtract(a.logprobs, b.logprobs)).max()) for a, b in pairs),
        max(float(max(*a.margins, *b.margins)) for a, b in pairs),
    )


def _done(work: Callable[[], object]) -> float:
    work()
    return 1.0


def _job(shape: Shape, eos: int, seed: int) -> Job:
    rng = np.random.default_rng(seed)
    return Job(
        prompt=rng.integers(2, 100, shape.prompt).tolist(),
        seeds=[rng.bytes(16) for _ in range(shape.samples)],
        limit=shape.completion,
        eos=eos,
        task="reverse",
        task_version=1,
        split="train",
        index=seed,
    )


def _made_up(honest: Sequence[Sample], seed: int) -> list[Sample]:
    rng = np.random.default_rng(seed)
    return [
        Sample(tokens=rng.integers(2, 1000, len(one.tokens)).tolist(), turns=one.turns, logprobs=one.logprobs)
        for one in honest
    ]


def _looked(engine: Any, job: Job, samples: Sequence[Sample], *numbers: int) -> list[SampleScore]:
    part = msgspec.structs.replace(job, seeds=[job.seeds[number] for number in numbers])
    scores: list[SampleScore] = engine.score(part, [samples[number] for number in numbers])
    return scores


def _check(
    honest: Sequence[Sample], scores: Sequence[SampleScore], forged: Sequence[Sample], first: SampleScore
) -> None:
    """Assert that the honest group is accepted, and that one sample suffices to refuse the fabricated one."""
    assert judge(_claimed(honest), scores).accepted
    looked = [first if number == FIRST else None for number in range(len(forged))]
    fault = find_fault(_claimed(forged), looked, other_version_possible=False)
    assert fault is not None
    assert fault.code == "not-generated"


def _claimed(samples: Sequence[Sample]) -> list[ClaimedRollout]:
    segments = [Segment(version=0, root=bytes(32), first=0)]
    return [
        ClaimedRollout(UnreadRollout(tokens=one.packed, turns=one.turns, logprobs=one.logprobs, segments=segments))
        for one in pack_samples(samples)
    ]


def _share(one: Sequence[bench.Measured], whole: Sequence[bench.Measured]) -> float:
    return statistics.median(a.cpu / b.cpu for a, b in zip(one, whole, strict=True))
