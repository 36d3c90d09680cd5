"""A node's place in the broadcast plan: its source, and the peer that may change it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from benchmarks.memory_network.transport import MemoryNetwork
from echo2.node.links.plan_client import PEER_POLL_SECONDS, PlanClient, RateLimits
from echo2.p2p.discovery.dialer import PeerDialer
from echo2.p2p.errors import Unreachable
from echo2.p2p.peer.peer import Peer
from echo2.p2p.wire_types import encode
from echo2.protocol.broadcast_messages import PlanRequest, PlanResponse
from echo2.protocol.methods import FOLLOW, PLAN
from tests.support.clock import run_fake
from tests.support.peers import running


@asynccontextmanager
async def world(*planned: str) -> AsyncIterator[tuple[Peer, Peer, PlanClient]]:
    """Run a coordinator "c" whose plan names the parent "a", a peer "a", and the plan client of a node "n". `planned`:
    the parents of another plan."""
    network = MemoryNetwork(1)
    coordinator, other, node = (Peer(network.transport(name), seed=0) for name in ("c", "a", "n"))

    async def plan(peer: str, ask: PlanRequest) -> PlanResponse:
        return PlanResponse(parents=list(planned) or ["a"])

    async def connected() -> str:
        return "c"

    PLAN.serve(coordinator, plan)
    dialer = PeerDialer(node, bytes(32), lambda: 0)
    parents = PlanClient(node.handlers, node, node, node, dialer, RateLimits(), connected=connected)
    async with running(coordinator, other, node), anyio.create_task_group() as tasks:
        tasks.start_soon(parents.run)
        await anyio.sleep(PEER_POLL_SECONDS)
        yield coordinator, other, parents
        tasks.cancel_scope.cancel()


def test_the_coordinator_sends_a_node_its_new_place_without_a_request():
    async def main():
        async with world() as (coordinator, _, parents):
            assert parents.parents == ["a"]
            await FOLLOW.ask(coordinator, "n", PlanResponse(parents=["c", "a"]), timeout=5)
            assert parents.parents == ["c", "a"]

    run_fake(main)


def test_a_node_without_parents_looks_seldom_and_at_once_where_it_gets_some(monkeypatch):
    async def main():
        async with world("c") as (coordinator, _, parents):
            looks = []
            peers = parents._links.peers

            async def look():
                looks.append(anyio.current_time())
                return await peers()

            monkeypatch.setattr(parents._links, "peers", look)
            await anyio.sleep(15)
            assert len(looks) <= 4
            at = len(looks)
            await FOLLOW.ask(coordinator, "n", PlanResponse(parents=["a"]), timeout=5)
            await anyio.sleep(PEER_POLL_SECONDS / 2)
            assert len(looks) == at + 1
            await anyio.sleep(5)
            assert len(looks) >= at + 5

    run_fake(main)


BAD = {
    "another peer says whom to follow": ("a", encode(PlanResponse(parents=["a", "a"]))),
    "the coordinator says nonsense": ("c", b"\xc1"),
    "the coordinator says a thing of another kind": ("c", encode(PlanResponse(parents=[])) + b"\x00"),
}


@pytest.mark.parametrize(("who", "data"), BAD.values(), ids=BAD.keys())
def test_a_node_keeps_its_place_when(who, data):
    async def main():
        async with world() as (coordinator, other, parents):
            with pytest.raises(Unreachable):
                await {"c": coordinator, "a": other}[who].request("n", FOLLOW.name, data, timeout=5)
            assert parents.parents == ["a"]

    run_fake(main)
