"""Who is asked for what: stories told to the pure core."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.swarm import GRACE, LAST_WINDOW_MIN, STALL, Swarm

CHUNK = 1 << 20
ALL = (1 << 100) - 1


def swarm(chunks: int = 100, **options) -> Swarm:
    return Swarm(chunks, CHUNK, **{"seed": 1, **options})


def indices(asks) -> list[int]:
    return [ask.index for ask in asks]


def by_peer(asks) -> dict[str, int]:
    return dict(Counter(ask.peer for ask in asks))


def test_nothing_is_asked_of_nobody():
    assert swarm().next(0) == []


def test_a_peer_is_asked_for_a_window_of_distinct_chunks_that_it_has():
    s = swarm()
    s.has("a", 0b111100, 0)
    asks = s.next(0)
    assert sorted(indices(asks)) == [2, 3, 4, 5]
    assert s.next(0) == []


def test_a_chunk_that_arrives_makes_room_for_the_next():
    s = swarm()
    s.has("a", ALL, 0)
    first = s.next(0)
    s.arrived("a", first[0].index, 1)
    assert len(s.next(1)) == 1
    assert not s.owed("a", first[0].index)


def test_several_peers_are_asked_for_different_chunks_at_once():
    s = swarm()
    for peer in "abc":
        s.has(peer, ALL, 0)
    asks = s.next(0)
    assert len(set(indices(asks))) == len(asks)
    assert by_peer(asks) == {"a": 4, "b": 4, "c": 4}


def test_the_rarest_chunk_is_asked_for_first():
    s = swarm()
    s.has("a", ALL, 0)
    s.has("b", ALL & ~(1 << 7), 0)
    assert any(ask.index == 7 and ask.peer == "a" for ask in s.next(0))


def test_other_seeds_ask_in_other_orders_and_the_same_seed_in_the_same():
    def asked(seed: int) -> list[int]:
        s = swarm(seed=seed)
        s.has("a", ALL, 0)
        return indices(s.next(0))

    assert asked(1) == asked(1)
    assert len({tuple(asked(seed)) for seed in range(10)}) > 5


def test_chunks_already_here_are_not_asked_for():
    s = swarm(4, have=0b0101)
    s.has("a", 0b1111, 0)
    assert sorted(indices(s.next(0))) == [1, 3]


def test_the_coordinator_is_asked_at_once_where_nobody_else_is_connected():
    s = swarm(last="coordinator")
    s.has("coordinator", ALL, 0)
    assert by_peer(s.next(0)) == {"coordinator": LAST_WINDOW_MIN}


def test_the_coordinator_is_asked_only_for_what_no_other_has():
    s = swarm(4, last="coordinator")
    s.has("coordinator", 0b1111, 0)
    s.has("a", 0b0011, 0)
    asks = s.next(0)
    assert {ask.index for ask in asks if ask.peer == "a"} == {0, 1}
    assert {ask.index for ask in asks if ask.peer == "coordinator"} == {2, 3}


def test_the_coordinator_waits_until_a_connected_peer_has_spoken():
    s = swarm(last="coordinator")
    s.joined("coordinator", 0)
    s.joined("a", 0)
    s.has("coordinator", ALL, 0.01)
    assert s.next(0.01) == []
    s.has("a", 0, 0.02)
    assert by_peer(s.next(0.02)) == {"coordinator": LAST_WINDOW_MIN}


def test_the_coordinator_does_not_wait_for_a_silent_peer_beyond_the_grace():
    s = swarm(last="coordinator")
    s.joined("a", 0)
    s.has("coordinator", ALL, 0)
    assert s.deadline() == GRACE
    assert by_peer(s.next(GRACE)) == {"coordinator": LAST_WINDOW_MIN}


def test_the_coordinators_window_grows_while_it_is_prompt_and_shrinks_when_it_queues():
    s = swarm(last="coordinator")
    s.has("coordinator", ALL, 0)
    s.next(0)
    for index in [index for index in range(100) if s.owed("coordinator", index)]:
        s.arrived("coordinator", index, 0.1)
    assert len(s.next(0.1)) == LAST_WINDOW_MIN + 2
    for index in [index for index in range(100) if s.owed("coordinator", index)]:
        s.arrived("coordinator", index, 2)
    assert len(s.next(2)) == LAST_WINDOW_MIN


def test_what_a_peer_owed_is_asked_elsewhere_when_it_leaves():
    s = swarm(4)
    s.has("a", 0b1111, 0)
    s.next(0)
    s.has("b", 0b1111, 0)
    assert s.next(0) == []
    s.left("a")
    assert by_peer(s.next(0)) == {"b": 4}


def test_what_a_stalled_peer_owes_is_asked_elsewhere_and_it_is_asked_no_more():
    s = swarm(8)
    s.has("a", 0b1111_1111, 0)
    s.next(0)
    s.has("b", 0b1111_1111, 1)
    s.next(1)
    for index in range(8):
        if s.owed("b", index):
            s.arrived("b", index, 2)
    assert s.deadline() == STALL
    asks = s.next(STALL)
    assert by_peer(asks) == {"b": 4}
    s.left("b")
    assert s.next(STALL) == []


def test_the_coordinator_steps_in_for_a_stalled_peer():
    s = swarm(4, last="coordinator")
    s.has("coordinator", 0b1111, 0)
    s.has("a", 0b1111, 0)
    assert by_peer(s.next(0)) == {"a": 4}
    assert by_peer(s.next(STALL)) == {"coordinator": LAST_WINDOW_MIN}


def test_a_stalled_peer_that_sends_again_is_asked_again():
    s = swarm()
    s.has("a", ALL, 0)
    first = s.next(0)
    assert s.next(STALL) == []
    s.arrived("a", first[0].index, STALL + 1)
    assert by_peer(s.next(STALL + 1)) == {"a": 1}


def test_a_peer_that_owes_nothing_does_not_stall():
    s = swarm(1)
    s.has("a", 0, 0)
    assert s.deadline() is None
    s.has("a", 1, 100)
    assert by_peer(s.next(100)) == {"a": 1}
    assert s.deadline() == 100 + STALL


def test_a_peer_is_dropped_after_two_bad_chunks_and_not_taken_back():
    s = swarm()
    s.has("a", ALL, 0)
    first, second, *_ = s.next(0)
    assert not s.bad("a", first.index)
    assert s.bad("a", second.index)
    assert s.dropped("a")
    s.has("a", ALL, 1)
    assert s.next(1) == []


def test_a_peer_cannot_wash_off_a_bad_chunk_by_leaving():
    s = swarm()
    s.has("a", ALL, 0)
    s.bad("a", s.next(0)[0].index)
    s.left("a")
    s.has("a", ALL, 1)
    assert s.bad("a", s.next(1)[0].index)


def test_a_chunk_that_came_bad_is_not_asked_of_the_same_peer_again():
    s = swarm(1)
    s.has("a", 1, 0)
    s.next(0)
    s.bad("a", 0)
    assert s.next(0) == []


def test_a_chunk_that_is_gone_is_asked_elsewhere():
    s = swarm(1)
    s.has("a", 1, 0)
    assert by_peer(s.next(0)) == {"a": 1}
    s.gone("a", 0)
    s.has("b", 1, 0)
    assert by_peer(s.next(0)) == {"b": 1}


def test_a_complete_download_asks_for_nothing():
    s = swarm(1)
    s.has("a", 1, 0)
    s.next(0)
    s.arrived("a", 0, 1)
    assert s.complete
    assert s.next(1) == []


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(0, 10**6), st.lists(st.integers(0, 2**40 - 1), min_size=1, max_size=6))
def test_every_chunk_that_somebody_has_arrives_once(chunks, seed, holdings):
    everything = (1 << chunks) - 1
    s = Swarm(chunks, CHUNK, seed=seed, last="0")
    union = 0
    for number, held in enumerate(holdings):
        s.has(str(number), held & everything, 0)
        union |= held & everything
    got: Counter[int] = Counter()
    now = 0.0
    while asks := s.next(now):
        now += 0.1
        for ask in asks:
            assert holdings[int(ask.peer)] >> ask.index & 1
            got[ask.index] += 1
            s.arrived(ask.peer, ask.index, now)
    assert s.missing == everything & ~union
    assert set(got.values()) <= {1}


def test_a_large_payload_with_many_peers_is_planned_in_reasonable_time():
    s = Swarm(100_000, CHUNK, seed=1)
    everything = (1 << 100_000) - 1
    for number in range(50):
        s.has(str(number), everything, 0)
    assert len(s.next(0)) == 200


def test_news_of_an_unknown_peer_harms_nothing():
    s = swarm()
    s.left("unknown")
    s.gone("unknown", 3)
    s.arrived("unknown", 3, 0)
    assert not s.owed("unknown", 3)
    assert not s.bad("unknown", 4)
