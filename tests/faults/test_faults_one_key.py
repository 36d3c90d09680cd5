"""Two `echo2-node join` with one key, as real processes over libp2p: one works, both owners are told, and the one whose
key is replaced ends with that sentence."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from echo2.ledger.audited_work import KNOWN_AUDITED_GROUPS
from echo2.runtime.exit_codes import Exit
from tests.faults.processes import PATIENCE, ROOT, Volunteer, running, until
from tests.support.quick_disk import quick_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def command(*words: str) -> tuple[int, str]:
    """Run a command of a node to its end; return its exit code, and what it printed."""
    argv = [sys.executable, "-m", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=ROOT)
    return done.returncode, done.stdout + done.stderr


def told(node: Volunteer) -> list[str]:
    """Return what a node's log says of another daemon with its key."""
    return [event["reason"] for event in node.lines() if event.get("event") == "another daemon has this key"]


def test_one_key_works_in_one_daemon_and_the_other_one_is_told_and_ends_once_it_is_replaced(template: Path) -> None:
    with quick_folder() as folder, running(template, folder, "ann") as run:
        ann, invite = run.volunteers[0], run.coordinator.invite()
        until("ann has standing", lambda: ann.accepted() > KNOWN_AUDITED_GROUPS)
        code, said = command(*ann.argv, invite)
        assert (code, "already runs" in said) == (Exit.TEMPORARY, True), said

        copy = Volunteer(folder, "copy")
        copy.home.mkdir(mode=0o700)
        shutil.copy2(ann.home / "node.key", copy.home / "node.key")
        run.volunteers.append(copy)
        copy.start(invite)
        until("the copy is told", lambda: told(copy))
        until("ann is told", lambda: told(ann))
        assert told(copy)[0].startswith("Another daemon with this node's key is connected from elsewhere")
        assert "asked for work from elsewhere, and was refused" in told(ann)[0]
        before = ann.accepted()
        until("ann works on", lambda: ann.accepted() > before + 1)
        assert copy.accepted() == 0
        assert copy.ask("status")["leases"] == 0, "a lease went to the second daemon"

        ann.send(signal.SIGTERM)
        assert ann.wait() == Exit.OK
        code, said = command("echo2.node.cli", "keys", "rotate", "--yes", "--home", str(ann.home))
        assert code == Exit.OK, said
        ann.start(invite)
        until("ann works with its new key", lambda: ann.accepted() > before + 2)
        assert copy.wait() == Exit.REFUSED
        assert f"was replaced by {ann.peer_id}" in copy.last_words()
        assert ann.alive
