"""A node and its owner: a fake owner on a fake clock, one test per rule."""

import datetime

import anyio
import anyio.lowlevel
import pytest

from echo2.node.owner import owner_watch
from echo2.node.owner.owner_probes import Probe
from echo2.node.owner.owner_rules import ORDER, OwnerRule, OwnerRules
from echo2.node.owner.work_hours import WorkHours
from echo2.node.run_state import NodeRunState
from echo2.p2p.errors import Unreachable
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import InProcessEngine, Node, until, wall
from tests.support.small_run import SmallRun
from tests.support.swarm import accepted


class FakeOwner:
    """An owner who does one thing or nothing. `doing`: what a probe sees of it. `looks`: looks so far."""

    def __init__(self, rule: OwnerRule = "program") -> None:
        self.doing, self.looks = "", 0
        self.probe = Probe(rule, "a fake owner", self.look)
        self.fault: Exception | None = None

    def look(self) -> str:
        self.looks += 1
        if self.fault is not None:
            raise self.fault
        return self.doing


async def standing(node: Node) -> tuple[str, str]:
    """Return a node's state, and what blocks it."""
    status = await node.daemon.commands.status({})
    assert (await node.daemon.commands.why({}))["blocked"] == status["blocked"] or not status["blocked"]
    return status["state"], status["blocked"]


@pytest.mark.parametrize("rule", [rule for rule in ORDER if rule != "hours"])
@on_fake_clock
async def test_a_node_gives_way_to_each_occasion_and_comes_back_after_quiet(
    rule: OwnerRule, small_run: SmallRun
) -> None:
    owner, coordinator = FakeOwner(rule), small_run.coordinator
    async with small_run.working(owner=[owner.probe], engine=InProcessEngine(seconds=0.4)) as node:
        await until(lambda: accepted(node) >= 2)
        owner.doing = "the owner plays"
        await anyio.sleep(1.0)
        asked, begun = coordinator.asked["lease"], set(coordinator.leases)
        state, blocked = await standing(node)
        assert state == "paused"
        assert blocked.startswith("the owner plays; work goes on 60 s after that ends")
        await anyio.sleep(4.0)
        assert node.engine.engine is None, "the memory is free within 5 s"
        await anyio.sleep(300)
        assert coordinator.asked["lease"] == asked
        owner.doing, quiet_from = "", anyio.current_time()
        await anyio.sleep(30)
        assert "since this ended: the owner plays" in (await standing(node))[1]
        await until(lambda: coordinator.asked["lease"] > asked, 120)
        assert 60.0 <= anyio.current_time() - quiet_from <= 60.0 + owner_watch.REST_SECONDS + 3.0
        await until(lambda: begun <= set(coordinator.submitted) | given_back(small_run))
        assert node.daemon.engine.deaths == 0


def given_back(small_run: SmallRun) -> set[bytes]:
    """Return the leases that were given back."""
    return {lease for report in small_run.coordinator.reports for lease in report.returned}


@on_fake_clock
async def test_a_resume_by_hand_is_believed_at_once_and_overrides_what_blocks_until_it_has_ended(
    small_run: SmallRun,
) -> None:
    owner = FakeOwner()
    engine = InProcessEngine(seconds=0.4, starting=20.0)
    async with small_run.working(owner=[owner.probe], engine=engine) as node:
        await until(lambda: accepted(node) >= 1)
        owner.doing = "steam is running"
        await anyio.sleep(30)
        assert (await standing(node))[0] == "paused"
        await node.daemon.commands.resume({})
        await anyio.lowlevel.checkpoint()
        assert await standing(node) == ("waiting", "resumed: the engine starts and loads the weights")
        done = accepted(node)
        await until(lambda: accepted(node) > done)
        assert (await standing(node))[0] != "paused"
        owner.doing = ""
        await anyio.sleep(2)
        owner.doing = "steam is running"
        await anyio.sleep(1)
        assert (await standing(node))[0] == "paused"


@on_fake_clock
async def test_a_pause_by_hand_is_above_the_rules(small_run: SmallRun) -> None:
    owner = FakeOwner()
    async with small_run.working(owner=[owner.probe]) as node:
        await until(lambda: accepted(node) >= 1)
        owner.doing = "steam is running"
        await anyio.sleep(1)
        await node.daemon.commands.pause({"seconds": 200})
        assert (await standing(node))[1].startswith("paused by the owner for 200 s more")
        owner.doing = ""
        await anyio.sleep(150)
        assert (await standing(node))[1].startswith("paused by the owner for"), "the rule has ended, the pause has not"
        owner.doing = "steam is running"
        await anyio.sleep(60)
        assert (await standing(node))[1].startswith("steam is running"), "the pause has ended, the rule has not"


