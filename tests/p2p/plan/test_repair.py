"""A plan follows peers that join and leave, with few edges changed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.p2p.plan.repair import SPARE, Planner, repair
from echo2.p2p.plan.trees import LinkCapacity, Plan, build, lower_bound
from tests.support.plans import LINES, LOAD, MB, check, network


def edges(plan: Plan) -> set[tuple[int, str, str]]:
    """Return (stripe, parent, child) of all stripes."""
    return {(stripe, up, peer) for peer, ups in plan.parents.items() for stripe, up in enumerate(ups)}


def test_one_departure_changes_only_the_edges_of_those_it_fed():
    lines = network(100)
    planner = Planner("source", 1)
    before = planner.update(10 * MB, lines, LOAD)
    gone = next(up for up in before.parents["p0"] if up != "source")
    after = planner.update(10 * MB, {peer: link for peer, link in lines.items() if peer != gone}, LOAD)
    orphans = {edge for edge in edges(before) if edge[1] == gone}
    assert edges(before) - edges(after) == orphans | {edge for edge in edges(before) if edge[2] == gone}
    check(after, {peer: link for peer, link in lines.items() if peer != gone})


def test_one_arrival_changes_no_edge_of_others():
    lines = network(100)
    planner = Planner("source", 1)
    before = planner.update(10 * MB, lines, LOAD)
    after = planner.update(10 * MB, lines | {"new": LinkCapacity(10.0 * MB, latency=0.01)}, LOAD)
    assert edges(before) < edges(after)
    assert {edge[2] for edge in edges(after) - edges(before)} == {"new"}


def test_many_departures_at_once_give_a_fresh_plan():
    lines = network(100)
    planner = Planner("source", 1)
    planner.update(10 * MB, lines, LOAD)
    rest = {peer: link for peer, link in lines.items() if int(peer[1:]) % 3}
    assert planner.update(10 * MB, rest, LOAD) == build("source", 10 * MB, rest, LOAD, 1)


@settings(max_examples=40, deadline=None)
@given(LINES, st.lists(st.tuples(st.integers(0, 59), st.booleans()), max_size=25), st.integers(0, 9))
def test_a_plan_stays_valid_through_any_arrivals_and_departures(lines, moves, seed):
    all_peers = {f"p{index}": link for index, link in enumerate(lines)}
    here = dict(all_peers)
    planner = Planner("source", seed)
    for number, comes in moves:
        peer = f"p{number}"
        if comes and peer in all_peers:
            here[peer] = all_peers[peer]
        elif len(here) > 1:
            here.pop(peer, None)
        plan = planner.update(MB, here, LOAD)
        check(plan, here)
        feeders = {up for ups in plan.parents.values() for up in ups} - {"source"}
        assert all(here[peer].dialable for peer in feeders)


@pytest.mark.slow
def test_a_long_run_of_churn_stays_within_reach_of_a_fresh_plan():
    lines, planner = network(64), Planner("source", 1)
    planner.update(10 * MB, lines, LOAD)
    for number in range(200):
        lines = dict(list(lines.items())[1:]) | {f"new{number}": LinkCapacity(10.0 * MB, latency=0.01)}
        plan = planner.update(10 * MB, lines, LOAD)
        check(plan, lines)
        assert plan.seconds < 1.5 * lower_bound(10 * MB, lines.values(), LOAD.length)


def from_source(plan: Plan) -> float:
    """Return the bytes per second that the source sends by this plan."""
    return sum(ups.count("source") for ups in plan.parents.values()) * plan.rate / plan.stripes


def test_a_quarter_of_the_source_stays_unplanned_if_others_make_up_for_it():
    planner, lines = Planner("source", 1), network(100, uplink=3.0 * MB)
    planner.update(10 * MB, lines, LOAD)
    assert from_source(planner.plan) <= (1 - SPARE) * 10 * MB
    planner.update(10 * MB, {peer: link for peer, link in lines.items() if peer != "p0"}, LOAD)
    assert from_source(planner.plan) <= (1 - SPARE) * 10 * MB


@pytest.mark.parametrize("lines", [network(16), network(4, uplink=1.0 * MB)], ids=["equal", "few and weak"])
def test_all_of_the_source_is_planned_if_a_broadcast_needs_it(lines):
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
    assert {edge for edge in edges(before) - edges(after)} <= {(s, parent, peer) for s in range(before.stripes)}


def test_a_peer_that_no_other_can_feed_is_fed_by_the_source():
    lines = network(2) | {"far": LinkCapacity(0.0)}
    plan = build("source", 10 * MB, lines, LOAD, 1)
    after = repair(plan, 10 * MB, lines, LOAD, {"far": {"p0", "p1"}})
    assert set(after.parents["far"]) == {"source"}
