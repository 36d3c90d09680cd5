"""Summarise a run by its folder alone, where no coordinator runs: what its history and run.sqlite have.

It locks and writes nothing.
"""

from collections.abc import Iterator

from echo2.coordinator.database.database import Database, DatabaseFault
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.metrics import run_metrics
from echo2.coordinator.metrics.history import Curve
from echo2.coordinator.settings import config
from echo2.runtime.units import minute


def stored_lines(folder: RunFolder, now: int) -> Iterator[str]:
    """Return what a folder has of its run, as `status.lines` words it. `now`: ms. Raises `LocalFault`, OSError."""
    run, curve = config.load(folder.config).run, Curve.read(folder.history)
    yield f"run      {run.name}, {run.model}"
    newest = max(curve.versions.values(), key=lambda one: (one.era, one.version), default=None)
    last = curve.steps[max(curve.steps)] if curve.steps else None
    steps = "no step yet" if last is None else f"step {last.step}, made {minute(last.at)}"
    version = "" if newest is None else f"; version {newest.version}"
    yield f"phase    no coordinator runs in {folder.path}; {steps}{version}"
    try:
        with Database.read(folder.database) as database, database.reading():
            counted, ledger = run_metrics.counts(database, now), run_metrics.ledger(database)
            nodes = database.value("SELECT value FROM tallies WHERE name = 'nodes'") or 0
    except DatabaseFault as fault:
        yield f"groups   not known: {fault}"
        return
    yield (
        f"groups   {counted.accepted} accepted, {sum(counted.refused.values())} refused, {counted.expired} expired, "
        f"{counted.too_old} too old; {counted.undecided} undecided, {counted.running} leased"
    )
    yield f"nodes    {nodes} known"
    if ledger.entries:
        yield f"ledger   {ledger.entries} entries; head {ledger.number} covers {ledger.size}"
