"""Calibrate a rounding by the operator's own engines: `echo2-coord calibrate`, `init` and a running coordinator.

Rules
1. Honest groups are generated and compared (coordinator/calibration/honest_groups.py) on each of the machines that this
   computer can stand in for (coordinator/verification/mixed_machines.py), and fitted together. A rounding that is a
   number format is measured by transformers on the scorer's device, whatever engines and devices the nodes have. Of a
   class that is named, its own engine is measured besides, which only widens the bounds. Any other rounding is measured
   by its engine.
2. The weights are those of the newest snapshot in the store; before the first one, those of the base model, which
   become version 0. They are linked into the run folder first, so that the store may drop its own link meanwhile.
3. The result is signed by the ledger key and written to `calibrations/` of the run folder whole or not at all. A
   running coordinator reads it within half a minute and opens the class.
4. A rounding that the RunSpec admits nowhere is refused, and so is a class that it does not: its nodes would get no
   lease all the same.
5. Kinds of device that the operator names widen the bounds by their landed groups, each by its median party's
   (coordinator/verification/device_landings.py, rule 4).
6. One calibration of a run at a time: a second one is refused at once. A killed one leaves its link to the weights,
   which the next one replaces, and nothing else.
"""

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from echo2.coordinator.calibration.honest_groups import MeasuredVersion, measure
from echo2.coordinator.database.database import Database
from echo2.coordinator.learner.eras import FIRST_ERA
from echo2.coordinator.run.admitted_classes import admitted_formats
from echo2.coordinator.run.model_folder import write_base
from echo2.coordinator.run.setup import Run
from echo2.coordinator.settings.computing import computing_of
from echo2.coordinator.verification.calibration import (
    TOKENS_LEAST,
    Calibration,
    TooFewTokens,
    fit,
    seal_calibration,
    widest,
)
from echo2.coordinator.verification.device_landings import PARTIES_LEAST, landed_kinds, landed_tables
from echo2.coordinator.verification.evidence import BOUND
from echo2.coordinator.verification.mixed_machines import mixed_machines
from echo2.coordinator.verification.token_evidence import Incomparable
from echo2.engines.devices.devices import NoDevice, check_name
from echo2.engines.registry import ClassParts, choose, is_exact, parts_of, rounding_of
from echo2.protocol.engine_classes import admits
from echo2.runtime.child import ChildDied, ChildError
from echo2.runtime.errors import DiskFull, LocalFault
from echo2.runtime.files import writing
from echo2.runtime.lock import AlreadyLocked, lock_file
from echo2.tasks.task import TaskFault
from echo2.weights.store import StoreReader

FORMAT_ENGINE: Final = "transformers"
"""The engine that measures a number format: the scorer's."""
WEIGHTS: Final = "measured.safetensors"
_SNAPSHOT_TRIES: Final = 100
"""Snapshots that may go, one after the other, before one is linked."""
"""The weights of the calibration under way, in `calibrations/`."""
LOCK: Final = "lock"


class ClassFit(NamedTuple):
    """Measurements of the engines of one class. `machines`: machine -> its number of tokens. `tables`: their fit."""

    machines: dict[str, int]
    builds: list[str]
    tables: dict[str, list[int]]


def calibrate(run: Run, named: str, tokens: int, now: int, devices: Sequence[str] = ()) -> Path:
    """Calibrate a number format or an engine class, and return the file written. `tokens`: tokens per machine. `now`:
    ms. `devices`: kinds of device whose landed groups widen the bounds. Raises `LocalFault`."""
    return asyncio.run(calibrate_classes(run, measured_classes(run, named), tokens, now, devices))


def measured_classes(run: Run, named: str) -> list[str]:
    """Return the classes whose engines are measured for a number format or a class (rules 1 and 4). Raises
    `LocalFault`."""
    device = computing_of(run.config.learner, run.config.scorer).scorer_devices[0].partition(":")[0]
    asked = named if "/" in named else f"{FORMAT_ENGINE}/{named}/{device}"
    rounding, admitted = rounding_of(asked), run.runspec.engines
    own = asked if "/" in rounding else f"{FORMAT_ENGINE}/{rounding}/{device}"
    if not admits(asked, admitted) and not (asked == own and rounding in admitted_formats(admitted)):
        raise LocalFault(f"the run does not admit {named}: its run.engines, which is signed, is {', '.join(admitted)}")
    class_parts(asked)
    return list(dict.fromkeys([own, asked]))


