"""Calibrate, for a new run, what its nodes may round in: part of `echo2-coord init`.

1. Each rounding of the admitted classes that are not exact is calibrated once. A number format is calibrated for all
   engines and devices; an engine with a rounding of its own on the device that a node of this machine would choose.
2. A class that cannot be calibrated stays closed and is named, with the reason and the command to type. The run is
   made all the same: nodes of that class wait until it is open.
"""

import asyncio
from collections.abc import Callable

from echo2.coordinator.calibration.calibrate import calibrate_classes, measured_classes
from echo2.coordinator.run.admitted_classes import AdmittedClass, closed_classes, exact_devices
from echo2.coordinator.run.setup import Run
from echo2.engines.engine import dtype_named
from echo2.engines.process.process import EngineProcess
from echo2.engines.registry import UnknownEngine, choose, is_exact, rounding_of
from echo2.runtime.child import ChildDied, ChildError
from echo2.runtime.errors import LocalFault


def calibrate_own(run: Run, now: int, report: Callable[[str], None]) -> list[str]:
    """Calibrate the roundings of rule 1; return a sentence for each class that stays closed (rule 2). `report`: gets a
    line per rounding before it is calibrated."""
    faults: dict[str, str] = {}
    """Rounding -> why it stays closed; empty: it is open."""
    closed = []
    for one in closed_classes(run.config.run):
        if (rounding := rounding_of(one.name)) not in faults:
            faults[rounding] = asyncio.run(_open(run, one, now, report))
        if faults[rounding]:
            closed.append(_closing_text(run, one, faults[rounding]))
    return closed


def how_to_open(run: Run) -> list[str]:
    """Return a sentence for each admitted class that needs a Calibration, where none was made."""
    return [_closing_text(run, one, "not calibrated") for one in closed_classes(run.config.run)]


async def _open(run: Run, wanted: AdmittedClass, now: int, report: Callable[[str], None]) -> str:
    """Calibrate the rounding of a class; return why that failed, or nothing."""
    try:
        named = rounding_of(wanted.name)
        if "/" in named:
            named = await _own_class(wanted)
        if "/" not in named or not is_exact(named):
            report(f"making a Calibration of {named}")
            classes = measured_classes(run, named)
            await calibrate_classes(run, classes, run.config.calibration.tokens, now)
    except (LocalFault, UnknownEngine, ChildError, ChildDied) as error:
        return str(error)
    return ""


async def _own_class(wanted: AdmittedClass) -> str:
    """Return the class in which an engine of this machine computes."""
    choose(wanted.engine)
    dtype = dtype_named(wanted.dtype)
    assert dtype is not None  # check_admitted
    async with EngineProcess(name="calibration", engine=wanted.engine) as process:
        probed = await process.probe(wanted.device, dtype, engine=wanted.engine)
    return probed.engine_class


def _closing_text(run: Run, wanted: AdmittedClass, why: str) -> str:
    named = rounding_of(wanted.name)
    if "/" in named:
        named = wanted.name if wanted.name.count("/") == 2 else f"{wanted.name}/DEVICE"
    open_on = exact_devices(wanted)
    but = f", but for {', '.join(open_on)}," if open_on else ""
    return (
        f"nodes of class {wanted.name}{but} wait until it is calibrated ({why}): "
        f"echo2-coord calibrate {named} --home {run.folder.path}"
    )
