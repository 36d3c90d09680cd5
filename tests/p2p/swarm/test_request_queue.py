"""Requests of one downloader at a holder, and announcements to it: stories told to the pure core."""

import pytest

from p2p.errors import Malformed
from p2p.swarm.request_queue import ANNOUNCE_DELAY, QUEUE_MAX, RequestQueue


def test_available_chunks_are_sent_in_the_order_of_their_requests():
    orders = RequestQueue()
    orders.start(0b1111, 4)
    orders.request((3, 1), 0b1111)
    assert orders.next_chunk() == 3
    orders.mark_sent(3)
    assert orders.next_chunk() == 1


def test_a_deferred_chunk_is_sent_on_arrival_and_not_announced():
    orders = RequestQueue()
    orders.request((2, 0), 0)
    orders.start(0b0001, 4)
    assert orders.next_chunk() == 0
    orders.mark_sent(0)
    assert orders.next_chunk() is None
    orders.on_chunk(2, 1.0)
    assert orders.next_chunk() == 2
    assert orders.take_announcements(1.0) == ()


def test_chunks_are_announced_at_once_or_later_while_requests_are_deferred():
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


def test_a_cancelled_chunk_is_sent_neither_now_nor_on_arrival():
    orders = RequestQueue()
    orders.start(0b01, 2)
    orders.request((0, 1), 0b01)
    orders.cancel((0, 1, 7))
    orders.on_chunk(1, 0.0)
    assert orders.next_chunk() is None
    assert orders.take_announcements(0.0) == (1,)


def test_an_index_beyond_the_end_is_answered_at_once():
    orders = RequestQueue()
    orders.request((9,), 0)
    orders.start(0, 4)
    assert orders.next_chunk() == 9


def test_more_requests_than_the_queue_has_room_for_are_refused():
    orders = RequestQueue()
    orders.request(range(QUEUE_MAX), 0)
    with pytest.raises(Malformed, match=f"more than {QUEUE_MAX} chunks"):
        orders.request((QUEUE_MAX,), 0)
