"""Nodes without a lease retry at a bounded rate and cost."""

import heapq
from pathlib import Path

import pytest

from echo2.coordinator.leases.retry_times import (
    FARTHEST_RETRY_MS,
    LEAST_RETRY_MS,
    LONGEST_IDLE_RETRY_MS,
    RETRIES_PER_SECOND,
    RETRY_GRACE_MS,
    RetryTimes,
)
from tests.support.group_world import T0, World
from tests.support.sqlite_cost import written_rows

CROWD, MINUTE = 200, 60_000


def node(number: int) -> bytes:
    return number.to_bytes(32, "big")


def crowded(folder: Path) -> World:
    """Return a run without room: all groups that the learner can still draw are leased."""
    world = World(folder, batch_groups=1)
    for number in range(3):
        world.lease(node(10_000 + number))
    return world


def asks_in(world: World, nodes: int, milliseconds: int) -> int:
    """Let `nodes` nodes request leases, first all at once, then as told; return the number of requests."""
    queue, asks, end = [(world.now, node(number)) for number in range(nodes)], 0, world.now + milliseconds
    while queue[0][0] < end:
        at, who = heapq.heappop(queue)
        world.now = at
        answer = world.group_service.lease(who, world.ask(), at)
        assert answer.retry_after is not None
        heapq.heappush(queue, (at + answer.retry_after, who))
        asks += 1
    return asks


def test_many_waiting_nodes_retry_at_a_bounded_rate(tmp_path: Path) -> None:
    """On 439044d every node makes one request per second."""
    world = crowded(tmp_path)
    asks = asks_in(world, CROWD, MINUTE)
    assert asks <= CROWD + 10 * 60, f"{asks} asks of {CROWD} nodes in a minute"


NODE = "INSERT INTO nodes (key, name, software, engine, device, addresses, first_seen, last_seen, version)"


def test_a_refusal_writes_nothing(tmp_path: Path) -> None:
    """On 439044d the time of each refused request is written, in a commit of its own."""
    world = crowded(tmp_path)
    database = world.group_service.database
    for number in range(5):
        world.group_service.database.do(NODE + " VALUES (?, '', '', 'x', '', x'', 0, 0, 0)", (node(number),))
    asks_in(world, 5, 2_000)  # so that each has been seen
    before = written_rows(database)
    asks_in(world, 5, MINUTE)
    assert written_rows(database) == before


def test_when_a_node_was_seen_last_is_written_now_and_then_and_survives(tmp_path: Path) -> None:
    world = crowded(tmp_path)
    database = world.group_service.database
    who = node(1)
    database.do(NODE + " VALUES (?, '', '', 'x', '', x'', ?, ?, NULL)", (who, T0, T0))
    world.group_service.tick(world.now)
    asks_in(world, 2, MINUTE)
    asked = world.now
    world.group_service.tick(world.now + MINUTE)
    assert 0 <= asked - database.value("SELECT last_seen FROM nodes WHERE key = ?", (who,)) <= LONGEST_IDLE_RETRY_MS


def test_a_few_nodes_are_told_to_come_back_at_once_where_work_comes_and_goes() -> None:
    retries = RetryTimes()
    for second in range(0, 600, 2):
        now = T0 + 1000 * second
        retries.on_grant(node(0), now)
        assert max(retries.after(node(number), now + 1500) for number in range(1, RETRIES_PER_SECOND)) < 1_000


def test_while_no_lease_is_given_a_node_retries_ever_more_rarely() -> None:
    retries, now, waits = RetryTimes(), T0, list[int]()
    while now < T0 + 600_000:
        waits.append(retries.after(node(1), now))
        now += waits[-1]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (LEAST_RETRY_MS, LONGEST_IDLE_RETRY_MS)
    assert len(waits) < 75


def test_a_node_that_a_new_version_woke_counts_once() -> None:
    retries = RetryTimes()
    first = [retries.after(node(number), T0) for number in range(100)]
    again = [retries.after(node(number), T0 + 10) for number in range(100)]
    assert max(again) <= max(first) == 1000 * 100 // RETRIES_PER_SECOND


def test_nodes_that_went_away_are_counted_no_more() -> None:
    retries = RetryTimes()
    for number in range(1000):
        retries.after(node(number), T0)
    retries.on_grant(node(0), T0 + 1_000_000)
    assert retries.after(node(2000), T0 + 1_000_000) == LEAST_RETRY_MS


@pytest.mark.parametrize("least", [LEAST_RETRY_MS, 10_000])
def test_the_kind_of_a_refusal_may_ask_for_more(least: int) -> None:
    assert RetryTimes().after(node(1), T0, least) == least


@pytest.mark.parametrize("parties", [1, 10**9])
def test_fresh_keys_with_one_request_each_do_not_lengthen_the_waits_for_ever(parties: int) -> None:
    """On a924efc an hour of 50 fresh keys per second leaves 162,162 of 180,000 in memory, told to wait for nine hours.
    An honest node waits as long, if each key is a party."""
    retries, pause = RetryTimes(), 20
    for number in range(60_000):
        retries.after(node(number), number * pause, LEAST_RETRY_MS, f"party {number % parties}")
    assert 0 < len(retries) <= (FARTHEST_RETRY_MS + RETRY_GRACE_MS) // pause + 1
    assert retries.after(node(60_001), 60_000 * pause, LEAST_RETRY_MS, "honest") <= FARTHEST_RETRY_MS
