"""The scorer as a queue: its waits beside a queue that is played event by event, and how many keep up."""

import heapq
import random

import msgspec
import pytest

from echo2.coordinator.training.scorer_queue import ScorerQueue, ScorerTerms

QUEUE = ScorerQueue(scorer=ScorerTerms(tokens_per_second=1000.0), step_seconds=100.0, groups=50.0, group_seconds=1.0)


def played(load: float, scorers: int, groups: int = 40_000) -> float:
    """Play a queue whose groups come at random and take a second each; return their mean wait, seconds."""
    chances, now, waited, free = random.Random(1), 0.0, 0.0, [0.0] * scorers
    for _ in range(groups):
        now += chances.expovariate(load * scorers)
        begins = max(now, heapq.heappop(free))
        heapq.heappush(free, begins + 1.0)
        waited += begins - now
    return waited / groups


@pytest.mark.parametrize("scorers", [1, 2, 4])
@pytest.mark.parametrize("load", [0.5, 0.8, 0.9])
def test_the_wait_is_that_of_a_queue_that_is_played(load: float, scorers: int) -> None:
    groups = 100.0 * load * scorers
    queue = msgspec.structs.replace(QUEUE, scorer=ScorerTerms(tokens_per_second=1.0, number=scorers), groups=groups)
    assert queue.load == pytest.approx(load)
    assert queue.wait == pytest.approx(played(load, scorers), rel=0.15, abs=0.05)
    assert queue.verdict_seconds == queue.wait + 1.0


def test_a_group_waits_for_no_more_than_the_groups_of_a_step() -> None:
    crowded = msgspec.structs.replace(QUEUE, groups=99.9999)
    assert crowded.wait == pytest.approx(crowded.busy_seconds)
    behind = msgspec.structs.replace(QUEUE, groups=200.0)
    assert (behind.load, behind.wait) == (2.0, 200.0)


def test_scorers_that_keep_up_have_a_reserve() -> None:
    assert [QUEUE.enough(gamma) for gamma in (1.0, 2.0, 2.1)] == [1, 1, 2]
    assert msgspec.structs.replace(QUEUE, groups=1.0).enough(1.1) == 1