async def calibrate_classes(
    run: Run, classes: Sequence[str], tokens: int, now: int, devices: Sequence[str] = ()
) -> Path:
    """Make a Calibration by the engines of some classes of one rounding, as `measured_classes` returns them. See
    `calibrate`."""
    landed = await asyncio.to_thread(_device_tables, run, rounding_of(classes[0]), devices)
    with place_of(run.folder.calibrations) as place:
        weights = await newest_weights(run, place)
        measured = {name: await _measure(run, weights, name, max(tokens, TOKENS_LEAST)) for name in classes}
        tables = widest([one.tables for one in measured.values()] + landed)
        document = Calibration(
            run=run.id,
            rounding=rounding_of(classes[0]),
            classes=list(classes),
            devices=list(devices),
            builds=list(dict.fromkeys(build for one in measured.values() for build in one.builds)),
            era=weights.era,
            version=weights.version,
            root=weights.root,
            machines={f"{name}, {one}": count for name, of in measured.items() for one, count in of.machines.items()},
            tables={name: table for name, table in tables.items() if name != BOUND},
            bound=tables[BOUND][0],
            at=now,
        )
        path = place / f"{now}-{document.rounding.replace('/', '-')}.calibration"
        with writing(path) as file:
            file.write(seal_calibration(document, run.keys.ledger))
    return path


def _device_tables(run: Run, rounding: str, devices: Sequence[str]) -> list[dict[str, list[int]]]:
    """Return the tables of the median party of each kind of device (rule 5)."""
    if not devices:
        return []
    with Database.read(run.folder.database) as database:
        tables = {kind: landed_tables(database, rounding, kind) for kind in devices}
        kinds = landed_kinds(database, rounding)
    for kind in (kind for kind, fitted in tables.items() if fitted is None):
        parties = {one.kind: one.parties for one in kinds}
        if kind not in parties:
            raise LocalFault(
                f"no group of device {kind!r} landed in {rounding}; those are: {'; '.join(parties) or 'none'}"
            )
        raise LocalFault(
            f"groups of {parties[kind]} parties of device {kind!r} landed with {TOKENS_LEAST:,} tokens or more each:"
            f" {PARTIES_LEAST} are needed to widen the bounds by it"
        )
    return [fitted for fitted in tables.values() if fitted is not None]


async def _measure(run: Run, weights: MeasuredVersion, engine_class: str, tokens: int) -> ClassFit:
    """Measure and fit the engines of one class (rule 1)."""
    wanted = class_parts(engine_class)
    try:
        honest = await measure(run, weights, wanted, mixed_machines(wanted.engine, wanted.device), tokens)
        tables = await asyncio.to_thread(fit, honest.machines)
    except DiskFull:
        raise
    except (ChildDied, ChildError, Incomparable, TooFewTokens, TaskFault) as error:
        raise LocalFault(f"cannot calibrate {engine_class} here: {error}") from error
    return ClassFit({name: len(array) for name, array in honest.machines.items()}, honest.builds, tables)


def class_parts(engine_class: str) -> ClassParts:
    """Return the parts of a class that needs a Calibration. Raises `LocalFault`."""
    wanted = parts_of(engine_class, "transformers/bfloat16/cpu, or a number format")
    if is_exact(engine_class):
        raise LocalFault(f"{engine_class} is exact: it is open without a Calibration")
    try:
        check_name(wanted.device, choose(wanted.engine).devices)
    except NoDevice as error:
        raise LocalFault(str(error)) from error
    return wanted


@contextmanager
def place_of(folder: Path) -> Iterator[Path]:
    """Yield the folder of Calibrations, locked, and remove the link to the weights afterwards (rule 6)."""
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
