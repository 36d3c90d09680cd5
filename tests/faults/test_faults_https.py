"""A coordinator and a node as real processes, HTTPS between them and nothing else: the node is paid, follows, and finds
the coordinator again after it was killed."""

from pathlib import Path

import pytest

from tests.faults.audit import check_books
from tests.faults.processes import free_port, running, until
from tests.quickdisk import quick_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_a_node_on_https_alone_works_and_outlives_a_kill_of_the_coordinator(
    template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody can tell such a node of another port: it stays.
    monkeypatch.setenv("ECHO2_COORD_HTTPS_LISTEN", f"/ip4/127.0.0.1/tcp/{free_port()}")
    with quick_folder() as folder, running(template, folder) as run:
        ann = run.volunteer("ann", via="https")
        run.coordinator.past(3)
        until("ann is paid", lambda: ann.accepted() >= 4)
        said = ann.ask("status")
        assert (said["way"], said["coordinator"] is not None, said["sent_bytes"]) == ("https", True, 0)
        row = run.coordinator.row(ann)
        assert (row.way, row.connected) == ("https", True)

        run.coordinator.kill()
        run.coordinator.start()
        before = ann.accepted()
        run.coordinator.past(until("the coordinator answers", run.coordinator.state).version + 2)
        until("ann is paid again", lambda: ann.accepted() > before + 2)
        assert len(ann.held()) >= 4
        check_books(run)
