"""The network identity is replaced: the former one tells nodes where the coordinator is now, and nothing else."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.daemon import Coordinator
from echo2.coordinator.run import keys, keys_commands
from echo2.coordinator.run.former_identity import FormerIdentity, former_of
from echo2.coordinator.run.setup import Run
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.discovery.operator_addresses import SPREAD_SECONDS
from echo2.p2p.errors import Unreachable
from echo2.p2p.identity import generate_key, peer_id, public_bytes, write_key
from echo2.p2p.peer.peer import Peer
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.methods import DOCUMENTS, HEAD, HELLO, LEASE
from echo2.protocol.requests import DocumentsRequest, Response
from echo2.protocol.versions import HeadRequest
from echo2.runtime.control_client import socket_path
from echo2.runtime.errors import LocalFault
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import Node, make_node, until
from tests.support.swarm import Swarm, accepted, make_swarm, wall, working

DAY = 24 * 3600_000


def now() -> int:
    return int(wall() * 1000)


def moved(swarm: Swarm, role: str = "network", since: int | None = None) -> str:
    """Run the operator's command while no coordinator runs."""
    socket_path(swarm.folder / "run").unlink(missing_ok=True)
    return "\n".join(keys_commands.change(swarm.folder / "run", role, now=now(), secret=None, since=since))


def node_of(swarm: Swarm, name: str, invite: Invite, key: Ed25519PrivateKey) -> Node:
    home = swarm.folder / name
    if not (home / "node.key").exists():
        write_key(home / "node.key", key)
    return make_node(swarm.network, home, invite, key=key, local=now)


def listening(run: Run) -> Run:
    """Return the run with an address for its former identity."""
    network = run.config.network.model_copy(update={"former_listen": ("/ip4/127.0.0.1/tcp/4310",)})
    return replace(run, config=run.config.model_copy(update={"network": network}))


@asynccontextmanager
async def former(swarm: Swarm, coordinator: Coordinator) -> AsyncIterator[Peer]:
    """Let the former identity answer during the block; yield its peer."""
    run = listening(swarm.run)
    found = former_of(run, now(), None)
    own = peer_id(public_bytes(found.key))
    peer = Peer(swarm.network.transport(own), seed=3)
    FormerIdentity(run, coordinator.newest_head).serve(peer.handlers)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(peer.run)
        await peer.ready()
        yield peer
        tasks.cancel_scope.cancel()


@pytest.mark.slow
@on_fake_clock
async def test_nodes_of_before_and_newcomers_with_an_old_invite_find_the_new_identity(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    invite, key = swarm.invite(), generate_key()
    async with swarm.coordinating(), working(node := node_of(swarm, "old", invite, key)):
        await until(lambda: accepted(node) >= 3)
    assert "The network identity changes at the next start." in moved(swarm)
    assert swarm.run.peer_id not in str(invite.addresses)
    again, newcomer = node_of(swarm, "old", invite, key), node_of(swarm, "new", invite, generate_key())
    before = accepted(again)
    async with swarm.coordinating() as coordinator, former(swarm, coordinator) as peer:
        async with working(again, newcomer):
            # Each node waits for its own part of that time before it dials a host that a Head names.
            await until(lambda: accepted(again) >= before + 3 and accepted(newcomer) >= 3, SPREAD_SECONDS + 120)
        for one in (again, newcomer):
            assert one.coordinator_client.peer in (None, swarm.run.peer_id)
            assert one.coordinator_client.lies == []
            assert one.daemon.context.trust_store.serial == 2
        assert peer.peer_id in str(invite.addresses)
    third = node_of(swarm, "old", invite, key)
    before = accepted(third)
    async with swarm.coordinating(), working(third):
        await until(lambda: accepted(third) >= before + 3, 120)  # it kept the Head, and needs the former one no more


@on_fake_clock
async def test_the_former_identity_answers_one_thing_and_refuses_all_else(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    moved(swarm)
    async with swarm.coordinating() as coordinator, former(swarm, coordinator) as peer:
        own = peer.peer_id
        client = Peer(swarm.network.transport(peer_id(public_bytes(generate_key()))), seed=4)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.run)
            await client.ready()
            await client.dial(await peer.addresses())
            for method, body in ((HELLO, b""), (LEASE, b"\xc1"), (LEASE, bytes(1000))):
                answer = decode(await client.request(own, method.name, body, timeout=5), Response)
                assert (answer.refusal.code, len(answer.refusal.roots)) == ("moved", 2)
            head = await HEAD.ask(client, own, HeadRequest(root_serial=1), timeout=5)
            assert (head.head, len(head.roots)) == (coordinator.newest_head(), 1)
            with pytest.raises(Unreachable):
                await client.request(own, DOCUMENTS.name, encode(DocumentsRequest(hashes=[])), timeout=5)
            tasks.cancel_scope.cancel()


@on_fake_clock
async def test_a_former_identity_answers_for_thirty_days_and_only_the_last_one_does(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    first = swarm.run.peer_id
    assert former_of(listening(swarm.run), now(), None) is None
    moved(swarm)
    second = swarm.run
    assert former_of(second, now(), None) is None, "it has no address"
    one = former_of(listening(second), now(), None)
    assert peer_id(public_bytes(one.key)) == first
    assert 0 <= one.until - (now() + 30 * DAY) <= 1
    await anyio.sleep(20 * 24 * 3600.0)
    moved(swarm)
    other = former_of(listening(swarm.run), now(), None)
    assert peer_id(public_bytes(other.key)) == second.peer_id
    moved(swarm, "ledger")
    same = former_of(listening(swarm.run), now(), None)
    assert same.until == other.until, "a later Root begins no new time"
    assert former_of(listening(swarm.run), other.until, None) is None
    keys.identity_path(swarm.run.folder, public_bytes(other.key)).unlink()
    assert former_of(listening(swarm.run), now(), None) is None


@on_fake_clock
async def test_a_stolen_identity_is_revoked_once_the_channel_key_is_another_one(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    with pytest.raises(LocalFault, match="the channel key, too: rotate or revoke channel first"):
        moved(swarm, since=now())
    moved(swarm, "channel", since=now())
    first = swarm.run.peer_id
    moved(swarm, since=now())
    run = swarm.run
    assert run.peer_id != first
    assert len(run.root.revoked) == 1, "the first channel key was the identity"
    moved(swarm, since=now())
    assert len(swarm.run.root.revoked) == 2


@pytest.mark.slow
@on_fake_clock
async def test_a_running_coordinator_keeps_its_identity_until_its_next_start(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    node = swarm.node("a")
    async with swarm.coordinating() as coordinator, working(node):
        await until(lambda: accepted(node) >= 2)
        before = await coordinator.invite()
        moved(swarm)
        await coordinator.renew()
        assert await coordinator.invite() == before
        had = accepted(node)
        await until(lambda: accepted(node) >= had + 3)
    assert swarm.run.invite(["/memory/0"]) != before
