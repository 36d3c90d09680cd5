"""Changes of a run's keys while it works, as real processes over libp2p, by the operator's own commands."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from echo2.coordinator.database.database import Database
from echo2.p2p.envelope import decode_unverified
from echo2.p2p.wire_types import decode
from echo2.protocol.authority import Root
from echo2.protocol.versions import Head
from tests.faults.audit import receipts
from tests.faults.processes import PATIENCE, ROOT, Run, running, until
from tests.support.quick_disk import quick_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def keys(run: Run, *words: str) -> str:
    """Run `echo2-coord keys ...` in another process."""
    argv = [sys.executable, "-m", "echo2.coordinator.cli", "keys", *words, "--home", str(run.coordinator.home)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def newest(run: Run) -> Root:
    files = sorted((run.coordinator.home / "root").glob("*.root"), key=lambda path: int(path.stem))
    return decode(decode_unverified(files[-1].read_bytes()).payload, Root)


def test_every_key_of_a_running_coordinator_is_rotated_and_its_node_and_a_newcomer_work_on(template: Path) -> None:
    with quick_folder() as folder, running(template, folder, "ann") as run:
        ann, invite = run.volunteers[0], run.coordinator.invite()
        until("ann has a Receipt", ann.accepted)
        peer = run.coordinator.state().broadcast.source
        for serial, role in enumerate(("channel", "ledger", "policy", "root"), start=2):
            assert f"the running coordinator works under Root {serial}" in keys(run, "rotate", role)
            until(f"ann holds Root {serial}", lambda s=serial: roots_taken(run, s))
            before, version = ann.accepted(), run.coordinator.state().version
            until(f"ann is credited under the new {role} key", lambda b=before: ann.accepted() > b + 1)
            run.coordinator.past(version + 1)
        assert (run.coordinator.invite(), run.coordinator.state().broadcast.source) == (invite, peer)
        head = (run.coordinator.home / "head").read_bytes()
        assert decode(decode_unverified(head).payload, Head).root_serial == 5
        assert decode_unverified(head).signatures[0].key in newest(run).roles["channel"].keys
        bob = run.volunteer("bob")
        until("bob has a Receipt", bob.accepted)
        run.coordinator.kill()
        run.coordinator.start()
        before = ann.accepted()
        until("ann is credited after the coordinator's restart", lambda: ann.accepted() > before)
        told = [event["reason"] for event in ann.lines() if event.get("event") == "coordinator lost"]
        assert not any(any(word in reason for word in ("false", "invalid", "Root")) for reason in told), told
        receipts_before = receipts(ann)
        with closing(Database.read(run.coordinator.folder.database)) as database:
            stored = dict(database.all("SELECT lease, receipt FROM verdicts"))
        # A receipt that was decided while the new Root was on its way goes out under the new key.
        assert {lease: decode_unverified(stored[lease]).payload for lease in receipts_before} == {
            lease: decode_unverified(sealed).payload for lease, sealed in receipts_before.items()
        }


def roots_taken(run: Run, serial: int) -> bool:
    lines = run.volunteers[0].lines()
    return any(event.get("event") == "newer Root taken" and event["serial"] == serial for event in lines)
