"""Run the verdicts of a run folder again, and report the result: `echo2-coord recheck`."""

from echo2.coordinator.database.database import Database
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.run import setup
from echo2.coordinator.verification.open_classes import OpenClasses, ledger_keys
from echo2.coordinator.verification.verdict_replay import ReplayedVerdicts, replay_verdicts


def replay(place: RunFolder) -> ReplayedVerdicts:
    """Run the verdicts of a folder again, also while its coordinator runs. Raises `LocalFault`, `Untrusted`."""
    classes = classes_of(place)
    with Database.read(place.database) as database:
        return replay_verdicts(database, classes.tables)


def classes_of(place: RunFolder) -> OpenClasses:
    """Return the classes that a folder's Calibrations open. Raises `LocalFault`, `Untrusted`."""
    _, chain, _, spec = setup.read_documents(place)
    classes = OpenClasses()
    classes.read(place.calibrations, spec.run, ledger_keys(chain))
    return classes


def lines(replayed: ReplayedVerdicts) -> list[str]:
    """Return a report as lines of text: E per key, faults, and the sum."""
    keys = [
        f"{node}  E of the day {evidence.daily.text()}, of all groups {evidence.lifelong.text()}"
        for node, evidence in sorted(replayed.evidence.items())
    ]
    summary = (
        f"{replayed.again} verdicts by evidence run again with the same bits, {replayed.linked} without their"
        f" tokens, in their place. {replayed.counted} verdicts by near-ties run again with the same bits."
        f" {replayed.paired} verdicts by passes under two versions likewise. {len(replayed.faults)} faults"
    )
    return [*keys, *replayed.faults, summary]
