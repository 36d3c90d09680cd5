"""Work on frames by several threads, including the caller's."""

import threading
from collections.abc import Iterator

import pytest

from echo2.weights.ordered_map import in_order


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 40])
def test_results_come_in_the_order_of_the_items(threads: int, count: int) -> None:
    assert list(in_order(lambda item: item * item, range(count), threads)) == [item * item for item in range(count)]


def test_the_caller_works_too() -> None:
    """Two items each wait for the other, so that no thread can do both."""
    meeting = threading.Barrier(2)

    def work(item: int) -> int:
        meeting.wait(60)
        return threading.get_ident()

    results = list(in_order(work, range(8), 2))
    assert len(set(results)) == 2
    assert threading.get_ident() in results


def test_no_thread_idles_while_the_first_item_is_in_work() -> None:
    """The first item waits for the two after it, which the other thread does one after the other."""
    later = threading.Semaphore(0)

    def work(item: int) -> int:
        if item:
            later.release()
        else:
            assert all(later.acquire(timeout=60) for _ in range(2))
        return item

    assert list(in_order(work, range(3), 2)) == [0, 1, 2]


def test_items_are_taken_no_further_ahead_than_twice_the_threads() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for item in range(100):
            taken.append(item)
            yield item

    for done in in_order(lambda item: item, items(), 3):
        assert len(taken) <= done + 2 * 3


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_an_error_is_raised_where_its_result_would_be_taken(threads: int) -> None:
    def work(item: int) -> int:
        if item == 3:
            raise ValueError("item 3")
        return item

    results = in_order(work, range(100), threads)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="item 3"):
        next(results)


def test_a_consumer_that_stops_leaves_nothing_in_work() -> None:
    before, begun = threading.active_count(), list[int]()
    results = in_order(begun.append, range(100), 4)
    next(results)
    results.close()
    assert threading.active_count() == before
    assert len(begun) <= 2 * 4
