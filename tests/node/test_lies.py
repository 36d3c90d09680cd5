"""False documents, leases and answers: the node keeps its version, and reports the reason."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from benchmarks.memory_network.transport import MemoryNetwork
from echo2.p2p.envelope import seal, verify_envelope
from echo2.p2p.identity import generate_key, public_bytes
from echo2.p2p.peer.peer import Peer
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.leases import Lease, LeaseRequest
from echo2.weights.documents import Edge
from tests.support.bigram import random_table, write_table
from tests.support.clock import run_fake
from tests.support.fake_coordinator import HEAD_LIFE, FakeCoordinator, Node, make_node, until


@asynccontextmanager
async def holding(tmp_path: Path, version: int = 1) -> AsyncIterator[tuple[FakeCoordinator, Node, MemoryNetwork]]:
    """Run a node that has loaded `version` of an honest coordinator."""
    network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
    async with coordinator.serving(network):
        for number in range(version + 1):
            await coordinator.publish(number)
        node = make_node(network, tmp_path / "node", coordinator.invite())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.daemon.run)
            await until(lambda: node.daemon.engine.current and node.daemon.engine.current.version == version)
            yield coordinator, node, network
            tasks.cancel_scope.cancel()


async def _forged_head(coordinator: FakeCoordinator) -> None:
    await coordinator.publish(9, key=generate_key())


async def _rollback(coordinator: FakeCoordinator) -> None:
    await coordinator.announce(0)


async def _expired_head(coordinator: FakeCoordinator) -> None:
    await coordinator.publish(9, expires=coordinator.now() - 1)


async def _fast_forward(coordinator: FakeCoordinator) -> None:
    await coordinator.announce(1, version=1 << 40)


async def _unknown_version_document(coordinator: FakeCoordinator) -> None:
    await coordinator.announce(1, version=2, version_hash=b"v" * 32)


async def _unsigned_edge(coordinator: FakeCoordinator) -> None:
    coordinator.sealed_edge = lambda edge: seal("edge", coordinator.run, edge.to_bytes())  # type: ignore[method-assign]
    await coordinator.publish(2)


async def _edge_by_the_channel_key(coordinator: FakeCoordinator) -> None:
    keys = coordinator.keys
    coordinator.sealed_edge = lambda edge: seal("edge", coordinator.run, edge.to_bytes(), keys.channel)  # type: ignore[method-assign]
    await coordinator.publish(2)


async def _version_by_the_channel_key(coordinator: FakeCoordinator) -> None:
    keys = coordinator.keys
    coordinator.sealed_version = lambda one: seal("version", coordinator.run, one.to_bytes(), keys.channel)  # type: ignore[method-assign]
    await coordinator.publish(2)


async def _wrong_root_in_the_edge(coordinator: FakeCoordinator) -> None:
    """The payload decodes to other weights than the Edge and Version name, which are correctly signed."""
    true_root = coordinator.sealed_edge

    def lie(edge: Edge) -> bytes:
        return true_root(msgspec.structs.replace(edge, root=b"x" * 32))

    coordinator.sealed_edge = lie  # type: ignore[method-assign]
    await coordinator.publish(2)


async def _endless_payload(coordinator: FakeCoordinator) -> None:
    """The Edge states far more bytes than any peer serves."""
    honest = coordinator.sealed_edge

    def lie(edge: Edge) -> bytes:
        return honest(msgspec.structs.replace(edge, length=1 << 50, chunk_size=1 << 20))

    coordinator.sealed_edge = lie  # type: ignore[method-assign]
    await coordinator.publish(2)


async def _payload_beyond_the_disk(coordinator: FakeCoordinator) -> None:
    """Before, a node fetched it until its disk was full, whatever its owner had set."""
    honest = coordinator.sealed_edge

    def lie(edge: Edge) -> bytes:
        return honest(msgspec.structs.replace(edge, length=1 << 39, chunk_size=1 << 20))

    coordinator.sealed_edge = lie  # type: ignore[method-assign]
    await coordinator.publish(2)


async def _garbage_by_gossip(coordinator: FakeCoordinator) -> None:
    assert coordinator.peer is not None
    await coordinator.peer.publish(f"echo2/{coordinator.run.hex()}/head", b"\xc1" * 500)


FALSE_WEIGHTS: dict[str, tuple[Callable[[FakeCoordinator], Awaitable[None]], str]] = {
    "a Head that a stranger signed": (_forged_head, "required signatures"),
    "a Head that goes back": (_rollback, "goes back"),
    "a Head whose life is over": (_expired_head, "expired"),
    "a Head that leaps forward without a Version": (_fast_forward, "era and number are not the Head's"),
    "a Head that names a Version nobody has": (_unknown_version_document, "documents are at no peer"),
    "an Edge that nobody signed": (_unsigned_edge, "required signatures"),
    "an Edge that the channel key signed": (_edge_by_the_channel_key, "required signatures"),
    "a Version that the channel key signed": (_version_by_the_channel_key, "required signatures"),
    "an Edge to another root than the Version's": (_wrong_root_in_the_edge, "another root"),
    "an Edge that promises endless data": (_endless_payload, ""),
    "an Edge beyond the owner's disk": (_payload_beyond_the_disk, "take 550 GB, and this node may use 50 GB of disk"),
    "garbage instead of a Head": (_garbage_by_gossip, "not a sealed document"),
}


@pytest.mark.parametrize("lie", FALSE_WEIGHTS)
@pytest.mark.slow_for("an Edge that promises endless data")
def test_a_false_document_about_weights_leaves_the_loaded_version(tmp_path: Path, lie: str) -> None:
    tell, said = FALSE_WEIGHTS[lie]

    async def main() -> None:
        async with holding(tmp_path) as (coordinator, node, _):
            current = node.daemon.engine.current
            await tell(coordinator)
            heard = lambda: [s for s in node.daemon.follower.refused if said in s]  # noqa: E731
            if said:
                await until(heard)
            else:
                await anyio.sleep(90)
            assert node.daemon.engine.current == current
            worked = node.daemon.rollouts.done
            await until(lambda: node.daemon.rollouts.done > worked)

    run_fake(main)


def test_a_node_recovers_as_soon_as_valid_documents_arrive(tmp_path: Path) -> None:
    async def main() -> None:
        async with holding(tmp_path) as (coordinator, node, _):
            honest = coordinator.sealed_edge
            await _unsigned_edge(coordinator)
            await until(lambda: any("signatures" in s for s in node.daemon.follower.refused))
            coordinator.sealed_edge = honest  # type: ignore[method-assign]
            del coordinator.edges[-1], coordinator.snapshots[2], coordinator.published[2]
            await coordinator.publish(3)
            await until(lambda: node.daemon.engine.current.version == 3)

    run_fake(main)


def _lease_lie(**changes: object) -> Callable[[FakeCoordinator], None]:
    def install(coordinator: FakeCoordinator) -> None:
        honest = coordinator.make_lease

        def lying(node: bytes, ask: LeaseRequest, /, **rest: object) -> Lease:
            return honest(node, ask, **{**changes, **rest})

        coordinator.make_lease = lying  # type: ignore[method-assign]

    return install


def _unsigned_lease(coordinator: FakeCoordinator) -> None:
    coordinator.sealed_lease = lambda lease: seal("lease", coordinator.run, encode(lease), generate_key())  # type: ignore[method-assign]


def _replayed_lease(coordinator: FakeCoordinator) -> None:
    """Answer every request with the first lease."""
    old = next(iter(coordinator.leases.values()))
    coordinator.make_lease = lambda node, ask, **_: old  # type: ignore[method-assign]


FALSE_LEASES: dict[str, tuple[Callable[[FakeCoordinator], None], str]] = {
    "a lease that a stranger signed": (_unsigned_lease, "signatures"),
    "a lease of before": (_replayed_lease, "another request"),
    "a lease for another node": (_lease_lie(node=b"n" * 32), "another node"),
    "a lease for an older version": (_lease_lie(version=0), "is loaded"),
    "a lease for another root": (_lease_lie(root=b"x" * 32), "is loaded"),
    "a lease for another era": (_lease_lie(era=7), "is loaded"),
    "a lease for a task that is not the run's": (_lease_lie(task="mining"), "not the run's"),
    "a lease without samples enough": (_lease_lie(seeds=[b"s" * 16]), "seeds"),
    "a lease of a thousand samples": (_lease_lie(seeds=[i.to_bytes(16, "big") for i in range(1000)]), "seeds"),
    "a lease with one seed twice": (_lease_lie(seeds=[b"s" * 16] * 2), "seeds"),
    "a lease of endless rollouts": (_lease_lie(limit=1 << 40), "tokens per rollout"),
    "a lease of no tokens": (_lease_lie(limit=0), "tokens per rollout"),
    "a lease with an empty prompt": (_lease_lie(prompt=[]), "prompt"),
    "a lease with tokens of another model": (_lease_lie(prompt=[2, 1 << 20]), "prompt"),
    "a lease that has expired": (_lease_lie(expires=1), "expired"),
}


@pytest.mark.parametrize("lie", FALSE_LEASES)
@pytest.mark.slow_for(
    "a lease with tokens of another model", "a lease for an older version", "a lease with one seed twice"
)
def test_a_node_does_not_work_for_a_false_lease(tmp_path: Path, lie: str) -> None:
    install, said = FALSE_LEASES[lie]

    async def main() -> None:
        async with holding(tmp_path) as (coordinator, node, _):
            await until(lambda: node.daemon.rollouts.done >= 1)
            honest, sealed = coordinator.make_lease, coordinator.sealed_lease
            before = dict(coordinator.leases)
            install(coordinator)
            await until(lambda: said in node.daemon.rollouts.blocked)
            worked = node.daemon.rollouts.done
            await anyio.sleep(10)
            assert node.daemon.rollouts.done == worked
            assert set(coordinator.submitted) <= set(before) | set(coordinator.leases)
            coordinator.make_lease, coordinator.sealed_lease = honest, sealed  # type: ignore[method-assign]
            await until(lambda: node.daemon.rollouts.done > worked)

    run_fake(main)


def test_a_node_does_not_accept_a_false_receipt(tmp_path: Path) -> None:
    async def main() -> None:
        async with holding(tmp_path) as (coordinator, node, _):
            coordinator.keys.ledger, ledger = generate_key(), coordinator.keys.ledger
            await until(lambda: any("false answer" in s for s in node.coordinator_client.lies))
            for row in node.daemon.outbox.rows():
                if row.receipt is not None:
                    verify_envelope(row.receipt, "receipt", coordinator.run, {public_bytes(ledger)})
            coordinator.keys.ledger = ledger
            coordinator.decided.clear()
            await until(lambda: node.daemon.outbox.counts().get("accepted", 0) > 3)
            assert set(coordinator.submitted) <= set(coordinator.leases)

    run_fake(main)


def test_peers_that_serve_false_documents_cost_time_and_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        async with holding(tmp_path) as (coordinator, node, network):
            from echo2.protocol.requests import DocumentsRequest, DocumentsResponse
            from echo2.protocol.versions import HeadResponse

            liar = Peer(network.transport("liar"), seed=3)
            other = write_table(tmp_path / "other.safetensors", random_table(99))

            async def documents(peer: str, data: bytes) -> bytes:
                return encode(DocumentsResponse(documents=[other.root] * len(decode(data, DocumentsRequest).hashes)))

            async def head(peer: str, data: bytes) -> bytes:
                return encode(HeadResponse(head=b"\x00" * 4000))

            liar.serve("documents", documents, limit=1 << 16)
            liar.serve("head", head, limit=1 << 16)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(liar.run)
                await liar.ready()
                await liar.dial([f"/memory/0/p2p/{node.peer_id}"])
                await coordinator.publish(2)
                await until(lambda: node.daemon.engine.current.version == 2)
                await node.daemon.follower.heads.search()
                assert any("liar" in s for s in node.daemon.follower.refused)
                tasks.cancel_scope.cancel()

    run_fake(main)


@pytest.mark.slow
def test_a_node_notices_and_reports_a_frozen_view_of_the_run(tmp_path: Path) -> None:
    """A coordinator repeats one old Head without end: the node trusts it no longer than its life."""

    async def main() -> None:
        async with holding(tmp_path) as (coordinator, node, _):
            old = coordinator.head
            assert old is not None
            await anyio.sleep(HEAD_LIFE / 1000 + 1)
            assert not await node.daemon.follower.heads.hear("somebody", old)
            assert any("expired" in s or "goes back" in s for s in node.daemon.follower.refused)

    run_fake(main)
