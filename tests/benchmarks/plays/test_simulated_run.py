"""The simulation of leases repeats itself, and the window makes groups fresher without idling the learner."""

import math
from itertools import pairwise

import pytest

from benchmarks.pacing import least_parts
from benchmarks.plays import simulated_run
from benchmarks.plays.run_scene import RunScene, fleet
from benchmarks.plays.simulated_node import SimulatedNode
from benchmarks.plays.simulated_run import SimulatedRun
from echo2.coordinator.leases.room_shares import Denial, Requester, Room
from echo2.coordinator.metrics.capacity import idle_share

STEPS = 25


@pytest.mark.parametrize("at_once", [1, 4])
@pytest.mark.slow_but("1")
def test_under_the_window_a_quick_fleet_learns_from_fresher_groups_and_the_learner_does_not_wait(at_once: int) -> None:
    turnarounds = fleet(False, 8, 3.0, 16 * at_once, at_once, seed=0)
    scene = RunScene(turnarounds, at_once=at_once, batch=16 * at_once)
    room, window = (SimulatedRun(scene, windowed=windowed, seed=1).run(STEPS) for windowed in (False, True))
    assert room.age > 3.9
    assert window.age < 0.6 * room.age
    assert window.idle < 0.01
    assert window.leases < 0.9 * room.leases


def test_the_groups_on_their_way_are_the_open_leases_the_undecided_and_the_buffered() -> None:
    world = SimulatedRun(RunScene(fleet(True, 12, 1.5, 16, 2, seed=3), at_once=2, life=8.0), windowed=True, seed=2)
    late = 0
    for step in range(STEPS, 2 * STEPS):
        world.run(step)
        oldest = world.step - world.scene.staleness
        running = [lease for lease in world.open.values() if lease.version >= oldest]
        leased = sum(lease.late is None or lease.late >= world.clock.now * 1000 - 1 for lease in running)
        assert world.on_their_way() == leased + world.undecided + len(world.buffer)
        assert leased
        late += len(running) - leased
    assert late, "late ones are left out"


def test_by_room_alone_a_nodes_share_is_of_the_whole_room_whatever_the_draws_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = SimulatedRun(RunScene(fleet(True, 8, 1.5, 16, 8, seed=1), at_once=8), windowed=False, seed=1)
    rooms, refused = set[int](), run.shares.denial_for

    def noted(requester: Requester, room: Room, now: int) -> Denial | None:
        rooms.add(room.whole)
        return refused(requester, room, now)

    monkeypatch.setattr(run.shares, "denial_for", noted)
    run.run(8)
    assert run.lease_window.groups(0, behind=False) < 5 * 16, "the window is smaller"
    assert rooms == {5 * 16}


def test_the_same_seed_gives_the_same_run() -> None:
    scene = RunScene(fleet(True, 8, 1.5, 16, 1, seed=1), life=20.0, publish_every=2)
    first, second = (SimulatedRun(scene, windowed=True, seed=5).run(10) for _ in range(2))
    assert first == second


def test_a_fleet_makes_the_batches_that_are_asked_for() -> None:
    turnarounds = fleet(True, 32, 1.5, 16, 8, seed=0)
    assert 8 * sum(1 / turnaround for turnaround in turnarounds) == pytest.approx(1.5 * 16)
    assert max(turnarounds) / min(turnarounds) <= 10
    assert not math.isinf(max(turnarounds))


@pytest.mark.slow
@pytest.mark.parametrize("gives_back", [False, True])
def test_a_node_that_is_back_gives_its_leases_back_where_the_scene_says_so(gives_back: bool) -> None:
    scene = RunScene(fleet(False, 16, 1.5, 16, 1, 0), life=4.0, away=0.1, step_seconds=600.0, gives_back=gives_back)
    run = SimulatedRun(scene, windowed=True, seed=1)
    run.run(steps=20)
    left = [lease for lease, one in run.open.items() if one.node.here and lease not in one.node.running]
    assert (left == []) == gives_back


def test_without_peers_the_coordinator_sends_one_copy_after_the_other_and_none_that_is_outdated() -> None:
    scene = RunScene(fleet(False, 8, 1.5, 16, 1, seed=0), star=0.5)  # a round of eight copies takes four steps
    run = SimulatedRun(scene, windowed=False, seed=1)
    result = run.run(20)
    assert result.copies == pytest.approx(2.0, abs=0.2)  # the line is full from the first version on
    newest = sorted(node.newest for node in run.nodes)
    assert newest[-1] - newest[0] <= 5
    assert newest[-1] <= run.published
    quick = SimulatedRun(scene._replace(star=0.01), windowed=False, seed=1).run(20)
    assert quick.copies == pytest.approx(8.0, abs=0.5)


def test_a_node_that_is_no_longer_chosen_is_paid_until_its_groups_have_come() -> None:
    scene = RunScene((0.5, 0.5), batch=1, asks=(3_600, 3_600))
    run = SimulatedRun(scene, windowed=False, seed=1)
    run.clock.run(lambda: bool(run.nodes[0].running), 60.0)
    first, began = run.nodes[0], run.clock.now
    first.active = False
    run._count_hours(first)
    run.clock.run(lambda: not first.running, 600.0)
    ended = run.clock.now
    assert ended > began + 1
    run.clock.now = ended + 100
    before = run.paid
    run._count_hours(first)
    assert run.paid == before  # nothing since its group came


