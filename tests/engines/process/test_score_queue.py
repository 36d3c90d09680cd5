"""Groups that wait to be scored share passes, in the order of their arrival."""

from collections.abc import Sequence
from typing import Any

import pytest

from echo2.engines.engine import GroupToScore, Sample, SampleScore
from echo2.engines.process.score_queue import ScoreQueue
from tests.support.tiny_model import job


def group(tokens: int) -> GroupToScore:
    """Return a group of one sample with so many tokens in all."""
    asked = job(samples=1)
    length = tokens - len(asked.prompt)
    return GroupToScore(asked, [Sample(tokens=[1] * length, turns=[length], logprobs=[])])


class Together:
    """An engine that scores several groups in one pass of 100 tokens. `passes`: the tokens of the groups of each."""

    pass_tokens = 100

    def __init__(self) -> None:
        self.passes: list[list[int]] = []
        self.error: Exception | None = None

    def score_groups(self, groups: Sequence[GroupToScore]) -> list[list[SampleScore] | Exception]:
        self.passes.append([one.tokens for one in groups])
        if self.error is not None:
            raise self.error
        return [[SampleScore(logprobs=[float(one.tokens)], margins=[0.0])] for one in groups]


class OneByOne:
    """An engine that scores one group at a time."""

    def score(self, asked: Any, samples: list[Sample]) -> list[SampleScore]:
        if len(samples[0].tokens) > 50:
            raise ValueError("too long")
        return [SampleScore(logprobs=[], margins=[])]


def emptied(queue: ScoreQueue, engine: Any) -> list[list[int]]:
    """Run passes until none waits; return the tickets of each."""
    passes = []
    while queue:
        passes.append([ticket for ticket, _ in queue.run_pass(engine)])
    return passes


def test_groups_share_passes_in_their_order_up_to_what_fills_one() -> None:
    queue, engine = ScoreQueue(), Together()
    for ticket, tokens in enumerate([40, 50, 30, 70, 20], 1):
        queue.put(ticket, group(tokens))
    assert emptied(queue, engine) == [[1, 2], [3, 4], [5]]
    assert engine.passes == [[40, 50], [30, 70], [20]]


def test_a_group_larger_than_a_pass_is_taken_alone() -> None:
    queue = ScoreQueue()
    for ticket, tokens in enumerate([500, 30, 300, 30], 1):
        queue.put(ticket, group(tokens))
    assert emptied(queue, Together()) == [[1], [2], [3], [4]]


def test_what_arrives_during_a_pass_is_in_the_next_one() -> None:
    queue, engine = ScoreQueue(), Together()
    queue.put(1, group(20))
    assert [ticket for ticket, _ in queue.run_pass(engine)] == [1]
    queue.put(2, group(20))
    queue.put(3, group(20))
    assert emptied(queue, engine) == [[2, 3]]


def test_each_ticket_gets_the_outcome_of_its_group() -> None:
    queue = ScoreQueue()
    queue.put(7, group(40))
    queue.put(3, group(50))
    outcomes = dict(queue.run_pass(Together()))
    assert {ticket: outcome[0].logprobs for ticket, outcome in outcomes.items() if isinstance(outcome, list)} == {
        7: [40.0], 3: [50.0],
    }  # fmt: skip


def test_a_group_taken_back_is_not_scored() -> None:
    queue, engine = ScoreQueue(), Together()
    queue.put(1, group(40))
    queue.put(2, group(50))
    queue.cancel(1)
    queue.cancel(99)
    assert emptied(queue, engine) == [[2]]


def test_an_error_of_the_whole_pass_is_the_outcome_of_each_of_its_groups() -> None:
    queue, engine = ScoreQueue(), Together()
    engine.error = RuntimeError("absurd")
    queue.put(1, group(40))
    queue.put(2, group(50))
    assert queue.run_pass(engine) == [(1, engine.error), (2, engine.error)]
    assert not queue


def test_an_engine_that_scores_no_groups_together_gets_one_at_a_time() -> None:
    queue, engine = ScoreQueue(), OneByOne()
    queue.put(1, group(20))
    queue.put(2, group(90))
    queue.put(3, group(20))
    first, second, third = (queue.run_pass(engine) for _ in range(3))  # type: ignore[arg-type]
    assert [ticket for ticket, _ in (*first, *second, *third)] == [1, 2, 3]
    assert isinstance(second[0][1], ValueError)


@pytest.mark.parametrize("number", [0, 1, 3])
def test_the_length_is_the_number_that_waits(number: int) -> None:
    queue = ScoreQueue()
    for ticket in range(number):
        queue.put(ticket, group(20))
    assert len(queue) == number
