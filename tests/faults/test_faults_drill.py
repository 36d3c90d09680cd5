"""The drill: a key is stolen while the run works, used, and revoked; real processes over libp2p.

In each drill the nodes follow within two Heads, the thief's documents are refused, and no honest group is lost: those
of leases that were open at the revocation are accepted, whatever key signed them.
"""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from echo2.coordinator.database.database import Database
from echo2.node.rollouts.outbox import Outbox
from echo2.p2p.envelope import decode_unverified
from echo2.p2p.identity import load_key, public_bytes
from tests.faults.audit import check_books
from tests.faults.processes import PATIENCE, ROOT, Run, Volunteer, make_template, running, until
from tests.faults.thief import Thief, named, thieving
from tests.support.quick_disk import quick_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
HEADS = 2
"""Heads within which a node is to follow."""


@pytest.fixture(scope="module")
def slow_steps() -> Iterator[Path]:
    """Return a run whose steps, and so its Heads, are seconds apart."""
    with quick_folder() as folder:
        yield make_template(folder / "run", {"batch_groups": 96})


def keys(run: Run, *words: str) -> None:
    """Run `echo2-coord keys ...` in another process."""
    argv = [sys.executable, "-m", "echo2.coordinator.cli", "keys", *words, "--home", str(run.coordinator.home)]
    subprocess.run(argv, timeout=PATIENCE, cwd=ROOT, check=True)


def serial(node: Volunteer) -> int:
    return max([1, *(int(str(one["serial"])) for one in named(node.lines(), "newer Root taken"))])


def times(text: str, event: str) -> list[str]:
    """Return when an event was logged, from the coordinator's log or a node's."""
    lines = [one for one in text.splitlines() if event in one]
    return [at[0] for one in lines if (at := re.search(r"\d{4}-\d\d-\d\dT[\d:.]+Z", one))]


def heads_until(run: Run, node: Volunteer) -> int:
    """Return how many Heads went out under the new Root until the node had it."""
    log = run.coordinator.log.read_text()
    taken, (followed, *_) = times(log, "newer Root taken")[-1], times(node.log.read_text(), "newer Root taken")[-1:]
    return sum(taken <= at <= followed for at in times(log, "head out"))


def open_leases(run: Run) -> dict[bytes, bytes]:
    """Return (lease -> node) of the leases that have no verdict."""
    with closing(Database.read(run.coordinator.folder.database)) as database:
        rows = database.all("SELECT id, node FROM leases WHERE id NOT IN (SELECT lease FROM verdicts)")
    return dict(rows)


def verdicts(run: Run) -> dict[bytes, tuple[str, str]]:
    """Return (lease -> verdict and its code)."""
    with closing(Database.read(run.coordinator.folder.database)) as database:
        return {
            lease: (verdict, code) for lease, verdict, code in database.all("SELECT lease, verdict, code FROM verdicts")
        }


def revoked(run: Run, role: str, since: str | None = None) -> None:
    """Revoke the key of a role; all nodes are to follow within two Heads, and ann and bob to lose no group."""
    honest = run.volunteers[:2]
    named_keys = {public_bytes(load_key(node.home / "node.key")) for node in honest}
    before = {lease for lease, node in open_leases(run).items() if node in named_keys}
    keys(run, "revoke", role, *(("--from", since) if since else ()))
    until("the nodes follow", lambda: all(serial(node) == 2 for node in run.volunteers))
    late = {node.name: heads_until(run, node) for node in run.volunteers}
    assert max(late.values()) <= HEADS, late
    accepted = [node.accepted() for node in honest]
    until("each works on", lambda: all(node.accepted() > had + 1 for node, had in zip(honest, accepted, strict=True)))
    until("the leases of before are decided", lambda: not before & open_leases(run).keys())
    decided = verdicts(run)
    assert {lease: decided[lease] for lease in before if decided[lease][0] != "accepted"} == {}
    for node in honest:
        assert not named(node.lines(), "group refused"), "an honest group was refused"


def stolen(run: Run, *roles: str) -> list[Path]:
    return [Path(shutil.copy(run.coordinator.home / f"keys/{role}.pem", run.folder / f"{role}.pem")) for role in roles]


