"""Measure the CPU seconds per point of groups of nine shapes, for each engine that is installed here, on one thread.

The operator's engine measures the Costs first, as `echo2-coord calibrate --costs` does. Then each engine generates all
shapes anew, by continuous batching at the number of rows that it finds best for itself. The same Costs weigh all.
"""

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from echo2.coordinator.calibration.cost_fit import SAMPLES, Factors, GroupShape, ShapeTime, costs_of, fit, shapes
from echo2.coordinator.calibration.cost_times import MOST_GROUPS, clock_of, shape_times
from echo2.engines.context import context_of
from echo2.engines.engine import Dtype
from echo2.engines.process.process import EngineProcess
from echo2.engines.registry import engine_row, installed_engines
from echo2.protocol.group_weights import Costs, whole_weight

OPERATORS: Final[tuple[str, Dtype]] = ("transformers", "float32")
OTHERS: Final[tuple[tuple[str, Dtype], ...]] = (
    ("transformers", "bfloat16"),
    ("llamacpp", "float32"),
    ("vllm", "float32"),
)
ENGINES: Final = tuple(dict(OTHERS))
APART: Final = {"server": "its time is spent in processes that are not this machine's to count"}
"""Engines that are never measured here, and why."""
LIMIT: Final = 96
BAR: Final = 2.0


class EngineTimes(NamedTuple):
    """The time per group of each shape, of one engine at its own number of rows."""

    name: str
    rows: int
    times: list[ShapeTime]


def claims(folder: Path, snapshot: Path, vocabulary: int, names: Collection[str] = ENGINES) -> list[Claim]:
    """Measure with a model folder and its snapshot, print tables, and return a claim per engine. `names`: of the
    engines that are measured beside the operator's."""
    wanted = shapes(context_of(folder), LIMIT)
    first = asyncio.run(_measured(folder, snapshot, *OPERATORS, wanted, vocabulary))
    factors = fit(first.times)
    costs = costs_of(factors, bytes(32), [], 0)
    engines = [OPERATORS, *(one for one in OTHERS if one[0] in names and one[0] in installed_engines())]
    all_times = [asyncio.run(_measured(folder, snapshot, *one, wanted, vocabulary)) for one in engines]
    _print(factors, costs, wanted, all_times)
    for sentence in not_measured():
        print(sentence)
    return [
        Claim(f"CPU per point, {one.name}", spread(costs, one), "its cheapest shape of nine", BAR, at_most=True)
        for one in all_times
    ]


def not_measured() -> list[str]:
    """Return a sentence per engine that is not measured here."""
    rows = [engine_row(engine) for engine in dict(OTHERS) if engine not in installed_engines()]
    lacks = [f"{row.name} is not measured: {', '.join(row.missing())} is not installed; {row.remedy()}" for row in rows]
    return [*lacks, *(f"{name} is not measured: {why}" for name, why in APART.items())]


async def _measured(
    folder: Path, snapshot: Path, engine: str, dtype: Dtype, wanted: Sequence[GroupShape], vocabulary: int
) -> EngineTimes:
    async with EngineProcess(name=f"{engine} {dtype}") as process:
        await process.probe("cpu", dtype, engine=engine)
        await process.load(folder, snapshot)
        times = await shape_times(process, wanted, clock_of(process, "cpu"), vocabulary)
        return EngineTimes(f"{engine} {dtype}", min(process.rows.limit, MOST_GROUPS * SAMPLES), times)


def spread(costs: Costs | None, one: EngineTimes) -> float:
    """Return the greatest CPU time per point of an engine's shapes, by the least; without Costs under their points."""
    rates = [_per_point(costs, time) for time in one.times]
    return max(rates) / min(rates)


def _per_point(costs: Costs | None, time: ShapeTime) -> float:
    """Return CPU seconds per RE."""
    return 1000 * time.seconds / whole_weight(costs, time.shape.prompt, [[time.shape.completion]] * SAMPLES)


def _print(factors: Factors, costs: Costs, wanted: Sequence[GroupShape], engines: Sequence[EngineTimes]) -> None:
    print(f"Costs, by {OPERATORS[0]} {OPERATORS[1]}: {factors.sentence()}")
    columns = ["prompt + completion, groups of 8", *(f"{one.name}, {one.rows} rows" for one in engines)]
    rows: list[Sequence[Any]] = []
    for number, shape in enumerate(wanted):
        each = [f"{_per_point(costs, one.times[number]):.4f}" for one in engines]
        rows.append((f"{shape.prompt} + {shape.completion}", *each))
    rows.append(("greatest by least", *(f"{spread(costs, one):.2f}" for one in engines)))
    rows.append(("the same without Costs", *(f"{spread(None, one):.1f}" for one in engines)))
    bench.table(columns, rows)
    means = [sum(time.seconds for time in one.times) for one in engines]
    print(f"CPU seconds per RE; between engines, over all shapes: {max(means) / min(means):.2f}, no bar")
