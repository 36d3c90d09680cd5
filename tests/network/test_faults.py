"""Stories of faults in one process: the shipped coordinator and nodes, an in-memory network, a fake clock.

A story ends with `whole`: no submission was refused, and the nodes' Receipts agree with the coordinator's ledger. One
refusal is excepted: that of a group in work while its node was cut off for longer than the life of a lease.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from benchmarks.memory_network.transport import Link
from echo2.p2p.identity import generate_key
from echo2.p2p.peer.gossip import GossipExchange
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import InProcessEngine, Node, make_node, until
from tests.support.swarm import Swarm, accepted, make_swarm, wall, whole, working


def version(swarm: Swarm) -> int:
    latest = swarm.coordinator.publisher.latest if swarm.coordinator else None
    return latest.version if latest else -1


async def steps(swarm: Swarm, number: int) -> None:
    """Wait for `number` new versions."""
    wanted = version(swarm) + number
    await until(lambda: version(swarm) >= wanted, 600)


@asynccontextmanager
async def story(tmp_path: Path, *, late: int = 0) -> AsyncIterator[tuple[Swarm, list[Node]]]:
    """Run three nodes for two steps; after the body, two more steps, and `whole`."""
    swarm = make_swarm(tmp_path)
    async with swarm.coordinating():
        nodes = [swarm.node(name) for name in ("alice", "bob", "carol")]
        async with working(*nodes):
            await steps(swarm, 2)
            yield swarm, nodes
            await steps(swarm, 2)
            before = {node.peer_id: accepted(node) for node in nodes}
            await until(lambda: all(accepted(node) > before[node.peer_id] for node in nodes), 600)
            whole(swarm, late=late)


@on_fake_clock
async def test_a_node_cut_off_catches_up_when_the_partition_heals(tmp_path: Path) -> None:
    """The two others make all that the learner needs meanwhile, and the third one gets its turn all the same."""
    async with story(tmp_path, late=1) as (swarm, nodes):
        lone, *others = nodes
        swarm.network.partition([lone.peer_id], [swarm.run.peer_id, *(node.peer_id for node in others)])
        before = accepted(lone)
        await steps(swarm, 8)  # far beyond the staleness limit
        assert accepted(lone) <= before + 4
        swarm.network.heal()
        await until(lambda: lone.daemon.engine.current.version >= version(swarm) - 2, 120)


@pytest.mark.slow
@on_fake_clock
async def test_nodes_that_all_lose_the_coordinator_wait_and_go_on(tmp_path: Path) -> None:
    async with story(tmp_path, late=3) as (swarm, nodes):
        swarm.network.partition([swarm.run.peer_id], [node.peer_id for node in nodes])
        await anyio.sleep(60)
        stood = version(swarm)
        await anyio.sleep(60)
        assert version(swarm) == stood
        swarm.network.heal()


@pytest.mark.usefixtures("slow_ticks")
@on_fake_clock
async def test_a_fleet_that_vanishes_in_mid_batch_is_waited_for_and_costs_no_group(tmp_path: Path) -> None:
    """No node says goodbye. Its leases expire, the groups that came are learned from, and the next node goes on."""
    swarm = make_swarm(tmp_path)
    async with swarm.coordinating() as coordinator:
        fleet = [swarm.node(name) for name in ("alice", "bob", "carol")]
        async with working(*fleet):
            await steps(swarm, 2)
            await until(lambda: coordinator.view_builder.build().running >= 2, 60)
            swarm.network.partition([swarm.run.peer_id], [node.peer_id for node in fleet])
        await anyio.sleep(600)
        state, stood = coordinator.view_builder.build(), version(swarm)
        assert state.running == 0, "every lease has expired"
        assert state.undecided == 0
        assert state.received == state.accepted
        assert state.phase == "learning"
        await anyio.sleep(3600)
        assert version(swarm) == stood
        async with working(swarm.node("dave")):
            await steps(swarm, 3)
            whole(swarm)
        assert coordinator.view_builder.build().expired >= 2


@pytest.mark.slow
@on_fake_clock
async def test_nodes_that_no_gossip_reaches_ask_for_the_versions_that_refusals_speak_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with story(tmp_path) as (swarm, _):
        monkeypatch.setattr(GossipExchange, "_spread", lambda *_: None)
        await steps(swarm, 8)  # far beyond the staleness limit


@pytest.mark.slow
@on_fake_clock
async def test_a_coordinator_stopped_for_longer_than_a_lease_lives_costs_no_lease(tmp_path: Path) -> None:
    """As after SIGSTOP or in a suspended machine, the process neither ticks nor answers, and then continues at once."""
    async with story(tmp_path) as (swarm, _):
        coordinator = swarm.coordinator
        tick, here = coordinator.group_service.tick, coordinator.absence.check
        swarm.network.freeze(swarm.run.peer_id)
        coordinator.group_service.tick = coordinator.absence.check = lambda *_: 0  # type: ignore[method-assign,assignment]
        await anyio.sleep(60)
        coordinator.group_service.tick, coordinator.absence.check = tick, here  # type: ignore[method-assign]
        swarm.network.thaw(swarm.run.peer_id)
        await steps(swarm, 2)
        assert coordinator.view_builder.build().expired == 0


@pytest.mark.slow
@on_fake_clock
async def test_a_run_over_a_line_that_loses_a_third_of_everything_goes_on(tmp_path: Path) -> None:
    async with story(tmp_path) as (swarm, nodes):
        for node in nodes:
            swarm.network.set_link(node.peer_id, swarm.run.peer_id, Link(loss=0.33, delay=0.05))
        await steps(swarm, 6)


@on_fake_clock
async def test_a_late_joiner_starts_from_nothing_and_is_credited(tmp_path: Path) -> None:
    async with story(tmp_path) as (swarm, _):
        await steps(swarm, 10)
        late = swarm.node("late")
        async with working(late):
            await until(lambda: accepted(late) >= 3, 120)
            assert late.daemon.engine.current.version >= version(swarm) - 4
        swarm.nodes.remove(late)


@pytest.mark.parametrize("crashes", [1, 3])
@pytest.mark.slow_but("1")
@on_fake_clock
async def test_a_learner_that_dies_in_a_step_makes_it_again_of_the_same_groups_or_others_never_twice(
    tmp_path: Path, crashes: int
) -> None:
    async with story(tmp_path) as (swarm, _):
        swarm.learner.crashes = crashes
        await until(lambda: swarm.learner.crashes == 0, 120)


@pytest.mark.slow
@on_fake_clock
async def test_the_absence_of_the_coordinator_for_ten_minutes_costs_no_node(tmp_path: Path) -> None:
    """Ten minutes exceed the life of a lease: a group in work when they begin is delivered and paid after they end."""
    swarm = make_swarm(tmp_path)
    nodes = [swarm.node(name) for name in ("alice", "bob")]
    async with working(*nodes):
        async with swarm.coordinating():
            await steps(swarm, 3)
        before = [accepted(node) for node in nodes]
        worked = [node.daemon.rollouts.done for node in nodes]
        await anyio.sleep(600)
        assert sum(node.daemon.outbox.waiting() for node in nodes) > 0, "a group in work when it went"
        assert sum(node.daemon.rollouts.done for node in nodes) <= sum(worked) + 2
        async with swarm.coordinating() as back:
            await until(lambda: all(accepted(node) > old for node, old in zip(nodes, before, strict=True)), 120)
            await steps(swarm, 2)
            assert back.view_builder.build().expired == 0
            whole(swarm)


@pytest.mark.slow
@on_fake_clock
async def test_a_clock_that_is_set_back_by_a_year_stops_no_plan_and_no_tidying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = make_swarm(tmp_path)
    async with swarm.coordinating() as coordinator:
        async with working(swarm.node("alice")):
            await anyio.sleep(60)
        tidied = 0

        async def retain(*_: object) -> None:
            nonlocal tidied
            tidied += 1

        monkeypatch.setattr(coordinator.publisher, "retain", retain)
        for part in (coordinator, coordinator.feeding):
            clock = part._clock
            monkeypatch.setattr(part, "_clock", clock if clock is not wall else lambda: wall() - 3e7)
        coordinator.feeding._nodes.clear()
        await anyio.sleep(120)
        assert tidied >= 3
        with anyio.fail_after(30):
            await coordinator.feeding._await_plan("a newcomer", False)


@pytest.mark.slow
@on_fake_clock
async def test_a_coordinator_that_goes_and_comes_again_and_again_loses_nothing(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    nodes = [swarm.node(name) for name in ("alice", "bob")]
    reached = [0]
    async with working(*nodes):
        for absence in (0.0, 1.0, 7.0, 30.0):
            async with swarm.coordinating():
                await until(lambda: version(swarm) >= reached[-1] + 2, 120)
                whole(swarm)
                reached.append(version(swarm))
            await anyio.sleep(absence)
    assert reached == sorted(reached)


@on_fake_clock
async def test_a_node_restarted_with_a_full_outbox_delivers_it_first(tmp_path: Path) -> None:
    """The coordinator stops while a group is in work, and the node once that group is finished; both start again."""
    swarm, key = make_swarm(tmp_path), generate_key()

    def alice() -> Node:
        home, local = tmp_path / "alice", lambda: int(wall() * 1000)
        engine = InProcessEngine(seconds=3.0)
        return make_node(swarm.network, home, swarm.invite(), key=key, engine=engine, local=local, outbox=1)

    first = alice()
    async with working(first):
        async with swarm.coordinating():
            await until(lambda: accepted(first) >= 1 and first.daemon.rollouts.working, 120)
        await until(lambda: first.daemon.outbox.full, 120)
        owed = [row.lease for row in first.daemon.outbox.rows() if row.state == "queued"]
    swarm.nodes.append(again := alice())
    async with swarm.coordinating(), working(again):
        await until(lambda: accepted(again) >= 4, 120)
        assert {row.lease: row.state for row in again.daemon.outbox.rows()}[owed[0]] == "accepted"
        whole(swarm)


@pytest.mark.slow
@on_fake_clock
async def test_a_submission_whose_answer_is_lost_is_sent_again_and_counts_once(tmp_path: Path) -> None:
    """The coordinator receives every group, and its answer is lost five times."""
    async with story(tmp_path) as (swarm, _):
        submissions = swarm.coordinator.group_service.submissions
        honest, lost = submissions.submit, 0

        def answer_lost(node: bytes, data: bytes, now: int) -> object:
            nonlocal lost
            answer = honest(node, data, now)
            if lost < 5:
                lost += 1
                raise RuntimeError("the answer is lost")
            return answer

        submissions.submit = answer_lost  # type: ignore[assignment,method-assign]
        await until(lambda: lost == 5, 120)
        await steps(swarm, 2)
