"""Measure what groups of several shapes cost an engine, and sign the Costs of a run: `echo2-coord calibrate --costs`.

Rules
1. An engine process on one thread first finds its own number of rows (engines/batch/row_limit.py), and takes the memory
   that the longest shape needs: a first prompt of that length takes up to seven times as long as the next one. Then it
   generates as many groups of one shape at once as fill these rows, at most `MOST_GROUPS`: `ROUNDS` times for each
   shape, or once if that took `SHAPE_SECONDS` seconds. The least time counts.
2. A round goes on, with further groups, until it took `ROUND_SECONDS` seconds: the system counts a process's time in
   steps of 10 ms, which is a tenth of the shortest shape's.
3. Time is the CPU time of the process on a CPU, and that of the clock on other devices. Memory cache and clock rate
   of a machine change little in the ratio of shapes, so one machine's Costs are those of all engines.
4. The weights are those of the newest version, as of a Calibration (calibrate.py). The tokens do not matter: each
   sample goes on to its full length.
5. The result is signed by the ledger's key and written to `calibrations/`. A running coordinator puts it in force
   within half a minute (coordinator/accounts/cost_tables.py).
"""

import asyncio
import hashlib
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import psutil

from echo2.coordinator.accounts.cost_tables import SUFFIX
from echo2.coordinator.calibration.calibrate import newest_weights, place_of
from echo2.coordinator.calibration.cost_fit import SAMPLES, Factors, GroupShape, ShapeTime, costs_of, fit, shapes
from echo2.coordinator.calibration.honest_groups import engine_process
from echo2.coordinator.run.setup import Run
from echo2.engines.context import context_of
from echo2.engines.engine import Job
from echo2.engines.process.process import EngineProcess
from echo2.engines.registry import ClassParts, parts_of
from echo2.ledger.costs_in_force import seal_costs
from echo2.protocol.engine_classes import admits
from echo2.runtime.child import ChildDied, ChildError
from echo2.runtime.errors import LocalFault
from echo2.runtime.files import writing

ROUNDS: Final = 2
MOST_GROUPS: Final = 8
SHAPE_SECONDS: Final = 2.0
ROUND_SECONDS: Final = 0.3
WARM_GROUPS: Final = 24
"""Groups by which the engine finds its number of rows."""
WARM_SHAPE: Final = GroupShape(16, 48)
NO_END: Final = (1 << 31) - 1
"""An end of turns that no vocabulary has: each sample reaches its full length."""


def calibrate_costs(run: Run, engine_class: str, now: int) -> tuple[Path, Factors]:
    """Measure by the engine of a class, and return the file written and what was fitted. `now`: ms. Raises
    `LocalFault`."""
    return asyncio.run(_calibrate(run, _measurable(run, engine_class), now))


def _measurable(run: Run, engine_class: str) -> ClassParts:
    """Return the parts of a class that this run admits and this machine can compute. Raises `LocalFault`."""
    wanted = parts_of(engine_class)
    if not admits(engine_class, admitted := run.runspec.engines):
        raise LocalFault(f"the run does not admit {engine_class}: its run.engines is {', '.join(admitted)}")
    return wanted


async def _calibrate(run: Run, wanted: ClassParts, now: int) -> tuple[Path, Factors]:
    with place_of(run.folder.calibrations) as place:
        weights = await newest_weights(run, place)
        try:
            async with engine_process(run, weights, wanted) as process:
                assert process.probed is not None
                builds = list(process.probed.builds)
                measured = shapes(context_of(run.folder.model), run.runspec.limit)
                times = await shape_times(process, measured, clock_of(process, wanted.device), run.runspec.vocabulary)
        except (ChildDied, ChildError) as error:
            raise LocalFault(f"cannot measure costs by {'/'.join(wanted)} here: {error}") from error
        factors = fit(times)
        path = place / f"{now}{SUFFIX}"
        with writing(path) as file:
            file.write(seal_costs(costs_of(factors, run.id, builds, now), run.keys.ledger))
    return path, factors


def clock_of(process: EngineProcess, device: str) -> Callable[[], float]:
    """Return the clock by which a process is measured, seconds (rule 3)."""
    if device != "cpu":
        return time.monotonic
    child = psutil.Process(process.pid)

    def spent() -> float:
        times = child.cpu_times()
        return float(times.user + times.system)

    return spent


async def shape_times(
    process: EngineProcess, measured: Sequence[GroupShape], clock: Callable[[], float], vocabulary: int
) -> list[ShapeTime]:
    """Return the time per group of each shape (rules 1 and 2). The process has weights loaded and is idle."""
    numbers = itertools.count()

    async def generate(shape: GroupShape, groups: int) -> None:
        await process.generate_all([group_of_shape(shape, next(numbers), vocabulary) for _ in range(groups)])

    async def seconds(shape: GroupShape, groups: int) -> float:
        began, rounds = clock(), 0
        while not rounds or clock() - began < ROUND_SECONDS:
            await generate(shape, groups)
            rounds += 1
        return (clock() - began) / (rounds * groups)

    await generate(WARM_SHAPE, WARM_GROUPS)
    groups = min(MOST_GROUPS, max(1, -(-process.rows.limit // SAMPLES)))
    await generate(max(measured, key=lambda shape: (shape.prompt, -shape.completion)), groups)
    times = []
    for shape in measured:
        spent = [await seconds(shape, groups)]
        while len(spent) < ROUNDS and sum(spent) * groups < SHAPE_SECONDS:
            spent.append(await seconds(shape, groups))
        times.append(ShapeTime(shape, max(1e-9, min(spent))))
    return times


def group_of_shape(shape: GroupShape, number: int, vocabulary: int) -> Job:
    """Return a group of a shape whose tokens no other group has."""
    drawn = hashlib.shake_128(b"costs %d" % number).digest(4 * shape.prompt + 16 * SAMPLES)
    seeds, words = drawn[: 16 * SAMPLES], drawn[16 * SAMPLES :]
    return Job(
        prompt=[int.from_bytes(words[at : at + 4]) % vocabulary for at in range(0, len(words), 4)],
        seeds=[seeds[at : at + 16] for at in range(0, len(seeds), 16)],
        limit=shape.completion, eos=NO_END, task="costs", task_version=1, split="train", index=number,
        single_turn=True,
    )  # fmt: skip
