"""The law of leases: its decisions, and a second calculation from the whole table of leases in plain Python."""

import math
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.coordinator.rollouts.lease_summary import AGES_PER_TURNAROUND, LeaseSummary, lease_cell, turnaround_class
from echo2.coordinator.rollouts.pacing import (
    GAMMA,
    OVERDUE,
    SERVES,
    SPARE,
    LearnerPace,
    LentLeases,
    PacedSituation,
    Z,
    lack,
    learner_pace,
    retry_after,
)
from echo2.coordinator.rollouts.turnaround_odds import chance

NOW = 100_000_000
STEP = 60_000.0


def situation(**changes: Any) -> PacedSituation:
    """A learner in the middle of step 9, under version 8, whose batch has 16 groups."""
    usual = PacedSituation(
        now=NOW,
        step=8,
        training_since=NOW - STEP / 2,
        newest=8,
        publish_every=1,
        staleness=4,
        batch=16,
        buffered=0,
        undecided=0,
        verdict=1_000.0,
        broadcast=10_000.0,
        kept=1.0,
        cv=0.25,
        least_supply=math.inf,
        pace=LearnerPace(STEP, STEP, STEP, 0.0),
    )
    return usual._replace(**changes)


class Node(NamedTuple):
    """A node of the tables in these tests. `leases`: ages of its open leases, ms."""

    turnaround: int
    servers: int
    leases: list[int]


def summarised(nodes: list[Node], version: int = 8) -> LeaseSummary:
    summary = LeaseSummary(4)
    for n, node in enumerate(nodes):
        summary.node_here(n.to_bytes(2), node.turnaround, node.servers, NOW + 1)
        for age in node.leases:
            summary.lease_given(lease_cell(version, node.turnaround, NOW - age))
    return summary


def quick(nodes: int = 64, leases: int = 0) -> list[Node]:
    """A fleet that makes four batches per step; the first `leases` nodes have a new lease."""
    return [Node(60_000, 1, [100] if n < leases else []) for n in range(nodes)]


def is_due(*asked: Any) -> bool:
    """Tell whether a lease is given."""
    return lack(*asked) > 0


def leases_given(at: PacedSituation) -> int:
    """Count the leases that a quick fleet gets at once."""
    given = 0
    while given < 64 and is_due(summarised(quick(leases=given)), at, 8, 60_000):
        given += 1
    return given


def test_a_quick_fleet_gets_what_the_next_draw_needs_and_leaves_the_rest_to_the_next_version() -> None:
    given = leases_given(situation())
    # the next draw but one, in 90 s, is served by leases of 60 s; the next version is there in 40 s, too late for it
    assert 16 <= given <= 40
    assert not is_due(summarised(quick(leases=64)), situation(), 8, 60_000)


def test_with_nothing_to_spare_every_lease_is_due() -> None:
    nodes = [Node(60_000, 1, [100]) for _ in range(15)]
    assert lack(summarised(nodes), situation(buffered=40), 8, 60_000) == math.inf
    assert lack(summarised(quick()), situation(least_supply=15 / STEP), 8, 60_000) == math.inf


def test_a_lease_is_due_if_the_learner_waits_and_too_little_is_on_its_way() -> None:
    waiting = situation(training_since=None)
    assert lack(summarised(quick(leases=8)), waiting, 8, 60_000) == math.inf
    assert lack(summarised(quick(leases=16)), waiting._replace(buffered=10), 8, 60_000) < math.inf
    assert lack(summarised(quick(leases=16)), waiting._replace(undecided=10), 8, 60_000) < math.inf


def test_a_lease_is_due_while_nothing_is_measured() -> None:
    assert is_due(LeaseSummary(), situation(), 8, None)
    assert is_due(summarised(quick(leases=64)), None, 8, 60_000)


def test_a_node_gets_no_lease_for_a_draw_that_it_cannot_serve() -> None:
    slow = 8 * int(STEP)
    nodes = [*quick(leases=40), Node(slow, 1, [])]
    assert not is_due(summarised(nodes), situation(), 8, slow)


def test_where_a_version_goes_out_less_often_more_is_leased_under_the_one_that_is_there() -> None:
    given = [leases_given(situation(publish_every=kappa)) for kappa in (1, 2, 4)]
    assert given == sorted(given)
    assert given[0] < given[-1]


def test_a_learner_that_waited_is_served_sooner() -> None:
    summary = summarised(quick(leases=26))
    late = situation(pace=LearnerPace(STEP, STEP, STEP, 20_000.0))
    assert lack(summary, situation(), 8, 60_000) < lack(summary, late, 8, 60_000)


