"""What a holder owes one downloader, and whose turn it is at a limited uplink: stories told to the pure cores."""

import pytest

from p2p.errors import Malformed
from p2p.swarm.request_queue import ANNOUNCE_DELAY, QUEUE_MAX, RequestQueue


def test_chunks_that_are_here_are_sent_in_the_order_asked():
    orders = RequestQueue()
    orders.start(0b1111, 4)
    orders.request((3, 1), 0b1111)
    assert orders.next_chunk() == 3
    orders.mark_sent(3)
    assert orders.next_chunk() == 1


def test_a_chunk_asked_for_too_early_is_sent_when_it_comes_and_not_told():
    orders = RequestQueue()
    orders.request((2, 0), 0)
    orders.start(0b0001, 4)
    assert orders.next_chunk() == 0
    orders.mark_sent(0)
    assert orders.next_chunk() is None
    orders.on_chunk(2, 1.0)
    assert orders.next_chunk() == 2
    assert orders.take_announcements(1.0) == ()


def test_news_are_told_at_once_where_nothing_stands_and_later_where_something_does():
    orders = RequestQueue()
    orders.start(0, 4)
    orders.on_chunk(1, 0.0)
    assert orders.take_announcements(0.0) == (1,)
    orders.request((3,), 0b10)
    orders.on_chunk(2, 1.0)
    assert orders.announce_delay(1.0) == ANNOUNCE_DELAY
    assert orders.take_announcements(1.0) == ()
    assert orders.take_announcements(1.0 + ANNOUNCE_DELAY) == (2,)
    assert orders.take_announcements(2.0) == ()


def test_what_is_cancelled_is_sent_neither_now_nor_when_it_comes():
    orders = RequestQueue()
    orders.start(0b01, 2)
    orders.request((0, 1), 0b01)
    orders.cancel((0, 1, 7))
    orders.on_chunk(1, 0.0)
    assert orders.next_chunk() is None
    assert orders.take_announcements(0.0) == (1,)


def test_an_index_beyond_the_end_is_ready_at_once_so_that_it_can_be_denied():
    orders = RequestQueue()
    orders.request((9,), 0)
    orders.start(0, 4)
    assert orders.next_chunk() == 9


def test_more_than_a_queue_of_orders_is_refused():
    orders = RequestQueue()
    orders.request(range(QUEUE_MAX), 0)
    with pytest.raises(Malformed, match=f"more than {QUEUE_MAX} chunks"):
        orders.request((QUEUE_MAX,), 0)
