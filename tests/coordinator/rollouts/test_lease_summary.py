"""The summary that events keep up is the one that the whole table of leases gives."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from echo2.coordinator.rollouts.lease_summary import (
    AGES,
    CLASSES,
    LEAST,
    LeaseCell,
    LeaseSummary,
    lease_cell,
    turnaround_class,
)

TURNAROUNDS = st.sampled_from([40, 64, 90, 1_000, 1_100, 30_000, 500_000, 5_000_000])


class Table(RuleBasedStateMachine):
    """A table of leases and nodes, from which a summary is derived anew beside the one under test."""

    def __init__(self) -> None:
        super().__init__()
        self.summary = LeaseSummary()
        self.leases: list[LeaseCell] = []
        self.nodes: dict[bytes, tuple[int, int, int]] = {}
        self.now, self.oldest = 1_000_000, 0

    @rule(age=st.integers(0, 4), turnaround=TURNAROUNDS, back=st.integers(0, 10_000))
    def give(self, age: int, turnaround: int, back: int) -> None:
        cell = lease_cell(self.oldest + 4 - age, turnaround, self.now - back)
        self.leases.append(cell)
        self.summary.lease_given(cell)

    @precondition(lambda self: self.leases)
    @rule(chosen=st.integers(0, 1_000))
    def end(self, chosen: int) -> None:
        self.summary.lease_ended(self.leases.pop(chosen % len(self.leases)))

    @rule(steps=st.integers(-2, 3))
    def step(self, steps: int) -> None:
        self.oldest += steps
        self.summary.set_oldest(self.oldest)

    @rule(node=st.binary(min_size=1, max_size=1), turnaround=TURNAROUNDS, servers=st.integers(1, 8))
    def see(self, node: bytes, turnaround: int, servers: int) -> None:
        self.nodes[node] = turnaround, servers, self.now + 5_000
        self.summary.node_here(node, turnaround, servers, self.now + 5_000)

    @rule(ms=st.integers(1, 400_000))
    def wait(self, ms: int) -> None:
        self.now += ms
        self.summary.forget(self.now)
        self.nodes = {key: one for key, one in self.nodes.items() if one[2] >= self.now}

    def anew(self) -> LeaseSummary:
        summary = LeaseSummary(self.oldest)
        for cell in sorted(self.leases):
            summary.lease_given(cell)
        for key, one in sorted(self.nodes.items()):
            summary.node_here(key, *one)
        return summary

    @invariant()
    def is_the_one_derived_anew(self) -> None:
        anew, table = self.anew(), self.summary.table()
        assert self.summary == anew
        assert self.summary.running == anew.running == sum(cell.version >= self.oldest for cell in self.leases)
        assert self.summary.supply == anew.supply
        assert table.servers.sum() == sum(servers for _, servers, _ in self.nodes.values())
        assert table.servers.tolist() == anew.table().servers.tolist()
        assert table.turnaround.tolist() == anew.table().turnaround.tolist()

    @invariant()
    def expects_no_lease_twice(self) -> None:
        table = self.summary.table()
        assert (table.running > 0).all()
        assert table.running.sum() <= self.summary.running


Table.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestTable = Table.TestCase


@given(st.lists(st.tuples(TURNAROUNDS, st.integers(0, 100_000)), max_size=60))
@settings(max_examples=60, deadline=None)
def test_each_lease_of_the_last_turnarounds_stands_in_its_slot(leases: list[tuple[int, int]]) -> None:
    summary, now = LeaseSummary(), 10_000_000
    recent = [(ms, sent) for ms, back in leases if (sent := now - back) and back < 3 * max(ms, LEAST)]
    cells = [lease_cell(1, ms, sent) for ms, sent in sorted(recent, key=lambda one: one[1])]
    for cell in cells:
        summary.lease_given(cell)
    table = summary.table()
    assert table.running.sum() == len(cells) == summary.running
    assert sorted(table.running.tolist()) == sorted(Counter(cells).values())


def test_a_lease_that_is_older_than_four_turnarounds_counts_as_open_alone() -> None:
    summary = LeaseSummary()
    old, new = lease_cell(1, 1_000, 100_000), lease_cell(1, 1_000, 100_000 + AGES * 128)
    assert old.slot % AGES == new.slot % AGES
    summary.lease_given(old)
    summary.lease_given(new)
    assert (summary.running, summary.table().running.tolist()) == (2, [1])
    summary.lease_ended(old)
    assert (summary.running, summary.table().running.tolist()) == (1, [1])


def test_a_lease_that_is_not_there_cannot_end() -> None:
    with pytest.raises(KeyError):
        LeaseSummary().lease_ended(lease_cell(1, 1_000, 5))


def test_classes_cover_64_ms_to_an_hour() -> None:
    assert turnaround_class(0) == turnaround_class(LEAST) == 0
    assert turnaround_class(3_600_000) == turnaround_class(1e12) == CLASSES - 1
    assert turnaround_class(3_000_000) == CLASSES - 2
    assert turnaround_class(2 * LEAST) == 4


def test_a_node_with_eight_leases_at_once_counts_as_eight_servers() -> None:
    summary = LeaseSummary()
    summary.node_here(b"n", 4_000, 8, until=10)
    assert summary.supply == pytest.approx(8 / 4_000)
    table = summary.table()
    assert (table.servers.tolist(), table.turnaround.tolist()) == ([8], [4_000])
    summary.node_here(b"n", 2_000, 1, until=20)
    assert summary.supply == pytest.approx(1 / 2_000)
    summary.forget(10)
    assert summary.supply == pytest.approx(1 / 2_000)
    summary.node_here(b"m", 3_000, 1.4, until=20)
    assert summary.supply == pytest.approx(1 / 2_000 + 1.4 / 3_000)
    summary.forget(21)
    assert summary.supply == 0
    assert summary.nodes == {}


def test_the_size_of_the_table_does_not_grow_with_the_fleet() -> None:
    sizes = []
    for nodes in (100, 10_000):
        summary = LeaseSummary()
        for n in range(nodes):
            turnaround = 1_000 * 10 ** (n % 100 / 100)
            summary.node_here(n.to_bytes(2), turnaround, 1, until=10_000_000)
            summary.lease_given(lease_cell(1, turnaround, 1_000_000 + int(turnaround * (n % 10) / 10)))
        sizes.append(len(summary.table().sent))
    assert sizes[1] <= 1.1 * sizes[0]
