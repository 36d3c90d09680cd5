"""The owner's limits and the order of streams at a limited uplink: stories told to the pure core."""

from collections import Counter

import pytest

from p2p.limits.bandwidth import BURST, FairQueue, bandwidth


def served(turns: FairQueue[str], sizes: dict[str, tuple[str, int]], rounds: int) -> Counter[str]:
    """Return the bytes sent to each peer while these streams (name -> peer, bytes of a chunk) always have a chunk to
    send."""
    sent, now = Counter[str](), 0.0
    for _ in range(rounds):
        for stream, (peer, size) in sizes.items():
            turns.enqueue(stream, peer, size)
        front = turns.head()
        assert front is not None
        now += turns.delay(front, now) or 0.0
        peer, size = sizes[front]
        turns.consume(front, now)
        sent[peer] += size
    return sent


def test_peers_share_an_uplink_by_bytes_for_any_chunk_sizes_and_numbers_of_streams():
    turns = FairQueue[str](bandwidth(1000.0))
    streams = {"large": ("a", 800), "small": ("b", 100), "one": ("c", 100), "two": ("c", 100), "three": ("c", 100)}
    sent = served(turns, streams, 3000)
    assert max(sent.values()) < 1.1 * min(sent.values())


def test_a_peer_that_joins_late_does_not_starve_the_others():
    turns = FairQueue[str](bandwidth(1000.0))
    served(turns, {"one": ("a", 100)}, 500)
    sent = served(turns, {"one": ("a", 100), "two": ("b", 100)}, 100)
    assert abs(sent["a"] - sent["b"]) <= 200


def test_peers_that_are_no_children_count_as_one_and_share_a_quarter():
    turns = FairQueue[str](bandwidth(1000.0))
    turns.prioritise(["a", "b", "c"])
    strangers = {name: (name, 100) for name in "defghijkl"}
    sent = served(turns, {name: (name, 100) for name in "abc"} | strangers, 1200)
    for child in "abc":
        assert sent[child] == pytest.approx(sum(sent[name] for name in strangers), rel=0.05)
    assert max(sent[name] for name in strangers) <= 1.2 * min(sent[name] for name in strangers)


def test_other_peers_get_an_uplink_that_no_child_uses_and_without_a_plan_all_are_equal():
    turns = FairQueue[str](bandwidth(1000.0))
    turns.prioritise(["a"])
    assert served(turns, {"one": ("d", 100), "two": ("e", 100)}, 90).total() == 9000
    turns = FairQueue[str](bandwidth(1000.0))
    turns.prioritise([])
    sent = served(turns, {"a": ("a", 100), "d": ("d", 100), "e": ("e", 100)}, 90)
    assert max(sent.values()) - min(sent.values()) <= 200


def test_bytes_of_a_small_share_consume_the_limit_in_full():
    turns = FairQueue[str](bandwidth(100.0))
    turns.prioritise([f"child{number}" for number in range(30)])
    turns.enqueue("one", "stranger", 1000)
    turns.consume("one", 0.0)
    turns.enqueue("one", "stranger", 1000)
    assert turns.delay("one", 0.0) == pytest.approx(10.0 - BURST)


def test_a_stream_that_is_not_the_head_waits_until_it_is_woken():
    turns = FairQueue[str](bandwidth(1000.0))
    turns.enqueue("one", "a", 100)
    turns.enqueue("two", "b", 100)
    assert turns.delay("one", 0.0) == 0
    assert turns.delay("two", 0.0) is None
    assert turns.consume("one", 0.0) == ["two"]
    assert turns.dequeue("two")
    assert not turns.dequeue("two")
    assert turns.head() is None


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
    assert waited == pytest.approx(49 * 0.1 - BURST, abs=1e-6)


def test_a_pause_saves_no_more_than_the_burst():
    pace = bandwidth(1000.0)
    pace.consume(100, 0.0)
    waits = []
    for _ in range(4):
        waits.append(pace.delay(0, 1000.0))
        pace.consume(100, 1000.0)
    assert waits == pytest.approx([0, 0, 0, 0.3 - BURST])


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_limit_that_is_not_positive_is_refused(rate):
    with pytest.raises(ValueError, match="positive"):
        bandwidth(rate)
