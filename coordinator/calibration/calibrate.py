"""Calibrate an engine class by the operator's own engines: `echo2-coord calibrate`, `init` and a running coordinator.

Rules
1. Honest groups are generated and compared (coordinator/calibration/honest_groups.py) on each of the machines that this
   computer can stand in for (coordinator/verification/mixed_machines.py), and fitted together.
2. The weights are those of the newest snapshot in the store; before the first one, those of the base model, which
   become version 0. They are linked into the run folder first, so that the store may drop its own link meanwhile.
3. The result is signed by the ledger key and written to `calibrations/` of the run folder whole or not at all. A
   running coordinator reads it within half a minute and opens the class.
4. A class that the RunSpec does not admit is refused: its nodes would get no lease all the same.
5. One calibration of a run at a time: a second one is refused at once. A killed one leaves its link to the weights,
   which the next one replaces, and nothing else.
"""

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from echo2.coordinator.calibration.honest_groups import ClassParts, MeasuredVersion, measure
from echo2.coordinator.learner.eras import FIRST_ERA
from echo2.coordinator.run.model_folder import write_base
from echo2.coordinator.run.setup import Run
from echo2.coordinator.verification.calibration import TOKENS_LEAST, Calibration, TooFewTokens, fit, seal_calibration
from echo2.coordinator.verification.evidence import BOUND
from echo2.coordinator.verification.mixed_machines import mixed_machines
from echo2.coordinator.verification.token_evidence import Incomparable
from echo2.engines.devices.devices import NoDevice, check_name
from echo2.engines.engine import dtype_named
from echo2.engines.registry import UnknownEngine, choose, is_exact
from echo2.protocol.engine_classes import admits, parts
from echo2.runtime.child import ChildDied, ChildError
from echo2.runtime.errors import DiskFull, LocalFault
from echo2.runtime.files import writing
from echo2.runtime.lock import AlreadyLocked, lock_file
from echo2.tasks.task import TaskFault
from echo2.weights.store import StoreReader

WEIGHTS: Final = "measured.safetensors"
_SNAPSHOT_TRIES: Final = 100
"""Snapshots that may go, one after the other, before one is linked."""
"""The weights of the calibration under way, in `calibrations/`."""
LOCK: Final = "lock"


def calibrate(run: Run, engine_class: str, tokens: int, now: int) -> Path:
    """Calibrate a class, and return the file written. `tokens`: tokens per machine. `now`: ms. Raises `LocalFault`."""
    return asyncio.run(calibrate_class(run, engine_class, tokens, now))


async def calibrate_class(run: Run, engine_class: str, tokens: int, now: int) -> Path:
    """See `calibrate`."""
    if not admits(engine_class, admitted := run.runspec.engines):
        raise LocalFault(
            f"the run does not admit {engine_class}: its run.engines, which is signed, is {', '.join(admitted)}"
        )
    wanted = class_parts(engine_class)
    machines = mixed_machines(wanted.engine, wanted.device)
    with place_of(run.folder.calibrations) as place:
        weights = await newest_weights(run, place)
        try:
            honest = await measure(run, weights, wanted, machines, max(tokens, TOKENS_LEAST))
            tables = await asyncio.to_thread(fit, honest.machines)
        except DiskFull:
            raise
        except (ChildDied, ChildError, Incomparable, TooFewTokens, TaskFault) as error:
            raise LocalFault(f"cannot calibrate {engine_class} here: {error}") from error
        document = Calibration(
            run=run.id,
            engine_class=engine_class,
            builds=honest.builds,
            era=weights.era,
            version=weights.version,
            root=weights.root,
            machines={name: len(array) for name, array in honest.machines.items()},
            tables={name: table for name, table in tables.items() if name != BOUND},
            bound=tables[BOUND][0],
            at=now,
        )
        path = place / f"{now}-{engine_class.replace('/', '-')}.calibration"
        with writing(path) as file:
            file.write(seal_calibration(document, run.keys.ledger))
    return path


def class_parts(engine_class: str) -> ClassParts:
    """Return the parts of a class that needs a Calibration. Raises `LocalFault`."""
    named = parts(engine_class)
    dtype = dtype_named(named[1]) if len(named) == 3 else None
    if dtype is None:
        raise LocalFault(f"{engine_class} is no class: name engine/dtype/device, as transformers/bfloat16/cpu")
    if is_exact(engine_class):
        raise LocalFault(f"{engine_class} is exact: it is open without a Calibration")
    try:
        row = choose(named[0])
        row.check(dtype)
        check_name(named[2], row.devices)
    except (UnknownEngine, NoDevice) as error:
        raise LocalFault(str(error)) from error
    return ClassParts(named[0], dtype, named[2])


@contextmanager
def place_of(folder: Path) -> Iterator[Path]:
    """Yield the folder of Calibrations, locked, and remove the link to the weights afterwards (rule 5)."""
    try:
        folder.mkdir(exist_ok=True)
        lock = lock_file(folder / LOCK, name_holder=True)
    except AlreadyLocked as error:
        raise LocalFault(
            f"process {error.holder or 'unknown'} calibrates a class of this run: wait for its end, or stop it"
        ) from error
    except OSError as error:
        raise LocalFault(f"cannot write in {folder}: {error.strerror}") from error
    with lock:
        try:
            yield folder
        finally:
            with suppress(OSError):
                (folder / WEIGHTS).unlink()


async def newest_weights(run: Run, place: Path) -> MeasuredVersion:
    """Link or write the weights to `WEIGHTS` in the folder `place` (rule 2). Raises `LocalFault`."""
    target = place / WEIGHTS
    newest = await asyncio.to_thread(_newest, run.folder.store, target)
    return newest or MeasuredVersion(FIRST_ERA, 0, await write_base(run.folder.model, target), target)


def _newest(store: Path, target: Path) -> MeasuredVersion | None:
    """Link the newest snapshot of a store to `target`; None if there is none."""
    target.unlink(missing_ok=True)
    if not store.is_dir():  # the coordinator was never started
        return None
    with StoreReader(store) as reader:
        for _ in range(_SNAPSHOT_TRIES):
            for newest in reader.snapshots()[-1:]:
                with suppress(FileNotFoundError):  # the coordinator dropped it just now, for a newer one
                    _link(newest.path, target)
                    return MeasuredVersion(newest.era, newest.version, newest.hash, target)
    return None


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except FileNotFoundError:
        raise
    except OSError:  # another filesystem, or one without links
        with source.open("rb") as file, writing(target) as out:
            shutil.copyfileobj(file, out)
