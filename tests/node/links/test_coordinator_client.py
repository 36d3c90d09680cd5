"""The client of the coordinator: addresses, greetings, refusals, breaks."""

import anyio
import msgspec
import pytest

from node.errors import RefusedByRun, TrustFailure
from p2p.identity import generate_key
from protocol.requests import Refusal
from runtime.exit_codes import Exit
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import InProcessEngine, until, wall
from tests.support.small_run import SmallRun
from tests.support.swarm import accepted, working


@on_fake_clock
async def test_a_coordinator_that_comes_back_elsewhere_is_found_through_other_nodes(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    async with small_run.serving():
        one = small_run.node("one")
        two = small_run.node("two")
        async with working(one, two):
            await until(lambda: one.daemon.rollouts.done >= 1 and two.daemon.rollouts.done >= 1)
            await until(lambda: len(small_run.network.transports[one.peer_id].peers()) == 2)
            old = coordinator.peer_id
            small_run.network.kill(old)
            await anyio.sleep(100)
            assert one.coordinator_client.peer is None
            assert "unreachable" in (await one.daemon.commands.why({}))["blocked"]
            coordinator.identity = generate_key()
            done = (one.daemon.rollouts.done, two.daemon.rollouts.done)
            async with small_run.serving(published=False) as peer:
                await peer.dial([f"/memory/0/p2p/{two.peer_id}"])
                await coordinator.announce()
                await until(lambda: one.daemon.rollouts.done > done[0] and two.daemon.rollouts.done > done[1], 90)


@on_fake_clock
async def test_a_coordinator_that_freezes_costs_no_work(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    async with small_run.working(engine=InProcessEngine(seconds=5.0)) as node:
        await until(lambda: node.daemon.rollouts.working)
        small_run.network.freeze(coordinator.peer_id)
        await until(lambda: node.daemon.outbox.waiting() == 1)
        await anyio.sleep(300)
        small_run.network.thaw(coordinator.peer_id)
        await until(lambda: accepted(node) >= 3, 90)


REFUSED_AT_THE_DOOR = {
    "banned": "This node was banned: spam.",
    "protocol": "This run speaks protocols 2 to 3: update echo2.",
    "task-version": "The node lacks task reverse version 9: update echo2.",
}


@pytest.mark.parametrize("code", REFUSED_AT_THE_DOOR)
@on_fake_clock
async def test_a_node_that_the_run_refuses_ends_with_the_reason(small_run: SmallRun, code: str) -> None:
    coordinator = small_run.coordinator
    coordinator.refusals["hello"] = Refusal(code=code, sentence=REFUSED_AT_THE_DOOR[code])
    async with small_run.serving(published=False):
        node = small_run.node()
        with pytest.raises(RefusedByRun, match=REFUSED_AT_THE_DOOR[code].split(":")[0]):
            await node.daemon.run()


@pytest.mark.parametrize("method", ["hello", "submit"])
@on_fake_clock
async def test_a_suspended_node_stays_and_goes_on_soon_after_the_operator_lifts_it(
    small_run: SmallRun, method: str
) -> None:
    """At commit 439044d the node leaves its groups unsent for the whole suspension, even if it is lifted."""
    coordinator = small_run.coordinator
    sentence, week = "This node is suspended until 2026-11-29 10:00 UTC.", 7 * 24 * 3_600_000
    coordinator.refusals[method] = Refusal(code="suspended", sentence=sentence, retry_after=week)
    async with small_run.working() as node:
        await anyio.sleep(120)
        assert accepted(node) == 0
        del coordinator.refusals[method]
        await until(lambda: accepted(node) >= 1, 300)


@on_fake_clock
async def test_an_invite_to_another_root_ends_with_a_trust_failure(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    async with small_run.serving(published=False):
        invite = msgspec.structs.replace(coordinator.invite(), root_hash=b"x" * 32)
        node = small_run.node(invite=invite)
        with pytest.raises(TrustFailure, match="new invite") as ended:
            await node.daemon.run()
        assert ended.value.exit == Exit.TRUST


@on_fake_clock
async def test_an_expired_root_ends_with_a_trust_failure(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    keys = coordinator.keys
    coordinator.roots = [coordinator.sealed_root(0, keys, keys.root, expires=wall() - 1)]
    async with small_run.serving(published=False):
        node = small_run.node()
        with pytest.raises(TrustFailure, match="expired"):
            await node.daemon.run()


@on_fake_clock
async def test_a_waiting_node_sleeps(small_run: SmallRun) -> None:
    """No peer answers for an hour: the event loop runs only a few times per second, if at all."""
    node = small_run.node()
    async with working(node):
        await anyio.sleep(10)
        dials = 0
        honest = small_run.network.is_lost

        def counted(a: str, b: str) -> bool:
            nonlocal dials
            dials += 1
            return honest(a, b)

        small_run.network.is_lost = counted  # type: ignore[method-assign]
        await anyio.sleep(3600)
        assert 100 < dials < 1000
