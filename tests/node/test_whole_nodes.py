"""Whole nodes on an in-memory network, against an honest coordinator, under a fake clock."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import anyio
import msgspec
import pytest

from node.daemon import FREED_WITHIN
from node.errors import NoUsableDevice, RefusedByRun, TrustFailure
from p2p.identity import generate_key
from p2p.memory.transport import MemoryNetwork
from protocol.requests import Refusal
from runtime.exit_codes import Exit
from tests.support.clock import run_fake
from tests.support.fake_coordinator import FakeCoordinator, InProcessEngine, Keys, Node, make_node, until, wall


@asynccontextmanager
async def at_work(*nodes: Node) -> AsyncIterator[None]:
    """Run these daemons until the block ends."""
    async with anyio.create_task_group() as tasks:
        for node in nodes:
            tasks.start_soon(node.daemon.run)
        yield
        tasks.cancel_scope.cancel()


def holds(node: Node, version: int) -> bool:
    current = node.daemon.engine.current
    return current is not None and current.version == version


def test_a_node_joins_follows_works_and_is_credited(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite())
            async with at_work(node):
                await until(lambda: node.daemon.outbox.counts().get("accepted", 0) >= 3)
                for version in (1, 2, 3):
                    await coordinator.publish(version)
                    await until(lambda v=version: holds(node, v))
                await until(lambda: node.daemon.outbox.counts().get("accepted", 0) >= 10)
                assert node.daemon.outbox.counts().get("refused", 0) == 0
                assert {lease.version for lease in coordinator.leases.values()} == {0, 1, 2, 3}

    run_fake(main)


def test_a_finished_node_delivers_everything_and_ends(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite())
            ended: list[Exit] = []

            async def life() -> None:
                ended.append(await node.daemon.run())

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(life)
                await until(lambda: node.daemon.rollouts.done >= 3)
                node.daemon.interrupt("the test")
                await until(lambda: ended)
            assert ended == [Exit.OK]
            assert set(coordinator.leases) == set(coordinator.submitted) == coordinator.confirmed

    run_fake(main)


def test_an_engine_that_crashes_generates_the_same_lease_again(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite())
            async with at_work(node):
                await until(lambda: node.daemon.rollouts.done >= 2)
                node.engine.crashes = 3
                await until(lambda: node.daemon.engine.deaths == 3 and node.engine.crashes == 0)
                await until(lambda: node.daemon.outbox.counts().get("accepted", 0) >= 5)
                assert "refused" not in node.daemon.outbox.counts()
                unworked = set(coordinator.leases) - set(coordinator.submitted)
                assert len(unworked) <= 2

    run_fake(main)


def test_an_engine_that_never_comes_up_ends_the_node_with_its_reason(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite())
            node.engine.crashes = 1 << 30
            with pytest.raises(NoUsableDevice, match="times in a row") as ended:
                await node.daemon.run()
            assert ended.value.exit == Exit.NO_DEVICE

    run_fake(main)


def test_a_pause_frees_the_device_at_once_and_loses_no_lease(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite(), engine=InProcessEngine(seconds=20.0))
            async with at_work(node):
                await until(lambda: node.daemon.rollouts.working)
                await node.daemon.commands.pause({"seconds": 30})
                await anyio.sleep(5)
                assert node.engine.engine is None
                assert (await node.daemon.commands.status({}))["state"] == "paused"
                assert "paused by the owner" in (await node.daemon.commands.why({}))["blocked"]
                await coordinator.publish(1)
                await anyio.sleep(10)
                assert node.engine.engine is None
                assert len(coordinator.leases) == 1
                await until(lambda: node.daemon.outbox.counts().get("accepted", 0) >= 1)
                assert node.daemon.engine.deaths == 0

    run_fake(main)


def test_a_pause_without_an_end_lasts_until_resumed(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite())
            async with at_work(node):
                await until(lambda: node.daemon.rollouts.done >= 1)
                await node.daemon.commands.pause({})
                await anyio.sleep(FREED_WITHIN + 1)  # a group under way may still be worked off
                done = node.daemon.rollouts.done
                await anyio.sleep(900)
                assert node.daemon.rollouts.done == done
                await node.daemon.commands.resume({})
                await until(lambda: node.daemon.rollouts.done > done)

    run_fake(main)


def test_a_refused_node_stays_away_for_as_long_as_it_is_told_and_a_new_version_wakes_it(tmp_path: Path) -> None:
    """Row A6. On 439044d it asks again after 30 s at the latest."""

    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        coordinator.refusals["lease"] = Refusal(code="no-room", sentence="enough", retry_after=600_000)
        async with coordinator.serving(network):
            await coordinator.publish(0)
            async with at_work(make_node(network, tmp_path / "node", coordinator.invite())):
                await until(lambda: coordinator.asked.get("lease"))
                await anyio.sleep(590)
                assert coordinator.asked["lease"] == 1
                await coordinator.publish(1)
                await anyio.sleep(5)
                assert coordinator.asked["lease"] == 2
                await anyio.sleep(725)
                assert coordinator.asked["lease"] == 3

    run_fake(main)


def test_a_new_version_wakes_no_node_that_was_told_of_a_crowd(tmp_path: Path) -> None:
    """Else all whom a busy coordinator told to stay away would come at once, with every version."""

    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        coordinator.refusals["lease"] = Refusal(code="busy", sentence="a crowd", retry_after=100_000)
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite())
            async with at_work(node):
                await until(lambda: coordinator.asked.get("lease"))
                await coordinator.publish(1)
                await until(
                    lambda: node.daemon.follower.current is not None and node.daemon.follower.current.version == 1
                )
                await anyio.sleep(60)
                assert coordinator.asked["lease"] == 1
                await anyio.sleep(60)
                assert coordinator.asked["lease"] == 2
                del coordinator.refusals["lease"]
                await until(lambda: node.daemon.rollouts.done, 130)

    run_fake(main)


def test_a_restarted_node_goes_on_where_it_was_and_resubmits_the_same_bytes(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        key = generate_key()
        async with coordinator.serving(network):
            await coordinator.publish(0)
            await coordinator.publish(1)
            node = make_node(network, tmp_path / "node", coordinator.invite(), key=key)
            coordinator.refusals["submit"] = Refusal(code="paused", sentence="not now", retry_after=100)
            async with at_work(node):
                await until(lambda: node.daemon.rollouts.done >= 2)
            assert not coordinator.submitted
            with closing(sqlite3.connect(next((tmp_path / "node").rglob("outbox.sqlite")))) as stored:
                submissions = dict(stored.execute("SELECT lease, body FROM submissions").fetchall())
            assert len(submissions) >= 2
            del coordinator.refusals["submit"]
            again = make_node(network, tmp_path / "node", coordinator.invite(), key=key)
            async with at_work(again):
                await until(lambda: set(submissions) <= set(coordinator.submitted))
                assert {lease: coordinator.submitted[lease] for lease in submissions} == submissions
                assert again.daemon.engine.current.version == 1
                assert "step_by" not in again.engine.log
                await until(lambda: again.daemon.outbox.counts().get("accepted", 0) >= 2)

    run_fake(main)


def test_a_group_is_settled_by_a_receipt_from_before_the_ledger_keys_changed(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        key = generate_key()
        async with coordinator.serving(network):
            await coordinator.publish(0)
            coordinator.refusals["verdicts"] = Refusal(code="paused", sentence="not now", retry_after=100)
            async with at_work(make_node(network, tmp_path / "node", coordinator.invite(), key=key)):
                await until(lambda: len(coordinator.submitted) >= 2)
            for lease, body in coordinator.submitted.items():
                coordinator.decided[lease] = coordinator.judge(coordinator.leases[lease], body)
            old = coordinator.keys
            coordinator.keys = Keys(root=old.root, policy=old.policy, channel=old.channel)
            coordinator.roots.append(coordinator.sealed_root(1, coordinator.keys, old.root))
            del coordinator.refusals["verdicts"]
            before = len(coordinator.submitted)
            again = make_node(network, tmp_path / "node", coordinator.invite(), key=key)
            async with at_work(again):
                await anyio.sleep(60)
                assert again.coordinator_client.lies == [], "the run's own receipts are taken for lies"
                assert again.daemon.outbox.counts().get("accepted", 0) >= before

    run_fake(main)


def test_a_coordinator_that_comes_back_elsewhere_is_found_through_other_nodes(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            await coordinator.publish(0)
            one = make_node(network, tmp_path / "one", coordinator.invite())
            two = make_node(network, tmp_path / "two", coordinator.invite())
            async with at_work(one, two):
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
            async with at_work(node):
                await until(lambda: node.daemon.rollouts.working)
                network.freeze(coordinator.peer_id)
                await until(lambda: node.daemon.outbox.waiting() == 1)
                await anyio.sleep(300)
                network.thaw(coordinator.peer_id)
                await until(lambda: node.daemon.outbox.counts().get("accepted", 0) >= 3, 90)

    run_fake(main)


def test_weights_pass_from_node_to_node(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            await coordinator.publish(0)
            one = make_node(network, tmp_path / "one", coordinator.invite())
            two = make_node(network, tmp_path / "two", coordinator.invite())
            async with at_work(one, two):
                await until(lambda: all(n.daemon.engine.current for n in (one, two)))
                await until(lambda: len(network.transports[one.peer_id].peers()) == 2)
                network.partition([coordinator.peer_id], [two.peer_id])
                await coordinator.publish(1)
                await until(lambda: holds(two, 1), 200)
                assert one.daemon.engine.current.version == 1

    run_fake(main)


def test_a_node_that_was_away_catches_up_by_a_chain_of_edges(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        key = generate_key()
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite(), key=key)
            async with at_work(node):
                await until(lambda: node.daemon.engine.current)
            for version in range(1, 9):
                await coordinator.publish(version)
            again = make_node(network, tmp_path / "node", coordinator.invite(), key=key)
            async with at_work(again):
                await until(lambda: holds(again, 8))
                assert again.engine.log.count("step_by") == 8
                await until(lambda: again.daemon.outbox.counts().get("accepted", 0) >= 3)
            assert len(list((tmp_path / "node").rglob("snapshot*.safetensors"))) == 1

    run_fake(main)


def test_a_snapshot_damaged_on_disk_is_fetched_again(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        key = generate_key()
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite(), key=key)
            async with at_work(node):
                await until(lambda: node.daemon.engine.current)
            (snapshot,) = (tmp_path / "node").rglob("held/snapshot.safetensors")
            data = bytearray(snapshot.read_bytes())
            data[-1] ^= 1
            snapshot.write_bytes(data)
            again = make_node(network, tmp_path / "node", coordinator.invite(), key=key)
            async with at_work(again):
                await until(lambda: again.daemon.outbox.counts().get("accepted", 0) >= 2)
                assert any("damaged" in s for s in again.daemon.follower.refused)
                assert again.daemon.outbox.counts().get("refused", 0) == 0

    run_fake(main)


def test_a_finished_run_ends_its_nodes(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite())
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(until, lambda: node.daemon.rollouts.done >= 2)
                tasks.start_soon(_finish_soon, coordinator, node)
                assert await node.daemon.run() == Exit.OK
            assert "finished" in node.daemon.run_state.why_finishing

    run_fake(main)


async def _finish_soon(coordinator: FakeCoordinator, node: Node) -> None:
    await until(lambda: node.daemon.rollouts.done >= 2)
    coordinator.finished = True


REFUSED_AT_THE_DOOR = {
    "banned": "This node was banned: spam.",
    "protocol": "This run speaks protocols 2 to 3: update echo2.",
    "task-version": "The node lacks task reverse version 9: update echo2.",
}


@pytest.mark.parametrize("code", REFUSED_AT_THE_DOOR)
def test_a_node_that_is_not_wanted_ends_with_the_reason(tmp_path: Path, code: str) -> None:
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
    """On 439044d it leaves its groups unsent for as long as it was told, whatever happens meanwhile."""

    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        sentence, week = "This node is suspended until 2026-11-29 10:00 UTC.", 7 * 24 * 3_600_000
        coordinator.refusals[method] = Refusal(code="suspended", sentence=sentence, retry_after=week)
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite())
            async with at_work(node):
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


def test_a_clock_that_is_a_day_wrong_stops_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            await coordinator.publish(0)
            for number, hours in enumerate((-24, 24)):
                home, off = tmp_path / f"node{number}", hours * 3_600_000
                node = make_node(network, home, coordinator.invite(), local=lambda off=off: wall() + off)
                async with at_work(node):
                    await until(lambda n=node: n.daemon.outbox.counts().get("accepted", 0) >= 2)

    run_fake(main)


def test_a_full_outbox_stops_new_work_and_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        coordinator.refusals["submit"] = Refusal(code="paused", sentence="not now", retry_after=500)
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite(), outbox=3)
            async with at_work(node):
                await until(lambda: "outbox is full" in node.daemon.rollouts.blocked)
                await anyio.sleep(30)
                assert node.daemon.outbox.waiting() == 3
                del coordinator.refusals["submit"]
                await until(lambda: node.daemon.outbox.counts().get("accepted", 0) >= 6)

    run_fake(main)


def test_an_interrupted_node_without_answers_ends_within_its_bound_and_keeps_its_work(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        coordinator.refusals["submit"] = Refusal(code="paused", sentence="not now", retry_after=500)
        async with coordinator.serving(network):
            await coordinator.publish(0)
            key = generate_key()
            node = make_node(network, tmp_path / "node", coordinator.invite(), key=key, drain=10.0)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(node.daemon.run)
                await until(lambda: node.daemon.rollouts.done >= 1)
                node.daemon.interrupt("the test")
                with anyio.fail_after(15):
                    await until(lambda: node.peer_id not in network.transports)
            again = make_node(network, tmp_path / "node", coordinator.invite(), key=key)
            assert again.daemon.outbox.waiting() == node.daemon.rollouts.done
            again.daemon.close()

    run_fake(main)


def test_interrupted_twice_ends_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite(), engine=InProcessEngine(seconds=500.0))
            run = asyncio.ensure_future(node.daemon.run())
            await until(lambda: node.daemon.rollouts.working)
            node.daemon.interrupt("once")
            await anyio.sleep(5)
            assert not run.done()
            node.daemon.interrupt("twice")
            with anyio.fail_after(5):
                await asyncio.wait({run})
            assert node.engine.engine is None

    run_fake(main)


def test_a_node_of_before_starts_without_the_coordinator_and_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        key = generate_key()
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite(), key=key)
            async with at_work(node):
                await until(lambda: holds(node, 0))
        again = make_node(network, tmp_path / "node", coordinator.invite(), key=key)
        async with at_work(again):
            await until(lambda: holds(again, 0))
            await until(lambda: "the coordinator is unreachable" in again.daemon.rollouts.blocked)
            assert (await again.daemon.commands.status({}))["state"] == "waiting"

    run_fake(main)


def test_a_waiting_node_sleeps(tmp_path: Path) -> None:
    """Nobody answers for an hour: the loop turns only a few times a second, if at all."""

    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        node = make_node(network, tmp_path / "node", coordinator.invite())
        async with at_work(node):
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
