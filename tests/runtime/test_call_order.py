"""Calls begin in the order of their arrival; some are answered later."""

import msgspec

from echo2.runtime.call_order import CallOrder, WaitingCall


def call(id: int, method: str) -> WaitingCall:
    return WaitingCall(id, method, msgspec.Raw(b""))


def ordered(*methods: str) -> CallOrder:
    """Return an order to which calls 1, 2, ... of these methods have come."""
    order = CallOrder({"generate"}, {"load"})
    for id, method in enumerate(methods, 1):
        order.put(call(id, method))
    return order


def begun(order: CallOrder) -> list[int]:
    """Begin all calls that may begin now."""
    ids = []
    while (taken := order.take()) is not None:
        ids.append(taken.id)
    return ids


def test_calls_that_are_answered_at_once_begin_as_they_came() -> None:
    order = ordered("score", "load", "score")
    assert begun(order) == [1, 2, 3]
    assert not order.busy


def test_a_barrier_waits_for_the_deferred_calls_before_it_and_all_that_came_later_wait_for_it() -> None:
    order = ordered("generate", "score", "generate", "load", "generate", "score")
    assert begun(order) == [1, 2, 3]
    order.on_answer(1)
    assert begun(order) == []
    assert order.begun == {3}
    order.on_answer(3)
    assert begun(order) == [4, 5, 6]
    assert order.busy


def test_a_call_taken_back_before_it_began_never_begins() -> None:
    order = ordered("generate", "load", "generate")
    assert begun(order) == [1]
    assert not order.take_back(2)
    assert begun(order) == [3]


def test_a_call_taken_back_after_it_began_lets_the_barrier_begin() -> None:
    order = ordered("generate", "load")
    assert begun(order) == [1]
    assert order.take_back(1)
    assert begun(order) == [2]
    assert not order.take_back(1)
