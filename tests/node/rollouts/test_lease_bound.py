"""The bound on open leases that a node learns from refusals."""

from node.rollouts.lease_bound import KEPT, LeaseBound


def test_without_a_refusal_there_is_no_bound() -> None:
    assert LeaseBound().allows(1_000, 0.0)


def test_after_a_refusal_a_lease_is_requested_once_fewer_are_open() -> None:
    bound = LeaseBound()
    bound.refused(3, 10.0)
    assert [bound.allows(number, 10.1) for number in (2, 3, 4)] == [True, False, False]


def test_after_a_minute_one_more_is_tried_and_the_bound_follows_what_is_granted() -> None:
    bound = LeaseBound()
    bound.refused(3, 10.0)
    assert not bound.allows(3, 10.0 + KEPT - 1)
    assert bound.allows(3, 10.0 + KEPT)
    bound.refused(5, 10.0 + KEPT)
    assert bound.allows(4, 11.0 + KEPT)
