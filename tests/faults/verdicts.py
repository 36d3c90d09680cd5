"""What must hold of a run's verdicts after a fault of its scorers."""

from contextlib import closing

from echo2.coordinator.database.database import Database
from tests.faults.audit import check_books
from tests.faults.processes import Run, until


def goes_on(run: Run) -> None:
    """Wait for new versions, then for the verdict of every group that waits now; check Receipts and ledger."""
    run.coordinator.past(run.coordinator.state().version + 2)
    with closing(Database.read(run.coordinator.folder.database)) as database:
        waiting = [lease for (lease,) in database.all("SELECT lease FROM undecided")]

    def all_decided() -> bool:
        with closing(Database.read(run.coordinator.folder.database)) as database:
            return all(database.one("SELECT 1 FROM verdicts WHERE lease = ?", (lease,)) for lease in waiting)

    until("every group that waited has its verdict", all_decided)
    check_books(run)
