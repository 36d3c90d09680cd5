"""The owner's limits and the order of streams at a limited uplink: stories told to the pure core."""

from collections import Counter
from weakref import ref

import pytest

from echo2.p2p.limits.bandwidth import BURST_SECONDS, FairQueue, bandwidth, change_bandwidth


def served(queue: FairQueue[str], sizes: dict[str, tuple[str, int]], rounds: int) -> Counter[str]:
    """Return the bytes sent to each peer while these streams (name -> peer, bytes of a chunk) always have a chunk to
    send."""
    sent, now = Counter[str](), 0.0
    for _ in range(rounds):
        for stream, (peer, size) in sizes.items():
            queue.enqueue(stream, peer, size)
        front = queue.head()
        assert front is not None
        now += queue.delay(front, now) or 0.0
        peer, size = sizes[front]
        queue.consume(front, now)
        sent[peer] += size
    return sent


def test_peers_share_an_uplink_by_bytes_for_any_chunk_sizes_and_numbers_of_streams():
    queue = FairQueue[str](bandwidth(1000.0))
    streams = {"large": ("a", 800), "small": ("b", 100), "one": ("c", 100), "two": ("c", 100), "three": ("c", 100)}
    sent = served(queue, streams, 3000)
    assert max(sent.values()) < 1.1 * min(sent.values())


def test_a_peer_that_joins_late_does_not_starve_the_others():
    queue = FairQueue[str](bandwidth(1000.0))
    served(queue, {"one": ("a", 100)}, 500)
    sent = served(queue, {"one": ("a", 100), "two": ("b", 100)}, 100)
    assert abs(sent["a"] - sent["b"]) <= 200


def test_peers_that_are_no_children_count_as_one_and_share_a_quarter():
    queue = FairQueue[str](bandwidth(1000.0))
    queue.prioritise(["a", "b", "c"])
    others = {name: (name, 100) for name in "defghijkl"}
    sent = served(queue, {name: (name, 100) for name in "abc"} | others, 1200)
    for child in "abc":
        assert sent[child] == pytest.approx(sum(sent[name] for name in others), rel=0.05)
    assert max(sent[name] for name in others) <= 1.2 * min(sent[name] for name in others)


def test_other_peers_get_an_uplink_that_no_child_uses_and_without_a_plan_all_are_equal():
    queue = FairQueue[str](bandwidth(1000.0))
    queue.prioritise(["a"])
    assert served(queue, {"one": ("d", 100), "two": ("e", 100)}, 90).total() == 9000
    queue = FairQueue[str](bandwidth(1000.0))
    queue.prioritise([])
    sent = served(queue, {"a": ("a", 100), "d": ("d", 100), "e": ("e", 100)}, 90)
    assert max(sent.values()) - min(sent.values()) <= 200


def test_bytes_of_a_small_share_consume_the_limit_in_full():
    queue = FairQueue[str](bandwidth(100.0))
    queue.prioritise([f"child{number}" for number in range(30)])
    queue.enqueue("one", "other", 1000)
    queue.consume("one", 0.0)
    queue.enqueue("one", "other", 1000)
    assert queue.delay("one", 0.0) == pytest.approx(10.0 - BURST_SECONDS)


def test_a_stream_that_is_not_the_head_waits_until_it_is_woken():
    queue = FairQueue[str](bandwidth(1000.0))
    queue.enqueue("one", "a", 100)
    queue.enqueue("two", "b", 100)
    assert queue.delay("one", 0.0) == 0
    assert queue.delay("two", 0.0) is None
    assert queue.consume("one", 0.0) == ["two"]
    assert queue.dequeue("two")
    assert not queue.dequeue("two")
    assert queue.head() is None


def test_sending_without_a_limit_never_waits():
    pace = bandwidth(None)
    pace.consume(1 << 40, 0.0)
    assert pace.delay(0, 0.0) == 0


def test_sending_under_a_limit_waits_as_long_as_the_rate_says():
    pace = bandwidth(1000.0)
    now, waited = 100.0, 0.0
    for _ in range(50):
        wait = pace.delay(0, now)
        now, waited = now + wait, waited + wait
        pace.consume(100, now)
    assert waited == pytest.approx(49 * 0.1 - BURST_SECONDS, abs=1e-6)


def test_a_pause_saves_no_more_than_the_burst():
    pace = bandwidth(1000.0)
    pace.consume(100, 0.0)
    waits = []
    for _ in range(4):
        waits.append(pace.delay(0, 1000.0))
        pace.consume(100, 1000.0)
    assert waits == pytest.approx([0, 0, 0, 0.3 - BURST_SECONDS])


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_limit_that_is_not_positive_is_refused(rate):
    with pytest.raises(ValueError, match="positive"):
        bandwidth(rate)


class Leaving:
    """A stream."""


@pytest.mark.parametrize("rate", [None, 1000.0])
def test_a_stream_that_has_sent_its_chunks_or_left_is_forgotten(rate: float | None):
    """On 926a386 a machine without a limit keeps each stream, and an entry for each chunk that it has sent."""
    queue, left = FairQueue[Leaving](bandwidth(rate)), list[ref[Leaving]]()
    for number in range(100):
        one, two = Leaving(), Leaving()
        for _ in range(3):
            queue.enqueue(one, f"peer {number}", 100)
            queue.enqueue(two, "another", 100)
            queue.consume(one, 100.0 * number)
        queue.dequeue(two)
        left += [ref(one), ref(two)]
        del one, two
    assert not [stream for stream in left if stream() is not None]


def test_another_limit_counts_at_once_and_wakes_all_that_wait() -> None:
    queue = FairQueue[str](bandwidth(None))
    queue.enqueue("one", "a", 1000)
    queue.enqueue("two", "b", 1000)
    assert queue.limit(100.0) == ["one", "two"]
    assert queue.delay("one", 0.0) == 0.0
    assert queue.consume("one", 0.0) == ["two"]
    assert queue.delay("two", 0.0) == pytest.approx(1000 / 100 - BURST_SECONDS)
    assert queue.limit(None) == ["two"]
    assert queue.delay("two", 0.0) == 0.0
    with pytest.raises(ValueError, match="positive"):
        queue.limit(0.0)


def test_another_rate_counts_for_what_leaves_from_then_on_and_a_debt_stays() -> None:
    bucket = bandwidth(None)
    change_bandwidth(bucket, 1000.0)
    assert bucket.consume(1250, 0.0) == pytest.approx(1250 / 1000 - BURST_SECONDS)
    change_bandwidth(bucket, 100.0)
    assert bucket.delay(0, 0.0) == pytest.approx(1250 / 1000 - BURST_SECONDS)
    change_bandwidth(bucket, None)
    assert bucket.delay(5000, 0.0) == 0.0
