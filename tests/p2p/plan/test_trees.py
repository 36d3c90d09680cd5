"""Plans: what every one of them must be, and what it costs to follow peers that come and go."""

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.plan.repair import SPARE, Planner, repair
from p2p.plan.trees import LinkCapacity, PayloadSize, Plan, build, fanout, lower_bound, predicted, star

MB = 1_000_000
LOAD = PayloadSize(40 * MB, 40 * MB // 256)
UPLINKS = st.sampled_from([0.0, 2e5, 1e6, 1.25e6, 5e6, 2e7, 1e8])
LINES = st.lists(
    st.builds(
        LinkCapacity, uplink=UPLINKS, downlink=st.sampled_from([5e5, 1e7, math.inf]),
        latency=st.floats(0.001, 0.2), dialable=st.booleans() | st.just(True),
    ),
    min_size=1, max_size=60,
)  # fmt: skip


def network(number: int, uplink: float = 10.0 * MB, latency: float = 0.01) -> dict[str, LinkCapacity]:
    return {f"p{index}": LinkCapacity(uplink, latency=latency) for index in range(number)}


def reached(plan: Plan, stripe: int) -> set[str]:
    children, reached_peers, waiting = plan.children(stripe), set[str](), [plan.source]
    while waiting:
        fed = children.get(waiting.pop(), [])
        assert not reached_peers & set(fed)
        reached_peers |= set(fed)
        waiting += fed
    return reached_peers


def check(plan: Plan, lines: dict[str, LinkCapacity]) -> None:
    """Every peer is reached in each stripe, once."""
    assert plan.parents.keys() == lines.keys()
    for stripe in range(plan.stripes):
        assert reached(plan, stripe) == lines.keys()


@settings(max_examples=80, deadline=None)
@given(LINES, st.sampled_from([1e5, 1e6, 1e7, 1e8]), st.integers(0, 99))
def test_a_fresh_plan_reaches_everybody_by_disjoint_inner_nodes_within_their_uplinks(lines, uplink, seed):
    peers = {f"p{index}": link for index, link in enumerate(lines)}
    plan = build("source", uplink, peers, LOAD, seed)
    check(plan, peers)
    assert plan == build("source", uplink, peers, LOAD, seed)
    inner = Counter[str]()
    for stripe in range(plan.stripes):
        for feeder, fed in plan.children(stripe).items():
            if feeder != "source":
                inner[feeder] += 1
                assert peers[feeder].dialable
                assert len(fed) <= fanout(peers[feeder].uplink, plan.stripes, plan.rate, len(peers))
    assert set(inner.values()) <= {1}
    from_source = sum(ups.count("source") for ups in plan.parents.values())
    assert from_source * plan.rate / plan.stripes <= uplink * 1.001
    assert (
        plan.seconds == predicted(plan, uplink, peers, LOAD) >= lower_bound(uplink, peers.values(), LOAD.length) * 0.999
    )


def test_the_bound_is_that_of_the_slowest_of_three_limits():
    lines = network(9).values()
    assert lower_bound(10 * MB, lines, 40 * MB) == pytest.approx(4.0)
    assert lower_bound(1 * MB, lines, 40 * MB) == pytest.approx(40.0)
    assert lower_bound(100 * MB, [LinkCapacity(MB)] * 10, 40 * MB) == pytest.approx(400 / 110)
    assert lower_bound(10 * MB, [*lines, LinkCapacity(downlink=MB)], 40 * MB) == pytest.approx(40.0)
    assert lower_bound(10 * MB, [], 40 * MB) == 0
    assert star(10 * MB, 9, 40 * MB) == pytest.approx(36.0)


@pytest.mark.parametrize(("number", "most"), {1: 1.02, 4: 1.05, 16: 1.08, 100: 1.12, 1000: 1.15, 4000: 1.2}.items())
def test_equal_lines_come_close_to_the_bound_and_stay_so_as_peers_are_added(number, most):
    lines = network(number)
    assert build("source", 10 * MB, lines, LOAD, 1).seconds <= most * lower_bound(10 * MB, lines.values(), LOAD.length)


def test_few_peers_behind_each_other_make_a_chain():
    plan = build("source", 10 * MB, network(2), LOAD, 1)
    assert plan.stripes == 1
    assert sorted(map(len, plan.children(0).values())) == [1, 1]


def test_a_weak_uplink_is_a_leaf_everywhere_and_the_strong_stand_near_the_root():
    lines = {f"p{index}": LinkCapacity(20.0 * MB if index < 12 else 0.1 * MB, latency=0.01) for index in range(24)}
    plan = build("source", 10 * MB, lines, LOAD, 1)
    feeders = {up for ups in plan.parents.values() for up in ups}
    assert feeders <= {"source", *(f"p{index}" for index in range(12))}


def test_who_receives_slower_than_the_payload_flows_feeds_nobody():
    lines = network(8) | {"slow": LinkCapacity(100.0 * MB, downlink=0.5 * MB)}
    plan = build("source", 10 * MB, lines, LOAD, 1)
    assert "slow" not in {up for ups in plan.parents.values() for up in ups}


def test_a_run_without_volunteers_has_an_empty_plan():
    assert build("source", MB, {}, LOAD, 1).parents == {}


def test_one_departure_changes_only_the_edges_of_those_it_fed():
    lines = network(100)
    planner = Planner("source", 1)
    before = planner.update(10 * MB, lines, LOAD)
    gone = next(up for up in before.parents["p0"] if up != "source")
    after = planner.update(10 * MB, {peer: link for peer, link in lines.items() if peer != gone}, LOAD)
    orphans = {edge for edge in before.edges() if edge[1] == gone}
    assert before.edges() - after.edges() == orphans | {edge for edge in before.edges() if edge[2] == gone}
    check(after, {peer: link for peer, link in lines.items() if peer != gone})


def test_one_arrival_changes_no_edge_of_others():
    lines = network(100)
    planner = Planner("source", 1)
    before = planner.update(10 * MB, lines, LOAD)
    after = planner.update(10 * MB, lines | {"new": LinkCapacity(10.0 * MB, latency=0.01)}, LOAD)
    assert before.edges() < after.edges()
    assert {edge[2] for edge in after.edges() - before.edges()} == {"new"}


def test_many_departures_at_once_give_a_fresh_plan():
    lines = network(100)
    planner = Planner("source", 1)
    planner.update(10 * MB, lines, LOAD)
    rest = {peer: link for peer, link in lines.items() if int(peer[1:]) % 3}
    assert planner.update(10 * MB, rest, LOAD) == build("source", 10 * MB, rest, LOAD, 1)


@settings(max_examples=40, deadline=None)
@given(LINES, st.lists(st.tuples(st.integers(0, 59), st.booleans()), max_size=25), st.integers(0, 9))
def test_a_plan_holds_through_any_coming_and_going(lines, moves, seed):
    everybody = {f"p{index}": link for index, link in enumerate(lines)}
    here = dict(everybody)
    planner = Planner("source", seed)
    for number, comes in moves:
        peer = f"p{number}"
        if comes and peer in everybody:
            here[peer] = everybody[peer]
        elif len(here) > 1:
            here.pop(peer, None)
        plan = planner.update(MB, here, LOAD)
        check(plan, here)
        feeders = {up for ups in plan.parents.values() for up in ups} - {"source"}
        assert all(here[peer].dialable for peer in feeders)


def test_a_long_run_of_churn_stays_within_reach_of_a_fresh_plan():
    lines, planner = network(64), Planner("source", 1)
    planner.update(10 * MB, lines, LOAD)
    for number in range(200):
        lines = dict(list(lines.items())[1:]) | {f"new{number}": LinkCapacity(10.0 * MB, latency=0.01)}
        plan = planner.update(10 * MB, lines, LOAD)
        check(plan, lines)
        assert plan.seconds < 1.5 * lower_bound(10 * MB, lines.values(), LOAD.length)


def from_source(plan: Plan) -> float:
    """Bytes per second that the source sends by this plan."""
    return sum(ups.count("source") for ups in plan.parents.values()) * plan.rate / plan.stripes


def test_a_quarter_of_the_source_is_left_to_those_who_ask_beside_the_plan_where_others_make_up_for_it():
    planner, lines = Planner("source", 1), network(100, uplink=3.0 * MB)
    planner.update(10 * MB, lines, LOAD)
    assert from_source(planner.plan) <= (1 - SPARE) * 10 * MB
    planner.update(10 * MB, {peer: link for peer, link in lines.items() if peer != "p0"}, LOAD)
    assert from_source(planner.plan) <= (1 - SPARE) * 10 * MB


@pytest.mark.parametrize("lines", [network(16), network(4, uplink=1.0 * MB)], ids=["equal", "few and weak"])
def test_all_of_the_source_is_planned_where_a_broadcast_needs_it(lines):
    planner = Planner("source", 1)
    planner.update(10 * MB, lines, LOAD)
    assert from_source(planner.plan) > (1 - SPARE) * 10 * MB


def test_a_parent_that_does_not_feed_a_peer_is_replaced_for_that_peer_alone():
    lines = network(20)
    planner = Planner("source", 1)
    before = planner.update(10 * MB, lines, LOAD)
    peer, parent = next((p, up) for p, ups in before.parents.items() for up in ups if up != "source")
    after = planner.update(10 * MB, lines, LOAD, {peer: {parent}})
    assert parent not in after.parents[peer]
    assert {edge for edge in before.edges() - after.edges()} <= {(s, parent, peer) for s in range(before.stripes)}


def test_whom_nobody_else_can_feed_is_fed_by_the_source():
    lines = network(2) | {"far": LinkCapacity(0.0)}
    plan = build("source", 10 * MB, lines, LOAD, 1)
    after = repair(plan, 10 * MB, lines, LOAD, {"far": {"p0", "p1"}})
    assert set(after.parents["far"]) == {"source"}
