"""Nodes as witnesses of the ledger: they keep its heads, prove their receipts, and find a ledger with two histories."""

import contextlib
import sqlite3
from pathlib import Path

import anyio
import msgspec
import pytest

from echo2.coordinator.accounts.fork_evidence import evidence
from echo2.coordinator.accounts.head_signing import LedgerHeads
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.daemon import Coordinator
from echo2.coordinator.database.database import Database
from echo2.coordinator.ledger_files.ledger_export import export
from echo2.coordinator.run import keys_commands
from echo2.coordinator.run.sealing import Sealer
from echo2.coordinator.run.setup import Run
from echo2.ledger.export_replay import replay
from echo2.ledger.ledger_audit import audit
from echo2.ledger.ledger_facts import Remark
from echo2.node.control.stored_fork import check_no_fork
from echo2.node.errors import TrustFailure
from echo2.node.rollouts import receipts
from echo2.node.rollouts.fork_notices import FORK_END_SECONDS
from echo2.node.trust import proof_watch
from echo2.node.trust.ledger_store import LedgerStore
from echo2.node.trust.ledger_witness import WitnessedHead
from echo2.p2p.envelope import decode_unverified, join, seal
from echo2.p2p.handlers import Handlers
from echo2.p2p.identity import generate_key, peer_id, public_bytes
from echo2.p2p.wire_types import encode
from echo2.protocol.ledger_heads import LedgerRequest, LedgerResponse
from echo2.protocol.methods import LEDGER
from echo2.runtime.control_client import socket_path
from echo2.runtime.exception_groups import leaves
from echo2.runtime.exit_codes import Exit
from tests.support.clock import on_fake_clock, run_fake
from tests.support.fake_coordinator import Node, make_node, until
from tests.support.second_replayer import replayed_apart
from tests.support.swarm import make_swarm, wall, working


def heads_of(node: Node) -> int:
    newest = node.daemon.ledger_store.newest()
    return 0 if newest is None else newest.head.number


def fork_of(home: Path) -> str | None:
    (path,) = home.rglob("ledger.sqlite")
    with contextlib.closing(LedgerStore(path)) as store:
        return store.fork()


def milliseconds() -> int:
    return int(wall() * 1000)


@pytest.mark.usefixtures("slow_ticks")
@pytest.mark.slow
@on_fake_clock
async def test_a_node_keeps_every_head_and_proves_its_receipts(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path, steps=400, ledger={"head_seconds": 60})
    alice, bob = swarm.node("alice"), swarm.node("bob")
    async with swarm.coordinating(), working(alice, bob):
        await until(lambda: min(heads_of(alice), heads_of(bob)) >= 3, 900)
        await until(lambda: alice.daemon.ledger_store.count_proved() and bob.daemon.ledger_store.count_proved(), 120)
    for node in (alice, bob):
        checked = receipts.verify_receipts(swarm.on_disk(node), None)
        check_no_fork(node.home)
        assert checked.faults == []
        assert checked.heads >= 3
        assert 0 < checked.proved <= checked.good
    with contextlib.closing(sqlite3.connect(*alice.home.rglob("outbox.sqlite"))) as outbox:
        query = "SELECT lease, lengths FROM submissions WHERE proved = 1 AND state = 'accepted' LIMIT 1"
        lease, stored = outbox.execute(query).fetchone()
        prompt, turns = msgspec.msgpack.decode(stored)
        longer = msgspec.msgpack.encode([prompt, [[turns[0][0] + 1], *turns[1:]]])
        outbox.execute("UPDATE submissions SET lengths = ? WHERE lease = ?", (longer, lease))
        outbox.commit()
    (fault,) = receipts.verify_receipts(alice.home, None).faults
    assert fault.startswith(lease.hex())
    assert "states other lengths than those of this node's group" in fault
    export(swarm.run.folder, tmp_path / "export")
    audited = audit(tmp_path / "export")
    assert audited.heads > 3
    assert audited.entries == audited.covered, "the last head is signed as the coordinator stops"
    assert replayed_apart(tmp_path / "export") == replay(tmp_path / "export").state.as_bytes()


