"""A coordinator and a node as real processes, connected by HTTPS alone. The node is paid, follows, finds the
coordinator again after a kill, accepts its renewed certificate, and refuses another key."""

from pathlib import Path

import pytest

from tests.faults.audit import check_books
from tests.faults.processes import free_port, running, until
from tests.support.quick_disk import quick_folder

pytestmark = pytest.mark.slow


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
        assert (row.route, row.connected) == ("https", True)

        run.coordinator.kill()
        run.coordinator.start()
        before = ann.accepted()
        run.coordinator.past(until("the coordinator answers", run.coordinator.state).version + 2)
        until("ann is paid again", lambda: ann.accepted() > before + 2)
        assert len(ann.versions()) >= 4
        check_books(run)


def test_a_renewed_certificate_goes_on_and_another_key_is_refused_with_a_sentence(
    template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECHO2_COORD_HTTPS_LISTEN", f"/ip4/127.0.0.1/tcp/{free_port()}")
    with quick_folder() as folder, running(template, folder) as run:
        ann, coordinator = run.volunteer("ann", via="https"), run.coordinator
        until("ann is paid", lambda: ann.accepted() >= 2)
        before = coordinator.folder.https_certificate.read_bytes()

        coordinator.kill()
        coordinator.folder.https_certificate.unlink()
        coordinator.start()
        paid = ann.accepted()
        until("the certificate is renewed", lambda: coordinator.folder.https_certificate.exists())
        assert coordinator.folder.https_certificate.read_bytes() != before
        until("ann is paid again", lambda: ann.accepted() > paid + 2)

        coordinator.kill()
        coordinator.folder.https_certificate.unlink()
        coordinator.folder.https_key.unlink()
        coordinator.start()
        until("ann says why", lambda: "HTTPS key mismatch" in str(ann.ask("status")["ways_failed"]))
        assert ann.ask("status")["coordinator"] is None
        assert ann.alive
