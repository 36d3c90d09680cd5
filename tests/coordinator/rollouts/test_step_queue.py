"""The order in which turns go to the environment: keys with accepted work first, parties in rotation."""

import pytest

from coordinator.rollouts.step_queue import NEW_ONE_IN, StepQueue


def test_parties_are_served_in_rotation_and_each_in_its_own_order() -> None:
    queue: StepQueue[str] = StepQueue()
    for step, party in (("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("c1", "c"), ("b2", "b")):
        queue.put(step, party, new=False)
    assert [queue.take() for _ in range(6)] == ["a1", "b1", "c1", "a2", "b2", "a3"]
    with pytest.raises(IndexError):
        queue.take()


def test_however_many_new_keys_wait_known_ones_lose_one_turn_in_four() -> None:
    queue: StepQueue[str] = StepQueue()
    for number in range(1_000):
        queue.put("new", f"party {number}", new=True)
    for _ in range(90):
        queue.put("known", "one", new=False)
    served = [queue.take() for _ in range(120)]
    assert served.count("known") == 90
    assert served.index("new") == NEW_ONE_IN - 1
    assert len(queue) == 1_000 - 30


def test_new_keys_are_served_at_once_where_no_other_waits() -> None:
    queue: StepQueue[int] = StepQueue()
    for number in range(3):
        queue.put(number, "a", new=True)
    assert [queue.take() for _ in range(3)] == [0, 1, 2]
