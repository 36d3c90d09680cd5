"""The client of the coordinator: addresses, greetings, refusals, breaks."""

from collections.abc import Callable

import anyio
import msgspec
import pytest
from structlog.testing import capture_logs

from echo2.node import newer_build
from echo2.node.errors import RefusedByRun, TrustFailure
from echo2.p2p.identity import generate_key, peer_id, public_bytes
from echo2.p2p.peer.peer import Peer
from echo2.p2p.wire_types import encode
from echo2.protocol.refusals import refusal
from echo2.protocol.requests import Refusal, Response, Welcome
from echo2.runtime.exit_codes import Exit
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import FakeCoordinator, InProcessEngine, until, wall
from tests.support.small_run import SmallRun
from tests.support.swarm import accepted, working


@on_fake_clock
@pytest.mark.slow
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
        assert newer_build.update_request(node.daemon.context.folder) == (
            "" if code == "banned" else REFUSED_AT_THE_DOOR[code]
        )


@on_fake_clock
async def test_a_welcome_ends_the_note_that_a_newer_build_is_asked_for(small_run: SmallRun) -> None:
    node = small_run.node()
    newer_build.record(node.daemon.context.folder, Refusal(code="protocol", sentence="Update."))
    assert newer_build.update_request(node.daemon.context.folder) == "Update."
    async with small_run.serving(), working(node):
        await until(lambda: accepted(node) >= 1)
    assert newer_build.update_request(node.daemon.context.folder) == ""


@pytest.mark.parametrize("method", ["hello", "submit"])
@on_fake_clock
@pytest.mark.slow_but("hello")
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


def _bans(coordinator: FakeCoordinator) -> dict[str, Callable[[bytes], bytes]]:
    return {"hello": lambda _: encode(Response(refusal=refusal("banned", why="by a thief")))}


def _welcomes_and_ends(coordinator: FakeCoordinator) -> dict[str, Callable[[bytes], bytes]]:
    def welcome(_: bytes) -> bytes:
        public = Welcome(roots=coordinator.roots, runspec=coordinator.runspec, head=None, peers=[], now=wall())
        return encode(Response(body=encode(public)))

    over = encode(Response(refusal=refusal("finished")))
    return {"hello": welcome, "lease": lambda _: over, "submit": lambda _: over}


@pytest.mark.parametrize("lie", [_bans, _welcomes_and_ends])
@on_fake_clock
async def test_the_thief_of_a_former_identity_ends_no_node_that_holds_a_head(
    small_run: SmallRun, lie: Callable[[FakeCoordinator], dict[str, Callable[[bytes], bytes]]]
) -> None:
    """Refusals are not signed: while the coordinator was away, one word from its old address ended every node."""
    coordinator = small_run.coordinator
    thief = Peer(small_run.network.transport(peer_id(public_bytes(generate_key()))), seed=9)
    asked = list[str]()
    for method, answer in lie(coordinator).items():

        async def handle(
            peer: str, data: bytes, method: str = method, answer: Callable[[bytes], bytes] = answer
        ) -> bytes:
            asked.append(method)
            return answer(data)

        thief.serve(method, handle, limit=1 << 20)
    async with small_run.serving(), anyio.create_task_group() as tasks:
        tasks.start_soon(thief.run)
        await thief.ready()
        invite = coordinator.invite(f"/memory/0/p2p/{coordinator.peer_id}", f"/memory/1/p2p/{thief.peer_id}")
        node = small_run.node(invite=invite)
        async with working(node):
            await until(lambda: accepted(node) >= 1)
            small_run.network.freeze(coordinator.peer_id)
            await until(lambda: "hello" in asked, 300)
            await anyio.sleep(60)
            small_run.network.thaw(coordinator.peer_id)
            before = accepted(node)
            await until(lambda: accepted(node) >= before + 2, 300)
        tasks.cancel_scope.cancel()


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
async def test_an_invite_without_an_address_for_the_routes_is_named_once_in_the_log(small_run: SmallRun) -> None:
    async with small_run.serving():
        node = small_run.node(invite=msgspec.structs.replace(small_run.coordinator.invite(), addresses=[]))
        with capture_logs() as logs:
            async with working(node):
                await anyio.sleep(100)
                assert "ask for a new invite" in (await node.daemon.commands.why({}))["blocked"]
        told = [one for one in logs if one["event"] == "the coordinator is not reached"]
        assert [(one["way"], "has no address for" in one["reason"]) for one in told] == [
            ("direct", True), ("relay", True), ("https", True)
        ]  # fmt: skip


@on_fake_clock
async def test_an_address_that_changed_here_is_no_lost_coordinator(small_run: SmallRun) -> None:
    async with small_run.working() as node:
        await until(lambda: accepted(node) >= 1)
        with capture_logs() as logs:
            node.coordinator_client.greet_again("the engine was chosen")
            assert "unreachable" not in node.coordinator_client.trouble
            before = accepted(node)
            await until(lambda: accepted(node) > before)
        events = [one["event"] for one in logs]
        assert "greeting the coordinator again" in events
        assert "coordinator lost" not in events


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
        assert 50 < dials < 500, "one address: once a minute at last"