def victim_of(run: Run, thief: Thief) -> Volunteer:
    """Return a node that worked for the run, and that finds the thief's address alone when it starts again. The
    payloads of later versions come from other nodes."""
    victim = run.volunteer("carl")
    until("the victim works", victim.accepted)
    victim.kill()
    for head in victim.data.rglob("head"):
        head.unlink()
    victim.start(thief.invite)
    return victim


def credited(run: Run, victim: Volunteer) -> None:
    """Wait until the coordinator itself credits a victim whose thief has gone."""
    had = victim.accepted()
    until("the coordinator credits him", lambda: victim.accepted() > had + 1)


def test_a_stolen_channel_key_leases_nothing_once_it_is_revoked(slow_steps: Path) -> None:
    with quick_folder() as folder, running(slow_steps, folder, "ann", "bob") as run:
        until("both have receipts", lambda: all(node.accepted() for node in run.volunteers))
        with thieving(Thief(run.coordinator.invite(), *stolen(run, "channel"))) as thief:
            victim = victim_of(run, thief)
            until("he works for the thief: the key is good", lambda: len(named(victim.lines(), "group refused")) > 1)
            worked = {bytes.fromhex(str(one["lease"])) for one in named(victim.lines(), "group refused")}
            assert worked <= set(thief.forged), "the coordinator refused a lease of its own"
            revoked(run, "channel")
            forged = len(thief.forged)
            until(
                "he refuses the thief's leases",
                lambda: any("invalid lease" in str(one.get("reason")) for one in victim.lines()),
            )
            until("the thief forges on", lambda: len(thief.forged) > forged)
            late = set(thief.forged[forged:])
        credited(run, victim)
        check_books(run)
        victim.kill()
        assert not late & in_outbox(victim).keys()


def test_a_stolen_ledger_key_signs_no_receipt_once_it_is_revoked(slow_steps: Path) -> None:
    with quick_folder() as folder, running(slow_steps, folder, "ann", "bob") as run:
        until("both have receipts", lambda: all(node.accepted() for node in run.volunteers))
        safe = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
        channel, ledger = stolen(run, "channel", "ledger")
        with thieving(Thief(run.coordinator.invite(), channel, ledger)) as thief:
            victim = victim_of(run, thief)
            until("he believes a forged receipt: the key is good", lambda: named(victim.lines(), "group refused"))
            revoked(run, "ledger", safe)
            until("he sees a false answer", lambda: named(victim.lines(), "coordinator lost"))
        until("forged receipts are replaced", lambda: named(victim.lines(), "invalid receipts replaced"))
        credited(run, victim)
        victim.kill()
        key = public_bytes(load_key(ledger))
        signers = {
            lease: {one.key for one in decode_unverified(receipt).signatures}
            for lease, receipt in in_outbox(victim).items()
            if receipt is not None
        }
        assert not [lease for lease in thief.forged if key in signers.get(lease, ())]


def in_outbox(node: Volunteer) -> dict[bytes, bytes | None]:
    """Return (lease -> sealed Receipt) of a stopped node."""
    with closing(Outbox(node.data / "outbox.sqlite", node=bytes(32), limit=1)) as outbox:
        return {row.lease: row.receipt for row in outbox.rows()}


def test_a_stolen_policy_key_signs_no_version_once_it_is_revoked(slow_steps: Path) -> None:
    with quick_folder() as folder, running(slow_steps, folder, "ann", "bob") as run:
        until("both have receipts", lambda: all(node.accepted() for node in run.volunteers))
        key = public_bytes(load_key(run.coordinator.home / "keys/policy.pem"))
        version = run.coordinator.state().version
        revoked(run, "policy")
        run.coordinator.past(version + 1)
        for node in run.volunteers:
            until("it holds a version under the new key", lambda n=node: _version_signer(n) not in (None, key))
        check_books(run)


def _version_signer(node: Volunteer) -> bytes | None:
    paths = list(node.data.rglob("version"))
    return None if not paths else decode_unverified(paths[0].read_bytes()).signatures[0].key