@pytest.mark.usefixtures("slow_ticks")
@pytest.mark.slow
@on_fake_clock
async def test_a_node_follows_heads_of_a_key_that_was_revoked_while_it_was_away(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path, steps=400, ledger={"head_seconds": 20})
    key, run = generate_key(), tmp_path / "run"

    def life() -> Node:
        return make_node(swarm.network, tmp_path / "node", swarm.invite(), key=key, local=milliseconds)

    node, other = life(), swarm.node("other")
    async with swarm.coordinating():
        async with working(node):
            await until(lambda: heads_of(node) >= 1, 900)
            before, proved = heads_of(node), node.daemon.ledger_store.count_proved()
        async with working(other):
            await until(lambda: heads_of(other) >= before + 2, 900)
    socket_path(run).unlink(missing_ok=True)
    keys_commands.change(run, "ledger", now=milliseconds(), secret=None, since=milliseconds())
    again = life()
    async with swarm.coordinating(), working(again):
        await until(lambda: heads_of(again) >= before + 4 and again.daemon.ledger_store.count_proved() > proved, 900)
    assert receipts.verify_receipts(swarm.on_disk(again), None).faults == []
    export(swarm.run.folder, tmp_path / "export")
    assert audit(tmp_path / "export").heads > before + 3


@pytest.mark.slow
@on_fake_clock
async def test_a_node_that_ends_with_its_run_has_a_proof_for_every_receipt(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path, steps=12)
    node = swarm.node("alice")
    async with swarm.coordinating():
        await node.daemon.run()
    checked = receipts.verify_receipts(swarm.on_disk(node), None)
    assert checked.faults == []
    assert checked.proved == checked.good > 0


class TwoFaced:
    """A coordinator that shows a peer another history of its ledger, signed with the same keys."""

    def __init__(self, run: Run, coordinator: Coordinator, folder: Path, deceived: str) -> None:
        real = coordinator.ledger_heads
        self._real, self._deceived, self._shown = real, deceived, coordinator.foreign_heads.on_evidence
        self._database = Database.open(folder / "other.sqlite")
        sealer, self._ledger = Sealer(run), Ledger(self._database)
        self._other = LedgerHeads(self._database, self._ledger, run.id, sealer, sealer.note, every=1)

    async def answer(self, peer: str, request: LedgerRequest) -> LedgerResponse:
        self._shown(peer, request.fork)
        if peer != self._deceived:
            return LedgerResponse(heads=self._real.heads_after(request.after))
        newest = self._real.newest()
        if newest is not None and self._ledger.tip().entries < newest.head.size:
            for number in range(self._ledger.tip().entries, newest.head.size):
                self._ledger.append(
                    1, "node.noted", f"other:{number}", Remark(node=self._deceived, why="another history")
                )
            self._other.sign(newest.head.issued)
        return LedgerResponse(heads=self._other.heads_after(request.after))


class Copying:
    """A coordinator that answers some peers with copies of its heads: another signature stands beside the ledger's."""

    def __init__(self, run: Run, real: LedgerHeads, deceived: str) -> None:
        self._run, self._real, self._deceived = run, real, deceived
        self._key = generate_key()

    async def answer(self, peer: str, request: LedgerRequest) -> LedgerResponse:
        heads = self._real.heads_after(request.after)
        if peer == self._deceived:
            heads = [msgspec.structs.replace(one, sealed=self._copy(one.sealed)) for one in heads]
        return LedgerResponse(heads=heads, proofs=self._real.proofs(request.entries, request.size))

    def _copy(self, sealed: bytes) -> bytes:
        envelope = decode_unverified(sealed)
        other = seal(envelope.kind, envelope.run, envelope.payload, self._key)
        return join([other, sealed], [public_bytes(self._key), *(one.key for one in envelope.signatures)])


class Withholding:
    """A coordinator that answers some peers with heads that lack their proof, and proves no entry to anybody."""

    def __init__(self, real: LedgerHeads) -> None:
        self._real = real
        self.deceived: set[str] = set()
        self.proves = False

    async def answer(self, peer: str, request: LedgerRequest) -> LedgerResponse:
        heads = self._real.heads_after(request.after)
        if peer in self.deceived:
            heads = [msgspec.structs.replace(one, consistency=[bytes(32)]) for one in heads]
        proofs = self._real.proofs(request.entries, request.size) if self.proves else []
        return LedgerResponse(heads=heads, proofs=proofs, every=self._real.every)


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> list[Handlers]:
    """Return the tables of handlers in the order in which they are made, the coordinator's first."""
    tables: list[Handlers] = []
    make = Handlers.__init__

    def noted(self: Handlers) -> None:
        make(self)
        tables.append(self)

    monkeypatch.setattr(Handlers, "__init__", noted)
    return tables


