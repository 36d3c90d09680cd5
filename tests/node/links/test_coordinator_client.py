"""The client of the coordinator: addresses, greetings, refusals, breaks."""

from pathlib import Path

import anyio
import msgspec
import pytest

from node.errors import RefusedByRun, TrustFailure
from p2p.identity import generate_key
from p2p.memory.transport import MemoryNetwork
from protocol.requests import Refusal
from runtime.exit_codes import Exit
from tests.support.clock import run_fake
from tests.support.fake_coordinator import FakeCoordinator, InProcessEngine, make_node, until, wall
from tests.support.swarm import working


def test_a_coordinator_that_comes_back_elsewhere_is_found_through_other_nodes(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            await coordinator.publish(0)
            one = make_node(network, tmp_path / "one", coordinator.invite())
            two = make_node(network, tmp_path / "two", coordinator.invite())
            async with working(one, two):
                await until(lambda: one.daemon.rollouts.done >= 1 and two.daemon.rollouts.done >= 1)
                await until(lambda: len(network.transports[one.peer_id].peers()) == 2)
                old = coordinator.peer_id
                network.kill(old)
                await anyio.sleep(100)
                assert one.coordinator_client.peer is None
                assert "unreachable" in (await one.daemon.commands.why({}))["blocked"]
                coordinator.identity = generate_key()
                done = (one.daemon.rollouts.done, two.daemon.rollouts.done)
                async with coordinator.serving(network) as peer:
                    await peer.dial([f"/memory/0/p2p/{two.peer_id}"])
                    await coordinator.announce()
                    await until(lambda: one.daemon.rollouts.done > done[0] and two.daemon.rollouts.done > done[1], 90)

    run_fake(main)


def test_a_coordinator_that_freezes_costs_no_work(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite(), engine=InProcessEngine(seconds=5.0))
            async with working(node):
                await until(lambda: node.daemon.rollouts.working)
                network.freeze(coordinator.peer_id)
                await until(lambda: node.daemon.outbox.waiting() == 1)
                await anyio.sleep(300)
                network.thaw(coordinator.peer_id)
                await until(lambda: node.daemon.outbox.counts().get("accepted", 0) >= 3, 90)

    run_fake(main)


REFUSED_AT_THE_DOOR = {
    "banned": "This node was banned: spam.",
    "protocol": "This run speaks protocols 2 to 3: update echo2.",
    "task-version": "The node lacks task reverse version 9: update echo2.",
}


@pytest.mark.parametrize("code", REFUSED_AT_THE_DOOR)
def test_a_node_that_the_run_refuses_ends_with_the_reason(tmp_path: Path, code: str) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        coordinator.refusals["hello"] = Refusal(code=code, sentence=REFUSED_AT_THE_DOOR[code])
        async with coordinator.serving(network):
            node = make_node(network, tmp_path / "node", coordinator.invite())
            with pytest.raises(RefusedByRun, match=REFUSED_AT_THE_DOOR[code].split(":")[0]):
                await node.daemon.run()

    run_fake(main)


@pytest.mark.parametrize("method", ["hello", "submit"])
def test_a_suspended_node_stays_and_goes_on_soon_after_the_operator_lifts_it(tmp_path: Path, method: str) -> None:
    """At commit 439044d the node leaves its groups unsent for the whole suspension, even if it is lifted."""

    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        sentence, week = "This node is suspended until 2026-11-29 10:00 UTC.", 7 * 24 * 3_600_000
        coordinator.refusals[method] = Refusal(code="suspended", sentence=sentence, retry_after=week)
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite())
            async with working(node):
                await anyio.sleep(120)
                assert node.daemon.outbox.counts().get("accepted", 0) == 0
                del coordinator.refusals[method]
                await until(lambda: node.daemon.outbox.counts().get("accepted", 0) >= 1, 300)

    run_fake(main)


def test_an_invite_to_another_root_ends_with_a_trust_failure(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            invite = msgspec.structs.replace(coordinator.invite(), root_hash=b"x" * 32)
            node = make_node(network, tmp_path / "node", invite)
            with pytest.raises(TrustFailure, match="new invite") as ended:
                await node.daemon.run()
            assert ended.value.exit == Exit.TRUST

    run_fake(main)


def test_an_expired_root_ends_with_a_trust_failure(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        keys = coordinator.keys
        coordinator.roots = [coordinator.sealed_root(0, keys, keys.root, expires=wall() - 1)]
        async with coordinator.serving(network):
            node = make_node(network, tmp_path / "node", coordinator.invite())
            with pytest.raises(TrustFailure, match="expired"):
                await node.daemon.run()

    run_fake(main)


def test_a_waiting_node_sleeps(tmp_path: Path) -> None:
    """No peer answers for an hour: the event loop runs only a few times per second, if at all."""

    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        node = make_node(network, tmp_path / "node", coordinator.invite())
        async with working(node):
            await anyio.sleep(10)
            dials = 0
            honest = network.is_lost

            def counted(a: str, b: str) -> bool:
                nonlocal dials
                dials += 1
                return honest(a, b)

            network.is_lost = counted  # type: ignore[method-assign]
            await anyio.sleep(3600)
            assert 100 < dials < 1000

    run_fake(main)
