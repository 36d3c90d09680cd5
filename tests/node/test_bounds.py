"""The damage that a stolen channel key or a false coordinator can do to a node: bounds on Heads and leases."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from benchmarks.memory_network.transport import MemoryNetwork
from echo2.protocol.leases import Lease, LeaseRequest
from tests.support.clock import on_fake_clock, run_fake
from tests.support.fake_coordinator import START, FakeCoordinator, make_node, until, wall
from tests.support.small_run import SmallRun
from tests.support.swarm import accepted, working

DAY = 24 * 3600_000
FAR: dict[str, Callable[[], dict[str, int]]] = {
    "the highest sequence that there is": lambda: {"sequence": (1 << 53) - 1},
    "a sequence two days ahead": lambda: {"sequence": wall() + 2 * DAY},
    "a life of three years": lambda: {"sequence": wall() + 1000, "expires": wall() + 3 * 365 * DAY},
    "an hour from now": lambda: {"sequence": wall(), "issued": wall() + DAY // 24, "expires": wall() + DAY // 12},
}


@pytest.mark.parametrize("thief", FAR)
@on_fake_clock
async def test_no_head_of_a_stolen_channel_key_keeps_the_operators_next_one_from_a_node(
    thief: str, small_run: SmallRun
) -> None:
    """A later Root revokes the key; until then the operator's own Heads must reach the node."""
    coordinator = small_run.coordinator
    async with small_run.working() as node:
        await until(lambda: accepted(node) >= 1)
        before = coordinator.sequence
        await coordinator.announce(**FAR[thief]())
        await anyio.sleep(1)
        coordinator.sequence = before + 1
        await coordinator.announce()
        await anyio.sleep(1)
        head = node.daemon.context.trust_store.trusted.head
        assert head is not None
        assert (head.value.sequence, head.value.expires - head.value.issued) == (before + 2, 60_000), (
            "the run is frozen"
        )
        assert head.value.issued >= START


class Greedy(FakeCoordinator):
    """A coordinator whose prompts fill the model's context."""

    prompt: list[int]

    def make_lease(self, node: bytes, ask: LeaseRequest, /, **changes: Any) -> Lease:
        return super().make_lease(node, ask, prompt=self.prompt, **changes)


@pytest.mark.parametrize("room", [0, 1])
def test_a_lease_that_leaves_the_models_context_is_refused(room: int, tmp_path: Path) -> None:
    """The limit is 8 tokens and the context 32: a prompt of 24 tokens fits, one of 25 does not."""

    async def main() -> None:
        network, coordinator = MemoryNetwork(0), Greedy(tmp_path / "coordinator")
        coordinator.prompt = [2, 3, 4] * 8 + [2] * (1 - room)
        coordinator.assets.clear()
        coordinator.add_asset("config.json", b'{"model_type": "bigram", "max_position_embeddings": 32}')
        coordinator.runspec = coordinator.sealed_runspec()
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite())
            async with working(node):
                await until(lambda: coordinator.leases)
                await anyio.sleep(10)
                assert bool(coordinator.submitted) == bool(room), "an oversized lease was worked for"
                told = (await node.daemon.commands.why({}))["not_believed"]
                said = "the lease has 25 prompt tokens and allows 8 more; the model's context is 32"
                assert any(said in lie for lie in told) != bool(room)

    run_fake(main)