class OneLate(SimulatedRun):
    """A run whose first node hears of each version 0.4 s late. `given_at`: when it got its leases, seconds."""

    def __init__(self, scene: RunScene) -> None:
        self.given_at = [0.0]
        super().__init__(scene, windowed=True, seed=0)

    def _hear(self, node: SimulatedNode, version: int) -> None:
        late = 0.4 if node is self.nodes[0] else 0.0
        self.clock.after(late, super()._hear, node, version)

    def _give(self, node: SimulatedNode) -> None:
        if node is self.nodes[0]:
            self.given_at.append(self.clock.now)
        super()._give(node)


@pytest.mark.parametrize(("nodes", "supply", "batch"), [(3, 2.0, 4), (32, 3.0, 16)])
@pytest.mark.slow_but("3-2.0-4")
def test_a_node_that_always_asks_late_gets_a_lease_in_its_turn_and_the_learner_waits_for_none(
    nodes: int, supply: float, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others' times have no spread, and a refused node is away for a step at least."""
    for constant, value in (("GROUP_CV", 0.001), ("STEP_CV", 0.001)):
        monkeypatch.setattr(simulated_run, constant, value)
    turnarounds = fleet(False, nodes, supply, batch, 1, seed=0)
    run = OneLate(RunScene(turnarounds, batch=batch, step_seconds=1.0, broadcast=0.05))
    result = run.run(100)
    waits = [after - before for before, after in pairwise([*run.given_at, run.clock.now])]
    assert max(waits) <= 6
    assert result.idle <= 0.002
    assert result.age <= 1.5


def test_a_scorer_that_does_not_keep_up_leaves_its_groups_young() -> None:
    """A queue at the scorer would count as need, and grow to what S allows: 3.8 steps before rule 5 of the window."""
    slow = RunScene(fleet(False, 20, 1.5, 16, 1, 0), batch=16, scorer_load=1.5)
    run = SimulatedRun(slow, windowed=True, seed=1)
    result = run.run(steps=60.0)
    assert result.idle == pytest.approx(1 / 3, abs=0.06), "a step takes as long as its verdicts"
    assert result.age <= 2.6
    assert result.scored > 0.95
    two = SimulatedRun(slow._replace(scorers=2, scorer_load=0.75), windowed=True, seed=1).run(steps=60.0)
    assert two.idle < 0.03


@pytest.mark.parametrize(("supply", "least"), least_parts.BARS.items())
@pytest.mark.parametrize("nodes", least_parts.FLEETS)
@pytest.mark.slow_but("4-1.5-0.8")
def test_no_node_is_starved_where_the_quickest_is_twenty_times_as_quick(
    nodes: int, supply: float, least: float
) -> None:
    """The slowest group takes three steps of S = 8. By shares of measured rates alone the least part was 0.25 at 1.5
    times the supply: a slow node's groups are on their way for longer, and the fewer it is granted, the lower its rate.
    At 1.1 times all nodes are at work all the time, and slow ones lose what they finish before each version."""
    run = SimulatedRun(least_parts.scene_of(nodes, supply), windowed=True, seed=1)
    result = run.run(least_parts.STEPS)
    assert run.least_part() >= least
    assert result.age <= 2.5


@pytest.mark.slow
@pytest.mark.parametrize(("staleness", "turnaround", "supply"), [(4, 2.0, 0.9), (4, 3.0, 0.7), (2, 1.3, 1.1)])
def test_the_idle_share_of_the_capacity_model_is_that_of_a_fleet_below_its_need(
    staleness: int, turnaround: float, supply: float
) -> None:
    """By 1 - mu/mu_min the second and the third had none: no supply would be enough, if idle steps were no longer."""
    scene = RunScene((turnaround,) * round(16 * supply * turnaround), batch=16, staleness=staleness, step_seconds=10.0)
    idle = SimulatedRun(scene, windowed=True, seed=1).run(60).idle
    back = scene.broadcast + turnaround + scene.verdict
    assert idle_share(staleness, 1, 1.0, back, 16, 16 * supply) == pytest.approx(idle, abs=0.06)
    assert idle > 0.05


class Blindfolded(SimulatedRun):
    """A run in which each decision on a lease is made while all that a coordinator cannot see has other values."""

    def _refused(self, node: SimulatedNode) -> float | None:
        scene, step, turnaround = self.scene, self.step_seconds, node.turnaround
        self.scene = RunScene(
            turnarounds=(), at_once=scene.at_once, batch=scene.batch, staleness=scene.staleness, life=0.1, away=99.0,
            scorers=7, scorer_load=5.0, broadcast=3.0, step_seconds=7 * step, length_spread=2.0, star=1.0, copies=9.0,
        )  # fmt: skip
        self.step_seconds, node.turnaround = 7 * step, 3 * turnaround
        try:
            return super()._refused(node)
        finally:
            self.scene, self.step_seconds, node.turnaround = scene, step, turnaround


@pytest.mark.parametrize("life", [math.inf, 20.0])
@pytest.mark.parametrize("at_once", [1, 8])
def test_no_decision_on_a_lease_knows_what_a_coordinator_cannot_see(at_once: int, life: float) -> None:
    scene = RunScene(fleet(True, 8, 1.5, 16, at_once, 1), at_once=at_once, life=life)
    seen, blindfolded = (kind(scene, windowed=True, seed=3).run(40) for kind in (SimulatedRun, Blindfolded))
    assert seen == blindfolded