def test_of_an_older_version_there_is_no_more_than_the_draws_that_it_may_serve() -> None:
    assert lack(summarised(quick()), situation(), 4, 60_000) == -math.inf
    assert is_due(summarised(quick()), situation(), 8, 60_000)


def test_groups_that_a_node_would_take_with_it_ask_for_more_certainty_where_nodes_leave() -> None:
    apart = [Node(60_000, 1, [6_000]) for _ in range(32)]
    together = [Node(60_000, 8, 8 * [6_000]) for _ in range(4)]
    one, eight = summarised(apart), summarised(together)
    assert (one.at_once, eight.at_once, LeaseSummary().at_once) == (1.0, 8.0, 1.0)
    sure, leaving = situation(kept=1.0), situation(kept=0.8)
    assert lack(one, sure, 8, 60_000) == lack(eight, sure, 8, 60_000)
    assert lack(one, leaving, 8, 60_000) < lack(eight, leaving, 8, 60_000)


def test_an_unmeasured_node_counts_as_the_mean_of_the_fleet() -> None:
    summary = summarised(quick(leases=26))
    assert lack(summary, situation(), 8, None) == lack(summary, situation(), 8, 60_000)


def test_the_learners_times_are_low_for_its_steps_and_high_for_its_waits() -> None:
    assert learner_pace([], [], []) is None
    assert learner_pace([5.0], [], [3.0]) == LearnerPace(5.0, 5.0, 5.0, 0.0)
    steps = [float(n) for n in range(16)]
    assert learner_pace(steps, [20.0, 9.0], [1.0, 7.0, 4.0]) == LearnerPace(3.0, 7.5, 20.0, 4.0)
    assert learner_pace(steps, [99.0] + 8 * [9.0], [50.0, 60.0] + 8 * [0.0]) == LearnerPace(3.0, 7.5, 9.0, 0.0)


def test_a_refused_node_asks_again_after_a_quarter_of_a_step() -> None:
    assert retry_after(situation()) == 15_000


