"""Calibrate, for a new run, the engine classes in which this machine would work for it: part of `echo2-coord init`.

1. Each admitted class that is not exact is calibrated on the device that a node of this machine would choose. Other
   devices of such a class need `echo2-coord calibrate` on a machine that has them.
2. A class that cannot be calibrated stays closed and is named, with the reason and the command to type. The run is
   made all the same: nodes of that class wait until it is open.
"""

import asyncio
from collections.abc import Callable

from echo2.coordinator.calibration.calibrate import calibrate_class
from echo2.coordinator.run.admitted_classes import AdmittedClass, closed_classes, exact_devices
from echo2.coordinator.run.setup import Run
from echo2.engines.engine import dtype_named
from echo2.engines.process.process import EngineProcess
from echo2.engines.registry import UnknownEngine, choose, is_exact
from echo2.runtime.child import ChildDied, ChildError
from echo2.runtime.errors import LocalFault


def calibrate_own(run: Run, now: int, report: Callable[[str], None]) -> list[str]:
    """Calibrate the classes of rule 1; return a sentence for each class that stays closed (rule 2). `report`: gets a
    line per class before it is calibrated."""
    return [said for one in closed_classes(run.config.run) if (said := asyncio.run(_open(run, one, now, report)))]


def how_to_open(run: Run) -> list[str]:
    """Return a sentence for each admitted class that needs a Calibration, where none was made."""
    return [_closing_text(run, one, "not calibrated") for one in closed_classes(run.config.run)]


async def _open(run: Run, wanted: AdmittedClass, now: int, report: Callable[[str], None]) -> str | None:
    try:
        engine_class = await _own_class(wanted)
        if not is_exact(engine_class):
            report(f"making a Calibration of {engine_class}")
            await calibrate_class(run, engine_class, run.config.calibration.tokens, now)
    except (LocalFault, UnknownEngine, ChildError, ChildDied) as error:
        return _closing_text(run, wanted, str(error))
    return None


async def _own_class(wanted: AdmittedClass) -> str:
    """Return the class in which an engine of this machine computes."""
    choose(wanted.engine)
    dtype = dtype_named(wanted.dtype)
    assert dtype is not None  # check_admitted
    async with EngineProcess(name="calibration") as process:
        probed = await process.probe(wanted.device, dtype, engine=wanted.engine)
    return probed.engine_class


def _closing_text(run: Run, wanted: AdmittedClass, why: str) -> str:
    named = wanted.name if wanted.name.count("/") == 2 else f"{wanted.name}/DEVICE"
    open_on = exact_devices(wanted)
    but = f", but for {', '.join(open_on)}," if open_on else ""
    return (
        f"nodes of class {wanted.name}{but} wait until it is calibrated ({why}): "
        f"echo2-coord calibrate {named} --home {run.folder.path}"
    )
