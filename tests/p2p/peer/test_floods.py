"""Requests under a flood: a waiting one delays no other, and an overload in one class of methods spares the others."""

import pytest

from benchmarks.memory_network.transport import MemoryNetwork, MemoryTransport
from echo2.p2p.discovery.messages import ReachableRequest
from echo2.p2p.peer.peer import Peer
from echo2.p2p.wire_types import encode
from tests.support.clock import run_fake
from tests.support.floods import answered, echo, flooded, serving, stuck


@pytest.mark.slow
def test_a_thousand_requests_to_be_dialled_back_keep_no_honest_request_from_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Commit 439044d answers none of these 200: the requests wait for their rate limit in all of the 512 slots."""
    monkeypatch.setattr(MemoryTransport, "remote", lambda transport, peer: "/ip4/127.0.0.1/tcp/4310")
    share = 0.0

    async def honest(nodes: list[Peer]) -> None:
        nonlocal share
        share = await answered(nodes, "echo")

    async def main() -> None:
        network = MemoryNetwork(1)
        await flooded(network, serving(network, echo=echo), "reachable", encode(ReachableRequest(ports=[])), honest)

    run_fake(main)
    assert share >= 0.99


@pytest.mark.parametrize("flood", ["lease", "plan", "documents", "verdicts"])
@pytest.mark.slow_but("plan")
def test_submissions_get_in_while_another_class_is_full(flood: str) -> None:
    """Commit 439044d answers none of these: its methods share all slots."""
    share = 0.0

    async def honest(nodes: list[Peer]) -> None:
        nonlocal share
        share = await answered(nodes, "submit", each=5)

    async def main() -> None:
        network = MemoryNetwork(1)
        await flooded(network, serving(network, submit=echo, **{flood: stuck}), flood, b"", honest)

    run_fake(main)
    assert share == 1.0