@on_fake_clock
@pytest.mark.slow
async def test_a_node_works_in_its_hours_alone(small_run: SmallRun) -> None:
    now = datetime.datetime.fromtimestamp(wall() / 1000)
    begin, end = now + datetime.timedelta(minutes=5), now + datetime.timedelta(minutes=10)
    async with small_run.working(hours=f"{begin:%H:%M}-{end:%H:%M}") as node:
        await anyio.sleep(120)
        state, blocked = await standing(node)
        assert state == "paused"
        assert f"work begins {begin:%a %H:%M}" in blocked
        assert not small_run.coordinator.leases
        await until(lambda: accepted(node) >= 1, 400)
        await anyio.sleep(600)
        assert (await standing(node))[0] == "paused"
        done = accepted(node)
        await node.daemon.commands.resume({})
        await until(lambda: accepted(node) > done)


@on_fake_clock
async def test_groups_are_kept_while_their_leases_allow_and_given_back_before_they_expire(small_run: SmallRun) -> None:
    owner, coordinator = FakeOwner(), small_run.coordinator
    async with small_run.working(owner=[owner.probe], quiet=5, engine=InProcessEngine(seconds=20.0)) as node:
        await until(lambda: node.daemon.rollouts.working)
        (lease,) = coordinator.leases.values()
        owner.doing = "steam is running"
        await anyio.sleep(8)
        owner.doing = ""
        await until(lambda: accepted(node) == 1)
        assert not given_back(small_run), "it was kept, and made again after the pause"
        await until(lambda: len(coordinator.leases) == 2 and node.daemon.rollouts.working)
        owner.doing = "steam is running"
        await until(lambda: given_back(small_run), 60)
        lease = coordinator.leases[next(iter(given_back(small_run)))]
        assert wall() < lease.expires
        assert not node.daemon.rollouts.working


@on_fake_clock
async def test_a_rest_that_outlasts_the_leases_gives_them_back_at_once(small_run: SmallRun) -> None:
    async with small_run.working(engine=InProcessEngine(seconds=20.0)) as node:
        await until(lambda: node.daemon.rollouts.working)
        await node.daemon.commands.pause({"seconds": 3600})
        await anyio.sleep(5)
        assert given_back(small_run) == set(small_run.coordinator.leases)


@on_fake_clock
async def test_leases_that_the_coordinator_does_not_take_back_at_once_are_given_back_later(
    small_run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = small_run.coordinator
    async with small_run.working(engine=InProcessEngine(seconds=20.0)) as node:
        await until(lambda: node.daemon.rollouts.working)
        call = node.coordinator_client.call
        monkeypatch.setattr(node.coordinator_client, "call", unreachable)
        await node.daemon.commands.pause({"seconds": 3600})
        await anyio.sleep(10)
        assert node.daemon.outbox.open_leases()
        monkeypatch.setattr(node.coordinator_client, "call", call)
        await anyio.sleep(2)
        assert given_back(small_run) == set(coordinator.leases)


async def unreachable(method: object, request: object) -> None:
    raise Unreachable("the coordinator does not answer")


@on_fake_clock
async def test_no_weights_are_fetched_over_a_metered_line(small_run: SmallRun) -> None:
    owner, coordinator = FakeOwner("metered"), small_run.coordinator
    async with small_run.working(owner=[owner.probe]) as node:
        await until(lambda: accepted(node) >= 1)
        owner.doing = "the line is metered"
        await anyio.sleep(10)
        fetched = node.daemon.payloads.taken_bytes
        await coordinator.publish(1)
        await anyio.sleep(60)
        assert node.daemon.payloads.taken_bytes == fetched
        owner.doing = ""
        await until(lambda: node.holds(1), 100)


@on_fake_clock
@pytest.mark.slow
async def test_a_probe_that_fails_blocks_nothing_and_is_tried_again(small_run: SmallRun) -> None:
    owner = FakeOwner()
    owner.fault = OSError("broken")
    async with small_run.working(owner=[owner.probe]) as node:
        await until(lambda: accepted(node) >= 1)
        assert owner.looks == 1
        owner.fault, owner.doing = None, "steam is running"
        await until(lambda: node.daemon.run_state.paused, 2 * owner_watch.RETRY_SECONDS)


@on_fake_clock
@pytest.mark.slow
async def test_a_node_looks_once_in_0_9_s_while_it_works_and_rarely_while_it_rests(small_run: SmallRun) -> None:
    owner = FakeOwner()
    async with small_run.working(owner=[owner.probe]) as node:
        await until(lambda: accepted(node) >= 1)
        before = owner.looks
        await anyio.sleep(90)
        assert 95 <= owner.looks - before <= 101
        owner.doing = "steam is running"
        await anyio.sleep(5)
        before = owner.looks
        await anyio.sleep(90)
        assert owner.looks - before <= 46


def test_a_node_with_nothing_to_watch_watches_nothing() -> None:
    watched = [Probe("battery", "there is no battery", None)]
    watch = owner_watch.OwnerWatch(
        OwnerRules(WorkHours(), 60.0), watched, NodeRunState(lambda: 0), datetime.datetime.now
    )
    anyio.run(watch.run)
