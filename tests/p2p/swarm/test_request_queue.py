"""Requests of one downloader at a holder, and announcements to it: stories told to the pure core."""

import pytest

from echo2.p2p.errors import Malformed
from echo2.p2p.swarm.request_queue import ANNOUNCE_DELAY, QUEUE_MAX, RequestQueue


def test_available_chunks_are_sent_in_the_order_of_their_requests():
    requests = RequestQueue()
    requests.start(0b1111, 4)
    requests.request((3, 1), 0b1111)
    assert requests.next_chunk() == 3
    requests.mark_sent(3)
    assert requests.next_chunk() == 1


def test_a_deferred_chunk_is_sent_on_arrival_and_not_announced():
    requests = RequestQueue()
    requests.request((2, 0), 0)
    requests.start(0b0001, 4)
    assert requests.next_chunk() == 0
    requests.mark_sent(0)
    assert requests.next_chunk() is None
    requests.on_chunk(2, 1.0)
    assert requests.next_chunk() == 2
    assert requests.take_announcements(1.0) == ()


def test_chunks_are_announced_at_once_or_later_while_requests_are_deferred():
    requests = RequestQueue()
    requests.start(0, 4)
    requests.on_chunk(1, 0.0)
    assert requests.take_announcements(0.0) == (1,)
    requests.request((3,), 0b10)
    requests.on_chunk(2, 1.0)
    assert requests.announce_delay(1.0) == ANNOUNCE_DELAY
    assert requests.take_announcements(1.0) == ()
    assert requests.take_announcements(1.0 + ANNOUNCE_DELAY) == (2,)
    assert requests.take_announcements(2.0) == ()


def test_a_cancelled_chunk_is_sent_neither_now_nor_on_arrival():
    requests = RequestQueue()
    requests.start(0b01, 2)
    requests.request((0, 1), 0b01)
    requests.cancel((0, 1, 7))
    requests.on_chunk(1, 0.0)
    assert requests.next_chunk() is None
    assert requests.take_announcements(0.0) == (1,)


def test_an_index_beyond_the_end_is_answered_at_once():
    requests = RequestQueue()
    requests.request((9,), 0)
    requests.start(0, 4)
    assert requests.next_chunk() == 9


def test_more_requests_than_the_queue_has_room_for_are_refused():
    requests = RequestQueue()
    requests.request(range(QUEUE_MAX), 0)
    with pytest.raises(Malformed, match=f"more than {QUEUE_MAX} chunks"):
        requests.request((QUEUE_MAX,), 0)
