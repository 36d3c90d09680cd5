"""A ledger restored from a copy behind heads that a node has: the log that the root keys begin, and the node's part."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from echo2.coordinator.accounts import payout_hold
from echo2.coordinator.accounts.fork_evidence import evidence
from echo2.coordinator.accounts.run_logs import FOREIGN_HEAD_FACT, recorded_copy
from echo2.coordinator.ledger_files import log_commands
from echo2.coordinator.ledger_files.ledger_backup import backup
from echo2.coordinator.ledger_files.ledger_export import export
from echo2.coordinator.metrics.run_metrics import ledger as ledger_view
from echo2.coordinator.publishing.foreign_heads import RESTORED_QUIET_MS, ForeignHeads
from echo2.ledger.export_files import sums
from echo2.ledger.export_replay import replay
from echo2.ledger.ledger_audit import audit
from echo2.ledger.ledger_entries import Tampered
from echo2.node.errors import TrustFailure
from echo2.node.rollouts.ledger_exchange import _ShownHead
from echo2.node.rollouts.outbox import CLAIM_RECEIPT
from echo2.node.trust.ledger_store import LedgerStore
from echo2.p2p.envelope import seal
from echo2.p2p.identity import generate_key, load_key
from echo2.p2p.limits.origin import Origin
from echo2.p2p.wire_types import encode
from echo2.protocol.authority import open_log
from echo2.protocol.restored_logs import KIND, LogRestored
from echo2.protocol.root_chain import Untrusted
from echo2.runtime.errors import LocalFault
from tests.support.followed_ledger import NODE, Outcome, World
from tests.support.paths import ROOT


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with contextlib.closing(World(tmp_path)) as new_world:
        yield new_world


def restored(world: World, *, entries_behind_the_head: int = 0) -> LogRestored:
    """Copy after three groups, lose four, and begin a new log. The node has proofs of all seven."""
    world.work("early", 3)
    world.follow()
    for number in range(entries_behind_the_head):
        world.ledger.append(world.now, "note", f"note:{number}", Outcome(NODE, b"", 0))
    backup(world.run.folder, world.folder / "copy.sqlite", world.now)
    world.work("late", 3)
    world.follow()
    world.work("later", 1)
    world.follow()
    assert set(world.marks().values()) == {1}
    world.lose(world.folder / "copy.sqlite")
    world.shown()
    return world.begin()


@pytest.mark.parametrize("behind", [0, 2])
def test_a_node_goes_over_to_the_new_log_and_lists_exactly_the_receipts_that_were_lost(
    world: World, behind: int
) -> None:
    document = restored(world, entries_behind_the_head=behind)
    assert (document.serial, document.number, document.known.number) == (1, 1, 3)
    assert document.size == 4 + behind
    world.follow()
    assert world.store.logs(world.run.id).serial == 1
    claims = world.leases("late", 3) | world.leases("later", 1)
    assert set(world.outbox.lost_leases()) == claims == set(world.store.claims())
    assert {lease for lease, mark in world.marks().items() if mark == CLAIM_RECEIPT} == claims
    world.work("new", 5)
    world.work("newest", 2)
    world.follow()
    newest = world.store.newest()
    assert newest is not None
    assert (newest.head.number, newest.head.log) == (3, world.logs.logs.newest)
    assert world.store.fork() is None
    assert {lease for lease, mark in world.marks().items() if mark == 1} == (
        world.leases("early", 3) | world.leases("new", 5) | world.leases("newest", 2)
    )
    assert world.exchange.watch.proofs.unproven == ""
    entry = world.ledger.find("restored:1")
    assert entry is not None
    assert msgspec.msgpack.decode(entry.facts)["log"] == world.logs.logs.newest
    assert (evidence(world.database), recorded_copy(world.database)) == ("", None)
    assert payout_hold.held_since(world.database) == document.restored


def test_a_node_that_joins_later_takes_the_newest_head_of_the_new_log(world: World, tmp_path: Path) -> None:
    restored(world)
    world.work("new", 2)
    world.store.close()
    world.store = world.exchange._store = LedgerStore(tmp_path / "joined.sqlite")
    world.exchange._receipt_proofs._store = world.exchange._forks._store = world.store
    world.follow()
    world.work("newest", 2)
    world.follow()
    newest = world.store.newest()
    assert newest is not None
    assert newest.head.number == 3


def test_heads_of_the_log_before_are_no_evidence_any_more_and_are_no_fork(world: World) -> None:
    old = []
    take = world.foreign._take
    world.foreign._take = lambda origin, sealed: (old.append(sealed), take(origin, sealed))[1]  # type: ignore[method-assign]
    restored(world)
    newest = world.store.newest()
    assert newest is not None
    world.foreign._take(Origin(NODE, NODE), newest.sealed)
    assert evidence(world.database) == ""
    world.work("new", 2)
    world.follow()
    one = world.exchange._open_head(newest.sealed)
    world.exchange._waiting[one.payload] = _ShownHead(one, set())
    asyncio.run(world.exchange._compare())
    assert world.exchange._waiting == {}
    assert world.store.fork() is None


def test_a_second_restore_begins_a_second_log_also_from_a_copy_before_the_first(world: World) -> None:
    first = restored(world)
    world.follow()
    world.work("new", 9)
    world.follow()
    world.lose(world.folder / "copy.sqlite")
    assert "lacks entry log.restored 1" in world.logs.behind()
    world.shown()
    second = world.begin()
    assert (second.serial, second.old, second.size) == (2, world.logs.logs.logs[0].id, first.size)
    assert world.logs.behind() == ""
    world.work("third", 4)
    world.follow()
    assert world.store.logs(world.run.id).serial == 2
    assert set(world.outbox.lost_leases()) == world.leases("late", 3) | world.leases("later", 1) | world.leases(
        "new", 9
    )
    assert {one for one, mark in world.marks().items() if mark == 1} == world.leases("early", 3) | world.leases(
        "third", 4
    )


def signed(world: World, document: LogRestored, key: Any = None) -> bytes:
    return seal(KIND, world.run.id, encode(document), key or load_key(world.run.folder.keys / "root.pem", None))


LIES: dict[str, dict[str, Any]] = {
    "more entries than the head shown covers": {"size": 99},
    "a serial that does not come next": {"serial": 2},
    "another log before": {"old": bytes(32)},
    "another root than the node's heads lead to": {"root": bytes(32)},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_document_that_does_not_follow_is_not_taken_and_the_node_goes_on(world: World, lie: str) -> None:
    document = restored(world, entries_behind_the_head=1)
    false = msgspec.structs.replace(document, **LIES[lie])
    genuine = world.answers
    world.answers = lambda request: msgspec.structs.replace(genuine(request), restored=[signed(world, false)])
    world.follow()
    assert world.store.logs(world.run.id).serial == 0
    assert world.store.fork() is None
    assert world.outbox.lost_leases() == []
    world.answers = genuine
    world.follow()
    assert world.store.logs(world.run.id).serial == 1


def test_the_ledgers_key_alone_begins_no_log(world: World) -> None:
    document = restored(world)
    genuine, forged = world.answers, signed(world, document, world.run.keys.ledger)
    for sealed in (forged, signed(world, document, generate_key())):
        world.answers = lambda request: msgspec.structs.replace(genuine(request), restored=[sealed])  # noqa: B023
        world.follow()
        assert world.store.logs(world.run.id).serial == 0


def test_two_documents_with_one_serial_are_evidence_and_end_the_node(world: World) -> None:
    document = restored(world)
    world.follow()
    other = msgspec.structs.replace(document, restored=document.restored + 1)
    genuine = world.answers
    world.answers = lambda request: msgspec.structs.replace(genuine(request), restored=[signed(world, other)])
    with pytest.raises(TrustFailure, match=r"two documents log.restored 1"):
        world.follow()
    assert world.store.fork() is not None


def test_a_coordinator_that_is_shown_two_documents_with_one_serial_says_so_and_goes_on_by_neither(world: World) -> None:
    document = restored(world)
    world.follow()
    other = msgspec.structs.replace(document, restored=document.restored + 1)
    paused = list[str]()
    foreign = ForeignHeads(
        world.run, world.database, None, paused.append, lambda: world.now, lambda: world.logs.logs  # type: ignore[arg-type]
    )  # fmt: skip
    own = world.logs.logs.logs[0].sealed
    for shown in ([own, own], [own, signed(world, other, generate_key())], [b"noise"]):
        foreign.on_evidence(NODE, shown)
    assert (evidence(world.database), paused) == ("", [])
    foreign.on_evidence(NODE, [own, signed(world, other)])
    foreign.on_evidence(NODE, [signed(world, other)])
    (why,) = paused
    assert "signed two documents log.restored 1" in why
    assert evidence(world.database) == why == ledger_view(world.database).foreign
    world.heads.holds = world.foreign.holds
    world.ledger.append(world.now, "note", "note:after", Outcome(NODE, b"", 0))
    assert world.heads.tick(world.now + 10 * RESTORED_QUIET_MS, at_once=True) is None, "a head was signed"


def test_two_documents_count_as_long_as_both_signatures_do(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    document = restored(world)
    other = msgspec.structs.replace(document, restored=document.restored + 1)
    world.foreign.on_evidence(NODE, [signed(world, other)])
    assert world.foreign.holds(world.now + 10 * RESTORED_QUIET_MS)
    assert "two documents" in evidence(world.database)
    (root,) = world.run.chain[-1].roles["root"].keys
    revoking = msgspec.structs.replace(world.run.chain[-1], serial=world.run.chain[-1].serial + 1, revoked={root: 0})
    monkeypatch.setattr(world.run, "chain", (*world.run.chain, revoking))
    assert not world.foreign.holds(world.now + 10 * RESTORED_QUIET_MS)
    assert evidence(world.database) == ""


def test_a_document_taken_before_changes_nothing_when_it_is_shown_again(world: World) -> None:
    document = restored(world)
    world.follow()
    genuine = world.answers
    world.answers = lambda request: msgspec.structs.replace(genuine(request), restored=[signed(world, document)])
    world.work("new", 2)
    world.follow()
    world.follow()
    newest = world.store.newest()
    assert newest is not None
    assert newest.head.number == 2


def test_no_log_is_requested_without_a_copy_or_without_a_later_head(world: World) -> None:
    request = world.folder / "request"
    world.work("early", 3)
    with pytest.raises(LocalFault, match="no copy that waits for a new log"):
        log_commands.request(world.run.folder.path, request)
    backup(world.run.folder, world.folder / "copy.sqlite", world.now)
    world.lose(world.folder / "copy.sqlite")
    with pytest.raises(LocalFault, match="goes on by itself"):
        log_commands.request(world.run.folder.path, request)


def test_an_answer_to_an_earlier_restore_is_not_installed(world: World) -> None:
    world.work("early", 3)
    world.follow()
    backup(world.run.folder, world.folder / "copy.sqlite", world.now)
    world.work("late", 3)
    world.follow()
    world.lose(world.folder / "copy.sqlite")
    world.shown()
    request = world.folder / "request"
    log_commands.request(world.run.folder.path, request)
    log_commands.sign(request, world.run.folder.keys, None, lambda lines: True)
    world.lose(world.folder / "copy.sqlite")
    with pytest.raises(LocalFault, match="write a new request"):
        log_commands.install(world.run.folder.path, request.with_name("request.signed"))
    document = open_log(request.with_name("request.signed").read_bytes(), world.run.chain).document
    thief = world.folder / "thief"
    thief.write_bytes(signed(world, document, world.run.keys.ledger))
    with pytest.raises(Untrusted, match="0 of 1 required signatures"):
        log_commands.install(world.run.folder.path, thief)


def replayed(folder: Path) -> tuple[int, bytes]:
    """Return exit status and output of the second replayer."""
    ran = subprocess.run([sys.executable, ROOT / "tests/replayer/replay.py", folder], capture_output=True, check=False)
    return ran.returncode, ran.stdout


@pytest.mark.slow
def test_the_export_of_a_restored_ledger_verifies_and_both_replayers_agree(world: World) -> None:
    document = restored(world, entries_behind_the_head=1)
    world.work("new", 2)
    world.follow()
    world.work("newer", 2)
    folder = world.folder / "export"
    export(world.run.folder, folder)
    audited = audit(folder)
    assert (audited.heads, audited.logs) == (3, [document.size])
    first = replay(folder)
    assert first.audit == audited
    assert replayed(folder) == (0, first.state.as_bytes())
    changed = {
        "another document": [signed(world, msgspec.structs.replace(document, restored=1))],
        "the ledger's key": [signed(world, document, world.run.keys.ledger)],
        "none": [],
    }
    for documents in changed.values():
        (folder / "restored").write_bytes(msgspec.msgpack.encode(documents))
        (folder / "SHA256SUMS").write_text(sums(folder))
        with pytest.raises((Untrusted, Tampered)):
            audit(folder)
        assert replayed(folder)[0] == 81


def test_evidence_kept_is_the_newest_head_that_a_node_shows(world: World) -> None:
    world.work("early", 3)
    world.follow()
    backup(world.run.folder, world.folder / "copy.sqlite", world.now)
    world.work("late", 3)
    world.follow()
    first = world.store.newest()
    world.work("later", 3)
    world.follow()
    second = world.store.newest()
    assert first is not None
    assert second is not None
    world.lose(world.folder / "copy.sqlite")
    for one in (first, second, first):
        world.foreign._take(Origin(NODE, NODE), one.sealed)
    assert world.database.fact(FOREIGN_HEAD_FACT) == second.sealed
