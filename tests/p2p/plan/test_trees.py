"""Fresh plans: the properties of each, and how close they come to the bound."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.p2p.plan.trees import LinkCapacity, build, fanout, lower_bound, predict_seconds
from tests.support.plans import LINES, LOAD, MB, check, network


@settings(max_examples=80, deadline=None)
@given(LINES, st.sampled_from([1e5, 1e6, 1e7, 1e8]), st.integers(0, 99))
@pytest.mark.slow
def test_a_fresh_plan_reaches_every_peer_by_disjoint_inner_nodes_within_their_uplinks(lines, uplink, seed):
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
        plan.seconds
        == predict_seconds(plan, uplink, peers, LOAD)
        >= lower_bound(uplink, peers.values(), LOAD.length) * 0.999
    )


def test_the_bound_is_that_of_the_slowest_of_three_limits():
    lines = network(9).values()
    assert lower_bound(10 * MB, lines, 40 * MB) == pytest.approx(4.0)
    assert lower_bound(1 * MB, lines, 40 * MB) == pytest.approx(40.0)
    assert lower_bound(100 * MB, [LinkCapacity(MB)] * 10, 40 * MB) == pytest.approx(400 / 110)
    assert lower_bound(10 * MB, [*lines, LinkCapacity(downlink=MB)], 40 * MB) == pytest.approx(40.0)
    assert lower_bound(10 * MB, [], 40 * MB) == 0


@pytest.mark.parametrize(("number", "most"), {1: 1.02, 4: 1.05, 16: 1.08, 100: 1.12, 1000: 1.15, 4000: 1.2}.items())
@pytest.mark.slow_for("4000-1.2")
def test_equal_links_come_close_to_the_bound_and_stay_so_as_peers_are_added(number, most):
    lines = network(number)
    assert build("source", 10 * MB, lines, LOAD, 1).seconds <= most * lower_bound(10 * MB, lines.values(), LOAD.length)


def test_few_peers_behind_each_other_make_a_chain():
    plan = build("source", 10 * MB, network(2), LOAD, 1)
    assert plan.stripes == 1
    assert sorted(map(len, plan.children(0).values())) == [1, 1]


def test_a_weak_uplink_is_a_leaf_everywhere_and_the_strong_are_near_the_root():
    lines = {f"p{index}": LinkCapacity(20.0 * MB if index < 12 else 0.1 * MB, latency=0.01) for index in range(24)}
    plan = build("source", 10 * MB, lines, LOAD, 1)
    feeders = {up for ups in plan.parents.values() for up in ups}
    assert feeders <= {"source", *(f"p{index}" for index in range(12))}


def test_a_peer_that_receives_slower_than_the_payload_flows_feeds_no_other():
    lines = network(8) | {"slow": LinkCapacity(100.0 * MB, downlink=0.5 * MB)}
    plan = build("source", 10 * MB, lines, LOAD, 1)
    assert "slow" not in {up for ups in plan.parents.values() for up in ups}


def test_a_run_without_volunteers_has_an_empty_plan():
    assert build("source", MB, {}, LOAD, 1).parents == {}
