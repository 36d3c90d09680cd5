"""A node that can use only HTTPS, from greeting to receipt: real TLS on loopback, the rest in memory."""

from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import anyio
import numpy as np
import pytest

from benchmarks.memory_network.transport import MemoryNetwork
from echo2.coordinator.daemon import Coordinator
from echo2.coordinator.database.database import Database
from echo2.coordinator.run import keys_commands
from echo2.coordinator.training.model_processes import Models
from echo2.coordinator.verification.verification import submission_limit
from echo2.node.config import NodeConfig
from echo2.node.daemon import NodeDaemon
from echo2.node.run_context import RunContext
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.https.client import HttpsClient
from echo2.p2p.https.failover import FailoverNetwork
from echo2.p2p.identity import generate_key, peer_id, public_bytes
from echo2.p2p.multiaddr import ROUTES, Route
from echo2.p2p.network import Network
from echo2.p2p.peer.peer import Peer
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.broadcast_messages import PlanRequest, PlanResponse
from echo2.protocol.requests import DocumentsRequest
from echo2.runtime.backoff import Backoff
from echo2.runtime.control_client import socket_path
from echo2.weights.store import Store
from tests.support.fake_coordinator import InProcessEngine, Node, until
from tests.support.https import server_beside, shown
from tests.support.swarm import Swarm, accepted, make_swarm, wall


async def coordinating(swarm: Swarm, stack: AsyncExitStack) -> tuple[Coordinator, Invite, Network]:
    """Run the swarm's coordinator with HTTPS beside the in-memory network until the stack ends; return it, an invite
    and its network."""
    run = swarm.run
    server = server_beside(Peer(swarm.network.transport(run.peer_id), seed=0))
    store = stack.enter_context(Store(run.folder.store))
    database = stack.enter_context(Database.open(run.folder.database))
    network = server.network
    coordinator = Coordinator(
        run, network, Models(swarm.learner, [swarm.scorer]), store=store, database=database, clock=wall,
        entropy=np.random.default_rng(0).bytes,
    )  # fmt: skip
    tasks = await stack.enter_async_context(anyio.create_task_group())
    stack.callback(tasks.cancel_scope.cancel)
    tasks.start_soon(coordinator.run)
    await until(lambda: coordinator.publisher.sealed_head)
    https = [f"{one}/p2p/{run.peer_id}" for one in server.https.addresses()]
    old = swarm.invite()
    addresses = [f"/memory/{run.peer_id}/p2p/{run.peer_id}", *https]
    invite = Invite(run=old.run, root_hash=old.root_hash, addresses=addresses, https_key=shown().pin)
    return coordinator, invite, network


def node_of(
    swarm: Swarm, name: str, invite: Invite, memory: MemoryNetwork | None, via: tuple[Route, ...] = ROUTES
) -> Node:
    """Make a node with the routes `via`. `memory`: stands for libp2p; None: no libp2p."""
    key, engine = generate_key(), InProcessEngine(seconds=0.02)
    own = peer_id(public_bytes(key))
    direct = None if memory is None else Peer(memory.transport(own), seed=1)
    assert invite.https_key is not None
    ways = FailoverNetwork(direct, HttpsClient(own, invite.https_key), routes=via)
    home = swarm.folder / name
    home.mkdir()
    config = NodeConfig(home=home, via=via)
    context = RunContext.open(home, invite, key, local=lambda: int(wall() * 1000), seed=7)
    daemon = NodeDaemon(config, context, ways.network, lambda: engine)
    return Node(daemon, engine, own, home)


async def status(node: Node) -> dict:
    return await node.daemon.commands.status({})


async def when_by(node: Node, route: str) -> dict:
    """Return the node's status once the node is connected by `route`; it tries better routes at intervals, in vain."""
    with anyio.fail_after(60):
        while (said := await status(node))["way"] != route:  # noqa: ASYNC110 (what is waited for has no event)
            await anyio.sleep(0.02)
    return said


@pytest.fixture
def swarm(tmp_path: Path) -> Swarm:
    new_swarm = make_swarm(tmp_path)
    new_swarm.learner.seconds = 0.02
    return new_swarm


async def test_a_node_on_https_alone_follows_works_and_is_paid(swarm):
    async with AsyncExitStack() as stack:
        coordinator, invite, _ = await coordinating(swarm, stack)
        node = node_of(swarm, "node", invite, None, ("https",))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.daemon.run)
            await until(lambda: accepted(node) >= 6 and node.daemon.follower.current.version >= 2)
            said = await status(node)
            (row,) = coordinator.view_builder.build().nodes
            tasks.cancel_scope.cancel()
    assert (said["way"], said["ways_failed"], said["coordinator"]) == ("https", [], swarm.run.peer_id)
    assert (row.id, row.route) == (node.peer_id, "https")
    assert row.accepted >= 6
    assert said["received_bytes"] > 0
    assert said["sent_bytes"] == 0