def plain(nodes: list[Node], at: PacedSituation, version: int, own: float) -> float:
    """Calculate the law from the whole table: each lease in the middle of its slot, each node at its class's mean."""
    groups: dict[int, list[Node]] = {}
    for node in nodes:
        groups.setdefault(turnaround_class(node.turnaround), []).append(node)
    means = {
        known: sum(n.servers for n in some) / sum(n.servers / n.turnaround for n in some)
        for known, some in groups.items()
    }
    leases = []  # (mean turnaround, sent)
    for known, some in groups.items():
        width = round(64 * 2 ** (known / 4) / AGES_PER_TURNAROUND)
        leases += [(means[known], ((NOW - age) // width + 0.5) * width) for node in some for age in node.leases]

    def back(lease: tuple[float, float], until: float) -> float:
        mean, sent = lease
        gone = chance((NOW - sent) / mean, at.cv)
        left = chance((until - at.verdict - sent) / mean, at.cv)
        return at.kept * max(0.0, left - gone) / (1 - gone) if gone < 0.99 else 0.0

    def later(free: float, mean: float, until: float) -> list[float]:
        x = (until - at.verdict - max(free, begins)) / mean
        return [at.kept / GAMMA * chance(x, at.cv, m) for m in range(1, math.ceil(max(x, 0)) + 12)]

    first = NOW if at.training_since is None else max(at.training_since + at.pace.step, NOW)
    if at.training_since is None:
        missing = at.batch - at.buffered - at.kept * at.undecided
        if missing > sum(back(lease, NOW + lease[0]) for lease in leases):
            return math.inf
    supply = sum(node.servers / node.turnaround for node in nodes)
    spare = at.kept * min(supply, at.least_supply) * at.pace.usual / at.batch - 1
    ends = max(1, at.newest + at.publish_every - at.step)
    if version < at.newest:
        begins = NOW + at.broadcast
    elif at.training_since is None:
        begins = NOW + ends * at.pace.step + at.broadcast
    else:
        begins = first + (ends - 1) * at.pace.step + at.broadcast
    clump = max(0.0, sum(node.servers for node in nodes) / len(nodes) - 1) * (1 - at.kept) / at.kept
    lacks = []
    for k in range(1, at.staleness + version - at.step + (at.training_since is None) + 1):
        if chance((first + (k - 1) * at.pace.span - NOW) / own, at.cv) < SERVES:
            continue
        if spare <= 0:
            return math.inf
        z, until = max(Z, SPARE / spare), first + (k - 1) * at.pace.step - at.pace.lead
        soon = [back(lease, until) for lease in leases]
        together = clump * sum(one * one for one in soon)
        soon += at.undecided * [at.kept * min(1.0, max(0.0, (until - NOW) / at.verdict))]
        after: list[float] = []
        also = together
        for known, some in groups.items():
            mean = means[known]
            busy = [lease for lease in leases if lease[0] == mean and NOW - lease[1] < OVERDUE * mean]
            idle = max(0, sum(node.servers for node in some) - len(busy))
            after += [c for _, sent in busy for c in later(sent + mean, mean, until)]
            after += [c for c in later(begins, mean, until) for _ in range(idle)]
            also += clump * sum(sum(later(sent + mean, mean, until)) ** 2 for _, sent in busy)
            also += clump * idle * sum(later(begins, mean, until)) ** 2
        wanted = k * at.batch - at.buffered
        lacking = wanted - less(soon, z, together)
        lacks.append(lacking if lacking <= 0 else min(lacking, wanted - less(soon + after, z, also)))
    return max(lacks, default=-math.inf)


def less(chances: list[float], z: float, together: float) -> float:
    return sum(chances) - z * math.sqrt(sum(c * (1 - c) for c in chances) + together)


nodes_of_a_fleet = st.builds(
    lambda turnaround, servers, shares: Node(turnaround, servers, [int(turnaround * one) for one in shares[:servers]]),
    st.integers(3_000, 300_000),
    st.integers(1, 4),
    st.lists(st.floats(0.0, 3.0), max_size=4),
)


@given(
    st.lists(nodes_of_a_fleet, min_size=1, max_size=30),
    st.builds(
        situation,
        training_since=st.one_of(st.none(), st.floats(NOW - 90_000.0, NOW)),
        publish_every=st.integers(1, 4),
        staleness=st.integers(1, 6),
        buffered=st.integers(0, 30),
        undecided=st.integers(0, 10),
        kept=st.floats(0.5, 1.0),
        cv=st.sampled_from([0.25, 0.5, 0.75]),
        least_supply=st.floats(16 / STEP, 100 / STEP),
        pace=st.builds(
            LearnerPace, st.just(STEP), st.floats(STEP, 1.3 * STEP), st.floats(STEP, 2 * STEP), st.floats(0.0, 20_000.0)
        ),
    ),
    st.integers(6, 8),
    st.floats(3_000, 300_000),
)
@settings(max_examples=150, deadline=None)
@pytest.mark.slow
def test_the_law_over_the_summary_is_the_law_over_the_whole_table(
    nodes: list[Node], at: PacedSituation, version: int, own: float
) -> None:
    over_summary = lack(summarised(nodes), at, version, own)
    # By the grid of the tables a chance beside `SERVES` or `GONE`, or a batch just filled, falls on either side.
    over_table = [
        plain([aged(node, grid) for node in nodes], at, version, one)
        for grid in (1 / GRID, 1.0, GRID)
        for one in (own / GRID, own, own * GRID)
    ]
    if math.isinf(over_summary):
        assert over_summary in over_table
        return
    servers = sum(node.servers for node in nodes)
    tolerance = 0.3 + 0.03 * servers
    assert min(over_table) - tolerance <= over_summary <= max(over_table) + tolerance


GRID = 2 ** (1 / 8)
"""Most by which a class of turnarounds is beside a turnaround, as a ratio (lease_summary.py, rule 1)."""


def aged(node: Node, grid: float) -> Node:
    """Return a node whose leases have the age that they may have by the grid of the tables."""
    slot = node.turnaround / AGES_PER_TURNAROUND
    slots = (grid > 1) - (grid < 1)
    return node._replace(leases=[max(0, int(age * grid + slots * slot)) for age in node.leases])


def lent(chance: float, leases: int = 40, age: int = 100) -> LentLeases:
    """Leases of new keys, of the turnaround of a quick fleet."""
    return LentLeases(summarised([Node(60_000, 0, [age]) for _ in range(leases)]), chance)


def test_leases_of_new_keys_count_with_the_chance_that_their_groups_come() -> None:
    nodes, at = summarised(quick(leases=10)), situation()
    lacks = [lack(nodes, at, 8, 60_000, lent(chance)) for chance in (0.0, 0.25, 1.0)]
    assert lacks[0] == lack(nodes, at, 8, 60_000)
    assert lacks[0] > lacks[1] > lacks[2]


def test_where_the_learner_waits_groups_of_keys_that_return_nothing_do_not_fill_its_batch() -> None:
    nodes, at = summarised(quick(leases=4)), situation(training_since=None)
    assert lack(nodes, at, 8, 60_000, lent(0.0)) == math.inf
    assert lack(nodes, at, 8, 60_000, lent(1.0)) < math.inf
