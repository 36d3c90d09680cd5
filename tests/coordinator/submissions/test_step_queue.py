"""The order in which turns go to the environment: a share of its time for new keys, parties in rotation."""

from collections.abc import Callable

import pytest

from echo2.coordinator.submissions.step_queue import NEW_ONE_IN, RECENT_PLAY_SECONDS, StepQueue


def play(
    queue: StepQueue[str], seconds: float, cost: Callable[[str], float], arrive: Callable[[float], None]
) -> dict[str, float]:
    """Answer turns by one worker on a fake clock; return the seconds of each kind of turn. `arrive`: puts turns."""
    now, used = 0.0, {"new": 0.0, "known": 0.0}
    while now < seconds:
        arrive(now)
        step = queue.take(now)
        if step is None:
            now += 0.1
            continue
        kind, began = step.split()[0], now
        for _ in range(round(cost(kind) / 0.1)):  # others come meanwhile
            now += 0.1
            arrive(now)
        used[kind] += now - began
        queue.on_end(now - began, now, new=kind == "new")
    return used


def crowd(queue: StepQueue[str], known_each: float) -> Callable[[float], None]:
    """Return arrivals: ten new keys' turns a second, each of a party of its own, and a known key's now and then."""
    numbers = {"new": 0, "known": 0}

    def arrive(now: float) -> None:
        while now >= 0.1 * numbers["new"]:
            numbers["new"] += 1
            queue.put(f"new {numbers['new']}", f"party {numbers['new']}", now, new=True)
        while now >= known_each * numbers["known"]:
            numbers["known"] += 1
            queue.put(f"known {numbers['known']}", "one", now, new=False)

    return arrive


def test_parties_are_served_in_rotation_and_each_in_its_own_order() -> None:
    queue: StepQueue[str] = StepQueue()
    for step, party in (("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("c1", "c"), ("b2", "b")):
        queue.put(step, party, 0.0, new=False)
    assert [queue.take(0.0) for _ in range(6)] == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert queue.take(0.0) is None


@pytest.mark.slow
def test_slow_episodes_of_new_keys_take_a_quarter_of_the_time_of_known_ones_that_wait() -> None:
    queue: StepQueue[str] = StepQueue()
    used = play(queue, 2_000.0, {"new": 10.0, "known": 1.0}.__getitem__, crowd(queue, known_each=1.0))
    assert used["new"] / sum(used.values()) == pytest.approx(1 / NEW_ONE_IN, abs=0.02)


def test_slow_episodes_of_new_keys_take_a_quarter_of_the_time_though_known_keys_come_now_and_then() -> None:
    queue: StepQueue[str] = StepQueue()
    used = play(queue, 2_000.0, {"new": 10.0, "known": 0.1}.__getitem__, crowd(queue, known_each=5.0))
    assert used["new"] / 2_000.0 < 0.27
    assert used["known"] == pytest.approx(40.0, abs=1.0)


def test_quick_turns_of_new_keys_have_their_share_however_many_known_ones_wait() -> None:
    queue: StepQueue[str] = StepQueue()
    used = play(queue, 200.0, {"new": 0.1, "known": 0.3}.__getitem__, crowd(queue, known_each=0.1))
    assert used["new"] / sum(used.values()) == pytest.approx(1 / NEW_ONE_IN, abs=0.03)


def test_new_keys_have_at_most_their_share_of_the_workers_at_once() -> None:
    queue: StepQueue[int] = StepQueue(workers=8)
    queue.put(0, "known", 0.0, new=False)
    for number in range(1, 9):
        queue.put(number, f"party {number}", 0.0, new=True)
    assert [queue.take(0.0) for _ in range(4)] == [1, 2, 0, None]
    assert queue.look_again(0.0) is None
    queue.on_end(10.0, 10.0, new=True)
    assert queue.look_again(10.0) == 0.0
    assert queue.take(10.0) == 3


def test_new_keys_have_all_the_time_where_no_other_plays() -> None:
    queue: StepQueue[str] = StepQueue()
    queue.put("known", "a", 0.0, new=False)
    assert queue.take(0.0) == "known"
    queue.on_end(1.0, 1.0, new=False)
    for number in range(3):
        queue.put(f"new {number}", "a", 1.0, new=True)
    assert queue.take(1.0) == "new 0"
    queue.on_end(100.0, 1.0, new=True)
    assert (queue.take(1.0), queue.look_again(1.0)) == (None, RECENT_PLAY_SECONDS)
    assert queue.take(1.0 + RECENT_PLAY_SECONDS) == "new 1"


def test_a_turn_that_is_dropped_is_never_taken_and_leaves_nothing() -> None:
    queue: StepQueue[str] = StepQueue()
    for step in ("a1", "a2"):
        queue.put(step, "a", 0.0, new=True)
    for step in ("a1", "a1", "foreign"):
        queue.drop(step, "a", new=True)
    assert len(queue) == 1
    assert queue.take(0.0) == "a2"
    queue.drop("a2", "a", new=True)
    assert len(queue) == 0
