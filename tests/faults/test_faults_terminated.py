"""SIGTERM, the end of a service or a container, to a real node with a real engine while its groups are under way."""

import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from echo2.coordinator.database.database import Database
from echo2.runtime.exit_codes import Exit
from tests.faults.audit import check_books
from tests.faults.processes import Run, running, until
from tests.support.quick_disk import quick_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ENDS_WITHIN = 8.0


@pytest.fixture
def run(template: Path) -> Iterator[Run]:
    with quick_folder() as folder, running(template, folder, "ann") as run:
        yield run


def leases_by_state(run: Run) -> dict[str, int]:
    with closing(Database.read(run.coordinator.folder.database)) as database:
        rows = database.all("SELECT state, count(*) FROM leases GROUP BY state")
        return {str(state): int(number) for state, number in rows}


def stopped_with_a_lease(run: Run, engine: psutil.Process) -> bool:
    """Stop the engine; let it go on where no lease of its node is open then."""
    engine.suspend()
    time.sleep(0.5)  # the node asks for leases, and answers for groups that are whole
    if leases_by_state(run).get("open"):
        return True
    engine.resume()
    return False


def test_a_node_gives_its_leases_back_and_ends_within_8_seconds_of_sigterm(run: Run) -> None:
    """Its engine stands still, so the groups under way are not whole when the signal comes."""
    ann = run.volunteers[0]
    until("it works", lambda: ann.accepted() > 1)
    engine = ann.child("engine")
    until("its engine stands still with a group", lambda: stopped_with_a_lease(run, engine))
    ann.send(signal.SIGTERM)
    began = time.monotonic()
    assert ann.wait() == Exit.OK
    assert time.monotonic() - began < ENDS_WITHIN
    assert not ann.orphans()
    assert not leases_by_state(run).get("open"), "the coordinator waits for groups of a node that has ended"
    ann.start(run.coordinator.invite())
    before = ann.accepted()
    until("it works again", lambda: ann.accepted() > before)
    check_books(run)


def test_a_node_that_only_starts_ends_as_soon(run: Run) -> None:
    bob = run.volunteer("bob")
    until("it has a key", lambda: (bob.home / "node.key").exists())
    bob.send(signal.SIGTERM)
    began = time.monotonic()
    assert bob.wait() == Exit.OK
    assert time.monotonic() - began < ENDS_WITHIN
    assert not bob.orphans()
