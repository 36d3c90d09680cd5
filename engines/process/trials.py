"""Try candidates, each in a child process of its own: what it sees, and its rate with a run's model.

Rules
1. A candidate that crashes, hangs or is refused loses itself alone: its process is killed, and its fault is a sentence.
2. One candidate runs at a time: two would share a device or the CPU.
3. A candidate is given up after `TRIAL_SECONDS` without a sign of progress: a load tells of it as it reads the weights.
   None begins after `ALL_TRIALS_SECONDS`; those that are left were not timed, and say so.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from echo2.engines import registry
from echo2.engines.devices.devices import Inventory, cpu_name
from echo2.engines.engine import EngineRows
from echo2.engines.process.candidates import Candidate, Sight, Trial
from echo2.engines.process.process import EngineProcess
from echo2.engines.rate import Workload
from echo2.engines.registry import EngineRow
from echo2.runtime.child import ChildDied, ChildError

MEASURED_SECONDS: Final = 5.0
"""Seconds that are measured."""
TRIAL_SECONDS: Final = 120.0
ALL_TRIALS_SECONDS: Final = 300.0
DEVICE_LIST_SECONDS: Final = 60.0
"""Seconds for an engine to list its devices."""

Make = Callable[[], EngineProcess]
_FAULTS: Final = (ChildDied, ChildError, OSError, TimeoutError)
"""A candidate's faults: crash, refusal, a process that cannot be started, a hang."""


async def sights(make: Make, engines: Sequence[str], *, alone: bool = False) -> list[Sight]:
    """Return what each engine of these names that is installed here sees. `alone`: the machine has no GPU, so that none
    need be asked."""
    rows = [registry.choose(name) for name in engines if name in registry.installed_engines()]
    if alone:
        return [_of(row, Inventory(cpu=cpu_name())) for row in rows]
    return [await _sight(make, row) for row in rows]


def _of(row: EngineRow, inventory: Inventory, fault: str = "") -> Sight:
    return Sight(engine=row.name, devices=row.devices, dtypes=row.dtypes, inventory=inventory, fault=fault)


async def _sight(make: Make, row: EngineRow) -> Sight:
    inventory, fault = Inventory(cpu=""), ""
    try:
        async with _process(make, DEVICE_LIST_SECONDS) as process:
            inventory = await process.inventory(row.name)
    except _FAULTS as error:
        fault = _fault_text(error, DEVICE_LIST_SECONDS)
    return _of(row, inventory, fault)


async def run_trials(
    make: Make, candidates: Sequence[Candidate], model: Path, weights: Path, workload: Workload, *, every: bool = False
) -> list[Trial]:
    """Return the trial of each candidate, in order. `weights`: a snapshot, or a folder of weights.logged_weights, which
    nobody steps meanwhile. `every`: time the CPU even if a GPU works."""
    until, trials = time.monotonic() + ALL_TRIALS_SECONDS, list[Trial]()
    for one in candidates:
        left = until - time.monotonic()
        if one.kind == "cpu" and not every and _gpu_works(trials):
            trials.append(Trial(candidate=one, fault="not timed: a GPU works"))
        elif left < 2 * MEASURED_SECONDS:
            trials.append(Trial(candidate=one, fault=f"not timed: the others took {ALL_TRIALS_SECONDS:g} s"))
        else:
            trials.append(await _trial(make, one, model, weights, workload, min(TRIAL_SECONDS, left)))
    return trials


def _gpu_works(trials: Sequence[Trial]) -> bool:
    return any(trial.rate is not None and trial.candidate.kind != "cpu" for trial in trials)


async def _trial(make: Make, one: Candidate, model: Path, weights: Path, workload: Workload, patience: float) -> Trial:
    try:
        async with _process(make, patience) as process:
            await process.probe(one.device, one.dtype, engine=one.engine)
            await process.load(model, weights)
            rate = await process.rate(model, workload, MEASURED_SECONDS)
    except _FAULTS as error:
        return Trial(candidate=one, fault=_fault_text(error, patience))
    if not rate.tokens:
        return Trial(candidate=one, fault=f"no token within {MEASURED_SECONDS:g} s")
    return Trial(candidate=one, rate=rate)


@asynccontextmanager
async def _process(make: Make, patience: float) -> AsyncIterator[EngineProcess]:
    """Start a process, and kill it at the end of the block. Raises TimeoutError after `patience` seconds without a sign
    of progress."""
    process, loop = make(), asyncio.get_running_loop()
    async with asyncio.timeout(patience) as limit:

        def progress(rows: EngineRows) -> None:
            if not limit.expired():
                limit.reschedule(loop.time() + patience)

        process.on_rows = progress
        await process.start()
        try:
            yield process
        finally:
            await process.stop(0.0)


def _fault_text(error: BaseException, patience: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {patience:.0f} s"
    if isinstance(error, ChildError):
        return error.message
    return str(error)