@pytest.mark.slow
@on_fake_clock
async def test_a_head_whose_proof_does_not_hold_is_taken_from_another_peer_and_missing_proofs_stop_leases_in_the_end(
    tmp_path: Path, tables: list[Handlers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof_watch, "STOP_MS", 300_000)
    swarm = make_swarm(tmp_path, steps=4000, ledger={"head_seconds": 20})
    async with swarm.coordinating() as coordinator:
        alice, bob = swarm.node("alice"), swarm.node("bob")
        withholding = Withholding(coordinator.ledger_heads)
        LEDGER.serve(tables[0], withholding.answer)
        async with working(alice, bob):
            await until(lambda: min(heads_of(alice), heads_of(bob)) >= 1, 900)
            withholding.deceived.add(peer_id(bob.daemon.context.node))
            reached = heads_of(bob)
            await until(lambda: heads_of(bob) >= reached + 2, 900)
            watch = bob.daemon.ledger_exchange.watch
            await until(lambda: watch.proofs.unproven, 900)
            assert "receipts have no proof" in watch.proofs.unproven
            assert (await bob.daemon.commands.why({}))["unproven"] == watch.proofs.unproven
            done = bob.daemon.rollouts.done
            await until(lambda: bob.daemon.rollouts.done > done, 60)
            await until(lambda: bob.daemon.run_state.withheld, 900)
            stops = "no new lease is requested: the run's ledger is unproven"
            await until(lambda: bob.daemon.rollouts.blocked.startswith(stops), 60)
            assert (await bob.daemon.commands.status({}))["blocked"] == bob.daemon.rollouts.blocked
            withholding.proves = True
            fetched = await bob.daemon.commands.fetch({})
            assert fetched["fetched"] == fetched["proved"] > 0
            assert (fetched["unproven"], bob.daemon.run_state.withheld) == ("", "")
            done = bob.daemon.rollouts.done
            await until(lambda: bob.daemon.rollouts.done > done, 60)


@pytest.mark.usefixtures("slow_ticks")
@pytest.mark.slow
@on_fake_clock
async def test_a_coordinator_notices_a_signed_head_that_it_does_not_have(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path, steps=4000, ledger={"head_seconds": 20})
    node = swarm.node("alice")
    async with swarm.coordinating() as coordinator, working(node):
        await until(lambda: heads_of(node) >= 2, 900)
        assert evidence(coordinator.group_service.database) == ""
        newest = node.daemon.ledger_store.newest()
        later = msgspec.structs.replace(newest.head, number=9, size=newest.head.size + 99, root=bytes(32))
        sealed = Sealer(swarm.run)("ledgerhead", encode(later))
        node.daemon.ledger_store.put(WitnessedHead(later, sealed), 0)
        node.daemon.connectivity.coordinator_client.drop_connection("a test")
        await until(lambda: evidence(coordinator.group_service.database), 60)
        assert "LedgerHead 9 over" in evidence(coordinator.group_service.database)
        assert "an older copy; restore a later one" in coordinator.view_builder.build().ledger.foreign


@pytest.mark.slow
@on_fake_clock
async def test_a_node_that_was_handed_copies_of_heads_follows_them_and_the_heads_of_other_peers(
    tmp_path: Path, tables: list[Handlers]
) -> None:
    swarm = make_swarm(tmp_path, steps=4000, ledger={"head_seconds": 20})
    async with swarm.coordinating() as coordinator:
        alice, bob = swarm.node("alice"), swarm.node("bob")
        copying = Copying(swarm.run, coordinator.ledger_heads, peer_id(bob.daemon.context.node))
        LEDGER.serve(tables[0], copying.answer)
        async with working(alice, bob):
            await until(lambda: min(heads_of(alice), heads_of(bob)) >= 3, 900)
            copied = bob.daemon.ledger_store.newest()
            assert len(decode_unverified(copied.sealed).signatures) == 2
            LEDGER.serve(tables[0], Withholding(coordinator.ledger_heads).answer)
            reached = heads_of(bob)
            await until(lambda: heads_of(bob) >= reached + 2, 900)
            assert evidence(coordinator.group_service.database) == ""
            assert alice.daemon.ledger_store.fork() is bob.daemon.ledger_store.fork() is None


@on_fake_clock
async def test_two_nodes_that_were_shown_two_histories_find_it_and_stop(tmp_path: Path, tables: list[Handlers]) -> None:
    swarm = make_swarm(tmp_path, steps=4000, ledger={"head_seconds": 20})
    async with swarm.coordinating() as coordinator:
        alice, bob = swarm.node("alice"), swarm.node("bob")
        two_faced = TwoFaced(swarm.run, coordinator, tmp_path, peer_id(bob.daemon.context.node))
        LEDGER.serve(tables[0], two_faced.answer)
        with pytest.raises(BaseExceptionGroup) as caught:
            async with working(alice, bob):
                await until(lambda: alice.daemon.ledger_store.fork() and bob.daemon.ledger_store.fork(), 3600)
        finder = next(one for one in leaves(caught.value) if isinstance(one, TrustFailure))
        assert finder.exit is Exit.TRUST
        assert "signed two histories" in str(finder)
        again = next(node for node in (alice, bob) if fork_of(node.home) is not None)
        swarm.nodes.clear()
        with pytest.raises(TrustFailure, match="signed two histories"):
            check_no_fork(swarm.on_disk(again))
        with pytest.raises(TrustFailure, match="signed two histories"):
            await swarm.node(again.home.name).daemon.run()


async def ended_by_fork(node: Node, ended: list[Node]) -> None:
    """Run a node until a fork ends it."""
    with pytest.raises(TrustFailure, match="signed two histories"):
        await node.daemon.run()
    ended.append(node)


@pytest.mark.slow
@on_fake_clock
async def test_the_one_node_that_saw_another_history_is_told_of_to_the_coordinator_and_to_all_before_the_finder_ends(
    tmp_path: Path, tables: list[Handlers]
) -> None:
    swarm = make_swarm(tmp_path, steps=4000, ledger={"head_seconds": 20})
    async with swarm.coordinating() as coordinator:
        nodes = [swarm.node(name) for name in ("alice", "bob", "carol")]
        two_faced = TwoFaced(swarm.run, coordinator, tmp_path, peer_id(nodes[2].daemon.context.node))
        LEDGER.serve(tables[0], two_faced.answer)
        ended: list[Node] = []
        async with anyio.create_task_group() as tasks:
            for node in nodes:
                tasks.start_soon(ended_by_fork, node, ended)
            await until(lambda: any(node.daemon.run_state.withheld for node in nodes), 3600)
            since = wall()
            await until(lambda: coordinator.view_builder.build().ledger.foreign, FORK_END_SECONDS)
            await until(lambda: len(ended) == len(nodes), 3 * FORK_END_SECONDS)
            assert wall() - since < 2 * FORK_END_SECONDS
        assert all(fork_of(node.home) for node in nodes)
        said = coordinator.view_builder.build().ledger.foreign
        assert "two histories are signed" in said
        database = coordinator.group_service.database
        database.do("DELETE FROM facts WHERE name = 'foreign_head'")
        assert evidence(database) == ""
        again = swarm.node("alice")
        await ended_by_fork(again, ended)
        assert evidence(database) == said, "told again at the next start"
        assert again.daemon.rollouts.done == 0


@pytest.mark.parametrize("revoke", [True, False], ids=["revoked", "rotated"])
@pytest.mark.slow
def test_a_fork_by_a_stolen_key_is_settled_by_a_root_that_revokes_it_and_by_no_other(
    tmp_path: Path, tables: list[Handlers], revoke: bool
) -> None:
    """Bob holds several heads of the thief, and none of the run's own, when it starts again."""

    async def main() -> None:
        swarm, run = make_swarm(tmp_path, steps=4000, ledger={"head_seconds": 20}), tmp_path / "run"
        ended: list[Node] = []
        keys = {name: generate_key() for name in ("alice", "bob")}
        async with swarm.coordinating() as coordinator:
            two_faced = TwoFaced(swarm.run, coordinator, tmp_path, peer_id(public_bytes(keys["bob"])))
            LEDGER.serve(tables[0], two_faced.answer)
            async with working(bob := swarm.node("bob", key=keys["bob"])):
                await until(lambda: heads_of(bob) >= 2, 900)
            nodes = [swarm.node(name, key=key) for name, key in keys.items()]
            async with anyio.create_task_group() as tasks:
                for node in nodes:
                    tasks.start_soon(ended_by_fork, node, ended)
        assert [fork_of(node.home) is None for node in nodes] == [False, False]
        socket_path(run).unlink(missing_ok=True)
        since = milliseconds() if revoke else None
        keys_commands.change(run, "ledger", now=milliseconds(), secret=None, since=since)
        swarm.nodes.clear()
        async with swarm.coordinating() as coordinator:
            again = [swarm.node(name, key=key) for name, key in keys.items()]
            if not revoke:
                for node in again:
                    await ended_by_fork(node, ended)
                return
            async with working(*again):
                reached = [heads_of(node) for node in again]
                await until(
                    lambda: (
                        all(heads_of(node) > old for node, old in zip(again, reached, strict=True))
                        and all(node.daemon.rollouts.done and node.daemon.ledger_store.count_proved() for node in again)
                    ),
                    3600,
                )
                for node in again:
                    (told,) = (await node.daemon.commands.why({}))["settled_forks"]
                    assert "signed two histories" in told
                    newest = node.daemon.ledger_store.newest()
                    own = coordinator.ledger_heads.heads_after(newest.head.number - 1)
                    assert newest.sealed == own[0].sealed, "the node follows another history"
            assert evidence(coordinator.group_service.database) == ""
        assert [fork_of(node.home) for node in again] == [None, None]
        check_no_fork(swarm.on_disk(again[1]))
        assert receipts.verify_receipts(again[1].home, None).faults == []

    run_fake(main)
