"""Try candidates, each in a child process of its own: what it sees, and its rate with a run's model.

Rules
1. A candidate that crashes, hangs or is refused loses itself alone: its process is killed, and its fault is a sentence.
2. One candidate runs at a time: two would share a device or the CPU.
3. A candidate starts and loads as long as it gives signs of progress (`EngineHost`), with `SILENT_SECONDS` from each to
   the next, at most `START_SECONDS`: a cold vLLM compiles for minutes. It then gets `TRIAL_SECONDS` for warm-up and
   measurement.
4. Candidates that are taken without a race (engines/process/candidates.py, rule 5) come first; where one of them gives
   a rate, the rest is not timed. None of the others begins after `ALL_TRIALS_SECONDS`; those that are left were not
   timed, and say so.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from echo2.engines import registry
from echo2.engines.devices.devices import Inventory, cpu_name
from echo2.engines.process.candidates import Candidate, Sight, Trial, favourites, winner_over
from echo2.engines.process.process import EngineProcess
from echo2.engines.rate import Workload
from echo2.engines.registry import EngineRow
from echo2.runtime.child import ChildDied, ChildError

MEASURED_SECONDS: Final = 5.0
"""Seconds that are measured."""
SILENT_SECONDS: Final = 120.0
"""Seconds from one sign of a start to the next, after which it is hung."""
START_SECONDS: Final = 1800.0
"""Most seconds of a start that gives signs."""
LOOKS: Final = 20
"""Looks at a start within the time that it may be silent."""
TRIAL_SECONDS: Final = 60.0
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
        async with _process(make, row.name, DEVICE_LIST_SECONDS) as process:
            inventory = await process.inventory(row.name)
    except _FAULTS as error:
        fault = _fault_text(error, DEVICE_LIST_SECONDS)
    return _of(row, inventory, fault)


async def run_trials(
    make: Make, candidates: Sequence[Candidate], model: Path, weights: Path, workload: Workload, *, every: bool = False
) -> list[Trial]:
    """Return the trial of each candidate, in order. `weights`: a snapshot, or a folder of weights.logged_weights, which
    nobody steps meanwhile. `every`: time each, whatever another has shown."""
    first = [] if every else favourites(candidates)
    done: dict[Candidate, Trial] = {}
    for one in first:
        fault = _not_needed(one, list(done.values()), first)
        done[one] = Trial(candidate=one, fault=fault) if fault else await _trial(make, one, model, weights, workload)
    until = time.monotonic() + ALL_TRIALS_SECONDS
    for one in candidates:
        if one in done:
            continue
        fault = "" if every else _not_needed(one, list(done.values()), first)
        if not fault and until - time.monotonic() < 2 * MEASURED_SECONDS:
            fault = f"not timed: the others took {ALL_TRIALS_SECONDS:g} s"
        done[one] = Trial(candidate=one, fault=fault) if fault else await _trial(make, one, model, weights, workload)
    return [done[one] for one in candidates]


def _not_needed(one: Candidate, trials: Sequence[Trial], first: Sequence[Candidate]) -> str:
    """Return why a candidate need not be timed after these trials; empty: it must be. `first`: those of rule 4."""
    if (winner := winner_over(trials, first, one)) is not None:
        return f"not timed: {winner.engine} works here"
    if one.kind == "cpu" and any(trial.rate is not None and trial.candidate.kind != "cpu" for trial in trials):
        return "not timed: a GPU works"
    return ""


async def _trial(make: Make, one: Candidate, model: Path, weights: Path, workload: Workload) -> Trial:
    silent = True
    try:
        async with _process(make, one.engine, START_SECONDS + TRIAL_SECONDS) as process:
            await _while_it_gives_signs(process, _start(process, one, model, weights))
            silent = False
            async with asyncio.timeout(TRIAL_SECONDS):
                rate = await process.rate(model, workload, MEASURED_SECONDS)
    except _FAULTS as error:
        return Trial(candidate=one, fault=_fault_text(error, SILENT_SECONDS if silent else TRIAL_SECONDS))
    if not rate.tokens:
        return Trial(candidate=one, fault=f"no token within {MEASURED_SECONDS:g} s")
    return Trial(candidate=one, rate=rate)


async def _start(process: EngineProcess, one: Candidate, model: Path, weights: Path) -> None:
    await process.probe(one.device, one.dtype, engine=one.engine)
    await process.load(model, weights)


async def _while_it_gives_signs(process: EngineProcess, work: Coroutine[Any, Any, None]) -> None:
    """Await `work`, which the process answers. Raises TimeoutError where it is silent for too long (rule 3)."""
    task = asyncio.ensure_future(work)
    try:
        async with asyncio.timeout(START_SECONDS):
            while not task.done():
                await asyncio.wait({task}, timeout=SILENT_SECONDS / LOOKS)
                if process.silent_seconds > SILENT_SECONDS and not task.done():
                    raise TimeoutError
        await task
    finally:
        task.cancel()
        await asyncio.wait({task})


@asynccontextmanager
async def _process(make: Make, engine: str, patience: float) -> AsyncIterator[EngineProcess]:
    """Start a process for an engine, and kill it at the end of the block. Raises TimeoutError after `patience`
    seconds."""
    process = make().aim(engine)
    async with asyncio.timeout(patience):
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