@pytest.mark.slow
async def test_a_new_channel_key_reaches_a_node_on_https_alone(swarm):
    async with AsyncExitStack() as stack:
        coordinator, invite, _ = await coordinating(swarm, stack)
        node = node_of(swarm, "node", invite, None, ("https",))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.daemon.run)
            await until(lambda: accepted(node) >= 2)
            socket_path(swarm.folder / "run").unlink()  # its answer would need the event loop, which this test blocks
            keys_commands.change(swarm.folder / "run", "channel", now=int(wall() * 1000), secret=None)
            await coordinator.renew()
            before = accepted(node)
            await until(lambda: accepted(node) >= before + 4)
            said, lies = await status(node), node.coordinator_client.lies
            serial = node.daemon.context.trust_store.serial
            tasks.cancel_scope.cancel()
    assert (serial, lies, said["way"]) == (2, [], "https")


@pytest.mark.slow
async def test_a_node_whose_libp2p_is_cut_goes_on_over_https_and_returns(swarm, monkeypatch):
    monkeypatch.setattr("echo2.node.links.coordinator_client.BETTER_ROUTE_BACKOFF", Backoff(0.2, 300.0))
    monkeypatch.setattr("echo2.node.links.coordinator_client.COORDINATOR_ANSWER_SECONDS", 0.5)
    swarm.network.patience = 0.2
    async with AsyncExitStack() as stack:
        coordinator, invite, _ = await coordinating(swarm, stack)
        node = node_of(swarm, "node", invite, swarm.network)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.daemon.run)
            await until(lambda: accepted(node) >= 2)
            await when_by(node, "direct")

            swarm.network.partition([swarm.run.peer_id], [node.peer_id])
            before = accepted(node)
            await until(lambda: accepted(node) >= before + 4)
            said = await when_by(node, "https")
            assert [one["way"] for one in said["ways_failed"]] == ["direct"]
            assert "is not connected" in said["ways_failed"][0]["reason"]
            await until(lambda: coordinator.view_builder.build().nodes[0].route == "https")

            swarm.network.heal()
            await until(lambda: not node.coordinator_client.failures)
            before = accepted(node)
            await until(lambda: accepted(node) >= before + 2)
            await when_by(node, "direct")
            assert coordinator.view_builder.build().nodes[0].route == "direct"
            tasks.cancel_scope.cancel()


async def test_what_the_coordinator_answers_over_https_is_what_the_page_says(swarm):
    """A request that does not decode is the client's fault, and none of these gets a 500 (docs/protocol/https.md)."""
    async with AsyncExitStack() as stack:
        _, _, network = await coordinating(swarm, stack)
        largest = submission_limit(swarm.run.runspec)
        asked = {
            "plan": encode(PlanRequest()),
            "plan that is none": b"\xc1",
            "documents that are none": b"\xc1",
            "remake of none": b"\xc1",
            "head without a byte": b"",
            "lease that is no request": b"",
            "submit below the method's limit": bytes((64 << 10) + largest),
            "submit above it": bytes((64 << 10) + largest + 1),
            "follow": b"\x80",
            "reachable": b"\x81\xa5ports\x90",
        }
        address = next(one for one in await network.inbound.addresses() if "https" in one)
        origin = f"https://127.0.0.1:{address.split('/')[4]}"
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session:
            answers = {}
            for case, body in asked.items():
                async with session.post(f"{origin}/echo2/1/rpc/{case.partition(' ')[0]}", data=body) as answer:
                    answers[case] = answer.status
            async with session.post(f"{origin}/echo2/1/rpc/plan", data=asked["plan"]) as answer:
                plan = await answer.read()
    assert answers == {
        "plan": 200,
        "plan that is none": 400,
        "documents that are none": 400,
        "remake of none": 400,
        "head without a byte": 400,
        "lease that is no request": 200,
        "submit below the method's limit": 200,
        "submit above it": 413,
        "follow": 404,
        "reachable": 404,
    }
    assert plan == encode(PlanResponse())


@pytest.mark.slow
async def test_a_version_costs_a_node_at_most_60_kb_of_documents_each_asked_for_once(swarm):
    """The cost of a version (docs/protocol/requests.md), counted over a whole run of a node that keeps documents."""
    asked, nbytes = [], 0
    async with AsyncExitStack() as stack:
        _, invite, network = await coordinating(swarm, stack)
        handlers = network.handlers
        answer, limit = handlers.methods["documents"]

        async def counted(peer, data):
            nonlocal nbytes
            asked.extend(decode(data, DocumentsRequest).hashes)
            answered = await answer(peer, data)
            nbytes += len(answered)
            return answered

        handlers.serve("documents", counted, limit=limit)
        node = node_of(swarm, "node", invite, None, ("https",))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.daemon.run)
            await until(lambda: node.daemon.follower.current and node.daemon.follower.current.version >= 40)
            tasks.cancel_scope.cancel()
    assert len(asked) == len(set(asked))
    assert nbytes / 40 <= 60_000
