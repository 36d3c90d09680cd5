"""The bound on open leases that a node learns from leases and refusals."""

import math

from echo2.node.rollouts.lease_bound import BOUND_SECONDS, LeaseBound


def test_without_an_answer_there_is_no_bound() -> None:
    assert LeaseBound().free(1_000, 0.0) == math.inf


def test_a_lease_says_how_many_may_be_open_and_the_last_one_counts() -> None:
    bound = LeaseBound()
    bound.note_bound(6)
    assert [bound.free(number, 1e9) for number in (2, 6, 7)] == [4, 0, 0]
    bound.note_bound(12)
    assert bound.free(6, 0.0) == 6
    bound.note_bound(3)
    assert bound.free(6, 0.0) == 0


def test_after_a_refusal_a_lease_is_requested_once_fewer_are_open() -> None:
    bound = LeaseBound()
    bound.on_refusal(3, 10.0)
    assert [bound.free(number, 10.1) for number in (2, 3, 4)] == [1, 0, 0]


def test_after_a_minute_one_more_is_tried_and_the_bound_follows_what_is_granted() -> None:
    bound = LeaseBound()
    bound.on_refusal(3, 10.0)
    assert not bound.free(3, 10.0 + BOUND_SECONDS - 1)
    assert bound.free(3, 10.0 + BOUND_SECONDS) == 1
    bound.on_refusal(5, 10.0 + BOUND_SECONDS)
    assert bound.free(4, 11.0 + BOUND_SECONDS) == 1


def test_a_lease_that_lets_none_be_open_does_not_end_the_requests_for_good() -> None:
    bound = LeaseBound()
    bound.note_bound(0)
    assert bound.free(0, 10.0) == 1
    assert bound.free(1, 10.0) == 0
