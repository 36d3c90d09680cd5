"""Test the choice of chunk and peer: stories told to the pure core."""

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.p2p.swarm.peer_state import (
    CHUNK_STALL_SECONDS,
    ENDGAME_SLOW,
    ENDGAME_STALL,
    SLOWEST_LINK_RATE,
    STALL_MIN,
    WINDOW_FIRST,
)
from echo2.p2p.swarm.picker import (
    FALLBACK_GRACE_SECONDS,
    FALLBACK_WINDOW_MIN,
    PARENT_GRACE,
    WINDOW_MIN,
    ChunkPicker,
    PeerRequest,
)

CHUNK = 1 << 20
PATIENCE = CHUNK_STALL_SECONDS + CHUNK / SLOWEST_LINK_RATE
PATIENCE_END = ENDGAME_STALL + CHUNK / ENDGAME_SLOW
ALL = (1 << 100) - 1


@pytest.fixture(autouse=True, scope="module")
def small_windows() -> Iterator[None]:
    """Run the stories with windows of four chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("echo2.p2p.swarm.picker.WINDOW_MIN", 4)
        yield


def swarm(chunks: int = 100, **options) -> ChunkPicker:
    return ChunkPicker(chunks, CHUNK, **{"seed": 1, **options})


def indices(asks) -> list[int]:
    return [ask.index for ask in asks]


def by_peer(asks) -> dict[str, int]:
    return dict(Counter(ask.peer for ask in asks))


def test_no_request_is_made_without_peers():
    assert swarm().next_requests(0) == []


def test_a_peer_gets_requests_for_a_window_of_distinct_chunks_that_it_has():
    s = swarm()
    s.on_have("a", 0b1100, 0)
    asks = s.next_requests(0)
    assert sorted(indices(asks)) == [2, 3]
    assert s.next_requests(0) == []


def test_a_fast_peer_is_asked_for_eight_of_the_largest_chunks_and_for_sixty_four_of_the_smallest(monkeypatch):
    monkeypatch.setattr("echo2.p2p.swarm.picker.WINDOW_MIN", WINDOW_MIN)
    assert WINDOW_MIN == 8
    for size, window in ((1 << 20, 8), (16 << 10, 64)):
        s = ChunkPicker(100, size, seed=1)
        s.on_have("a", ALL, 0)
        s.on_chunk("a", s.next_requests(0)[0].index, 0.001)
        s.next_requests(0.001)
        assert sum(s.is_requested("a", index) for index in range(100)) == window


def test_a_chunk_that_arrives_makes_room_for_the_next():
    s = swarm()
    s.on_have("a", ALL, 0)
    first = s.next_requests(0)
    s.on_chunk("a", first[0].index, 0.5)
    assert len(s.next_requests(0.5)) == 1
    assert not s.is_requested("a", first[0].index)


def test_several_peers_get_requests_for_different_chunks_at_once():
    s = swarm()
    for peer in "abc":
        s.on_have(peer, ALL, 0)
    asks = s.next_requests(0)
    assert len(set(indices(asks))) == len(asks)
    assert by_peer(asks) == dict.fromkeys("abc", WINDOW_FIRST)


def test_the_rarest_chunk_is_requested_first():
    s = swarm()
    s.on_have("a", ALL, 0)
    s.on_have("b", ALL & ~(1 << 7), 0)
    assert any(ask.index == 7 and ask.peer == "a" for ask in s.next_requests(0))


def test_other_seeds_request_in_other_orders_and_the_same_seed_in_the_same():
    def asked(seed: int) -> list[int]:
        s = swarm(seed=seed)
        s.on_have("a", ALL, 0)
        return indices(s.next_requests(0))

    assert asked(1) == asked(1)
    assert len({tuple(asked(seed)) for seed in range(10)}) > 5


def test_chunks_already_stored_are_not_requested():
    s = swarm(4, have=0b0101)
    s.on_have("a", 0b1111, 0)
    assert sorted(indices(s.next_requests(0))) == [1, 3]


def test_the_coordinator_is_asked_at_once_without_other_peers():
    s = swarm(fallback="coordinator")
    s.on_have("coordinator", ALL, 0)
    assert by_peer(s.next_requests(0)) == {"coordinator": FALLBACK_WINDOW_MIN}


def test_the_coordinator_is_asked_only_for_chunks_that_no_other_peer_has():
    s = swarm(4, fallback="coordinator")
    s.on_have("coordinator", 0b1111, 0)
    s.on_have("a", 0b0011, 0)
    asks = s.next_requests(0)
    assert {ask.index for ask in asks if ask.peer == "a"} == {0, 1}
    assert {ask.index for ask in asks if ask.peer == "coordinator"} == {2, 3}


def test_the_coordinator_is_not_asked_before_a_connected_peer_has_sent_its_have():
    s = swarm(fallback="coordinator")
    s.stream_opened("coordinator", 0)
    s.stream_opened("a", 0)
    s.on_have("coordinator", ALL, 0.01)
    assert s.next_requests(0.01) == []
    s.on_have("a", 0, 0.02)
    assert by_peer(s.next_requests(0.02)) == {"coordinator": FALLBACK_WINDOW_MIN}


def test_the_coordinator_does_not_wait_for_a_silent_peer_beyond_the_grace():
    s = swarm(fallback="coordinator")
    s.stream_opened("a", 0)
    s.on_have("coordinator", ALL, 0)
    assert s.deadline() == FALLBACK_GRACE_SECONDS
    assert by_peer(s.next_requests(FALLBACK_GRACE_SECONDS)) == {"coordinator": FALLBACK_WINDOW_MIN}


def test_the_coordinators_window_grows_while_it_is_prompt_and_shrinks_when_it_queues():
    s = swarm(fallback="coordinator")
    s.on_have("coordinator", ALL, 0)
    s.next_requests(0)
    for index in [index for index in range(100) if s.is_requested("coordinator", index)]:
        s.on_chunk("coordinator", index, 0.1)
    assert len(s.next_requests(0.1)) == FALLBACK_WINDOW_MIN + 2
    for index in [index for index in range(100) if s.is_requested("coordinator", index)]:
        s.on_chunk("coordinator", index, 2)
    assert len(s.next_requests(2)) == FALLBACK_WINDOW_MIN


def test_the_open_requests_of_a_peer_go_elsewhere_when_it_leaves():
    s = swarm(2)
    s.on_have("a", 0b11, 0)
    s.next_requests(0)
    s.on_have("b", 0b11, 0)
    assert s.next_requests(0) == []
    s.on_leave("a")
    assert by_peer(s.next_requests(0)) == {"b": 2}


def test_the_open_requests_of_a_stalled_peer_go_elsewhere_and_it_gets_no_more():
    s = swarm(4)
    s.on_have("a", 0b1111, 0)
    s.next_requests(0)
    s.on_have("b", 0b1111, 1)
    s.next_requests(1)
    for index in range(4):
        if s.is_requested("b", index):
            s.on_chunk("b", index, 1.2)
    assert s.deadline() == PATIENCE_END
    asks = s.next_requests(PATIENCE_END)
    assert by_peer(asks) == {"b": 2}
    s.on_leave("b")
    assert s.next_requests(PATIENCE_END) == []


def test_the_coordinator_steps_in_for_a_stalled_peer():
    s = swarm(2, fallback="coordinator")
    s.on_have("coordinator", 0b11, 0)
    s.on_have("a", 0b11, 0)
    assert by_peer(s.next_requests(0)) == {"a": 2}
    assert by_peer(s.next_requests(PATIENCE)) == {"coordinator": FALLBACK_WINDOW_MIN}


def test_a_stalled_peer_that_sends_again_is_asked_again():
    s = swarm()
    s.on_have("a", ALL, 0)
    first = s.next_requests(0)
    assert s.next_requests(PATIENCE) == []
    s.on_chunk("a", first[0].index, PATIENCE + 1)
    s.on_chunk("a", first[1].index, PATIENCE + 1.01)
    assert by_peer(s.next_requests(PATIENCE + 1.01)) == {"a": 1}


def test_a_peer_without_open_requests_does_not_stall():
    s = swarm(1)
    s.on_have("a", 0, 0)
    assert s.deadline() is None
    s.on_have("a", 1, 100)
    assert by_peer(s.next_requests(100)) == {"a": 1}
    assert s.deadline() == 100 + PATIENCE_END


def test_a_peer_is_dropped_after_two_bad_chunks_and_not_taken_back():
    s = swarm()
    s.on_have("a", ALL, 0)
    first, second, *_ = s.next_requests(0)
    assert not s.proof_failed("a", first.index)
    assert s.proof_failed("a", second.index)
    assert s.is_dropped("a")
    s.on_have("a", ALL, 1)
    assert s.next_requests(1) == []


def test_a_peer_cannot_wash_off_a_bad_chunk_by_leaving():
    s = swarm()
    s.on_have("a", ALL, 0)
    s.proof_failed("a", s.next_requests(0)[0].index)
    s.on_leave("a")
    s.on_have("a", ALL, 1)
    assert s.proof_failed("a", s.next_requests(1)[0].index)


def test_a_chunk_that_failed_its_proof_is_not_requested_from_the_same_peer_again():
    s = swarm(1)
    s.on_have("a", 1, 0)
    s.next_requests(0)
    s.proof_failed("a", 0)
    assert s.next_requests(0) == []


def test_a_chunk_that_a_peer_lost_is_requested_elsewhere():
    s = swarm(1)
    s.on_have("a", 1, 0)
    assert by_peer(s.next_requests(0)) == {"a": 1}
    s.chunk_lost("a", 0)
    s.on_have("b", 1, 0)
    assert by_peer(s.next_requests(0)) == {"b": 1}


def test_a_complete_download_makes_no_request():
    s = swarm(1)
    s.on_have("a", 1, 0)
    s.next_requests(0)
    s.on_chunk("a", 0, 1)
    assert s.complete
    assert s.next_requests(1) == []


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(0, 10**6), st.lists(st.integers(0, 2**40 - 1), min_size=1, max_size=6))
def test_every_available_chunk_arrives_once(chunks, seed, holdings):
    everything = (1 << chunks) - 1
    s = ChunkPicker(chunks, CHUNK, seed=seed, fallback="0")
    union = 0
    for number, indices in enumerate(holdings):
        s.on_have(str(number), indices & everything, 0)
        union |= indices & everything
    got: Counter[int] = Counter()
    now = 0.0
    while asks := s.next_requests(now):
        now += 0.1
        for ask in asks:
            assert holdings[int(ask.peer)] >> ask.index & 1
            got[ask.index] += 1
            s.on_chunk(ask.peer, ask.index, now)
    assert s.missing == everything & ~union
    assert set(got.values()) <= {1}


def test_a_large_payload_with_many_peers_is_planned_in_reasonable_time():
    s = ChunkPicker(100_000, CHUNK, seed=1)
    everything = (1 << 100_000) - 1
    for number in range(50):
        s.on_have(str(number), everything, 0)
    assert len(s.next_requests(0)) == 50 * WINDOW_FIRST


def test_events_of_an_unknown_peer_have_no_effect():
    s = swarm()
    s.on_leave("unknown")
    s.chunk_lost("unknown", 3)
    s.on_chunk("unknown", 3, 0)
    assert not s.is_requested("unknown", 3)
    assert not s.proof_failed("unknown", 4)


def test_a_peer_gets_as_many_requests_as_it_answers_in_a_second():
    def owed_after(interval: float) -> int:
        s, now = ChunkPicker(1000, 1 << 14, seed=1), 0.0
        s.on_have("a", (1 << 1000) - 1, now)
        for _ in range(40):
            s.next_requests(now)
            now += interval
            s.on_chunk("a", next(index for index in range(1000) if s.is_requested("a", index)), now)
        s.next_requests(now)
        return sum(s.is_requested("a", index) for index in range(1000))

    assert owed_after(2.0) == 1
    assert 8 <= owed_after(0.1) <= 10  # asked anew when a quarter is answered
    assert 48 <= owed_after(0.001) <= 64


PLAN = ("p", "q")


def planned(chunks: int = 20, **options) -> ChunkPicker:
    """Return a picker with two parents that have every chunk."""
    s = swarm(chunks, **options)
    s.follow(PLAN, 0)
    for parent in PLAN:
        s.on_have(parent, (1 << chunks) - 1, 0)
    return s


def test_each_parent_gets_requests_for_its_stripe_in_order():
    s = planned()
    asks = s.next_requests(0)
    assert [ask.index for ask in asks if ask.peer == "p"] == [0, 2, 4, 6, 8, 10, 12, 14]
    assert [ask.index for ask in asks if ask.peer == "q"] == [1, 3, 5, 7, 9, 11, 13, 15]
    assert not s.needs_more_peers


def test_a_parent_gets_requests_for_chunks_that_it_does_not_have_yet():
    s = swarm(20)
    s.follow(PLAN, 0)
    for parent in PLAN:
        s.on_have(parent, 0, 0)
    assert by_peer(s.next_requests(0)) == {"p": 8, "q": 8}


def test_other_peers_are_not_asked_while_the_parents_feed():
    s = planned()
    s.on_have("other", (1 << 20) - 1, 0)
    assert set(by_peer(s.next_requests(0))) == {"p", "q"}


def test_a_parents_window_is_filled_again_when_it_is_half_empty():
    s = planned(100)
    s.next_requests(0)
    for index in (0, 2, 4):
        s.on_chunk("p", index, 0.1)
        assert s.next_requests(0.1) == []
    s.on_chunk("p", 6, 0.1)
    assert indices(s.next_requests(0.1)) == [16, 18, 20, 22]


def test_the_stripe_of_a_parent_that_leaves_is_requested_from_others_at_once():
    s = planned()
    s.next_requests(0)
    s.on_leave("p")
    assert s.next_requests(0.1) == []
    assert s.needs_more_peers
    s.on_have("other", (1 << 20) - 1, 0.2)
    asks = s.next_requests(0.2)
    assert {ask.index % 2 for ask in asks if ask.peer == "other"} == {0}


def test_a_parent_that_does_not_come_is_awaited_for_a_while():
    s = swarm(20)
    s.follow(PLAN, 0)
    s.on_have("other", (1 << 20) - 1, 0)
    assert s.next_requests(0) == []
    assert s.deadline() == PARENT_GRACE
    assert by_peer(s.next_requests(PARENT_GRACE)) == {"other": WINDOW_FIRST}


def test_a_parent_that_lacks_the_chunks_itself_stalls_after_twice_as_long():
    s = swarm(20)
    s.follow(PLAN, 0)
    s.on_have("p", 0, 0)
    s.on_have("q", 0, 0)
    s.on_have("other", (1 << 20) - 1, 0)
    s.next_requests(0)
    assert s.next_requests(1.9 * PATIENCE) == []
    assert by_peer(s.next_requests(2 * PATIENCE)) == {"other": WINDOW_FIRST}


def test_a_request_is_cancelled_once_its_chunk_came_from_elsewhere_and_may_still_be_answered():
    s = planned()
    s.next_requests(0)
    s.on_have("other", (1 << 20) - 1, 0)
    asks = s.next_requests(PATIENCE)
    assert by_peer(asks) == {"other": WINDOW_FIRST}
    index = asks[0].index
    parent = PLAN[index % 2]
    s.on_chunk("other", index, PATIENCE + 1)
    assert s.take_cancellations() == [PeerRequest(parent, index)]
    assert s.take_cancellations() == []
    assert s.is_requested(parent, index)
    assert not s.is_requested("other", index)


def test_a_stripe_that_lags_is_shared_with_others_and_its_parent_keeps_a_part():
    s = planned(100)
    s.on_have("other", (1 << 100) - 1, 0)
    now = 0.0
    for step in range(40):
        now += 0.1
        asks = s.next_requests(now)
        assert step > 32 or all(ask.peer != "other" for ask in asks)
        s.on_chunk("q", next(index for index in range(1, 101, 2) if s.missing >> index & 1), now)
    assert {index % 2 for index in range(100) if s.is_requested("other", index)} == {0}
    assert {ask.peer for ask in s.take_cancellations()} == {"p"}
    assert any(s.is_requested("p", index) for index in range(0, 100, 2))


def test_no_more_chunks_are_accepted_than_were_requested():
    s = planned()
    index = s.next_requests(0)[0].index
    s.on_have("other", (1 << 20) - 1, 0)
    s.next_requests(PATIENCE)
    s.on_chunk("other", index, PATIENCE + 1)
    assert s.is_requested("p", index)
    s.on_chunk("p", index, PATIENCE + 2)
    assert not s.is_requested("p", index)


def test_a_slow_peer_that_keeps_its_own_pace_is_never_stalled():
    s = planned(40)
    now = 0.0
    for _ in range(15):
        asked = [index for index in range(0, 40, 2) if s.is_requested("p", index)] or [
            a.index for a in s.next_requests(now)
        ]
        now += 20.0
        s.on_chunk("p", min(i for i in asked if i % 2 == 0), now)
        s.next_requests(now)
        assert s.deadline() is None or s.deadline() > now + 100 or s.is_requested("q", 1)


def test_a_fast_peer_that_stops_is_noticed_soon():
    s = planned(100)
    now = 0.0
    for _ in range(10):
        for parent, first in (("p", 0), ("q", 1)):
            s.next_requests(now)
            s.on_chunk(parent, next(i for i in range(first, 100, 2) if s.missing >> i & 1), now)
        now += 0.01
    assert s.deadline() < now + STALL_MIN
    s.on_have("other", ALL, now)
    s.next_requests(now)
    assert by_peer(s.next_requests(now + STALL_MIN)) == {"other": WINDOW_FIRST}


def test_the_last_chunks_are_requested_elsewhere_soon_also_from_a_peer_that_never_sent_one():
    s = swarm(1)
    s.on_have("frozen", 1, 0)
    assert by_peer(s.next_requests(0)) == {"frozen": 1}
    s.on_have("other", 1, 0)
    assert s.next_requests(0) == []
    assert s.deadline() == PATIENCE_END
    assert by_peer(s.next_requests(PATIENCE_END)) == {"other": 1}


def test_the_endgame_goes_on_while_no_other_peer_has_the_last_chunks():
    s = swarm(2)
    s.on_have("frozen", 1, 0)
    s.on_have("slow", 2, 0)
    assert by_peer(s.next_requests(0)) == {"frozen": 1, "slow": 1}
    s.on_have("slow", 1, 0)
    assert s.next_requests(PATIENCE_END) == []  # both are stalled, and what they owe counts as asked for
    s.on_have("other", 3, PATIENCE_END)
    assert by_peer(s.next_requests(PATIENCE_END + 0.01)) == {"other": 2}


def test_a_parent_that_waits_itself_is_not_waited_for_when_others_have_the_last_chunks():
    s = planned(2)
    s.next_requests(0)
    s.on_have("other", 3, 0)
    assert by_peer(s.next_requests(PATIENCE_END)) == {"other": 2}


def test_before_the_endgame_a_first_chunk_is_awaited_in_full():
    s = swarm(100)
    s.on_have("frozen", ALL, 0)
    s.next_requests(0)
    s.on_have("other", ALL, 0)
    s.next_requests(0)
    assert s.deadline() > CHUNK_STALL_SECONDS


def test_the_coordinator_as_a_parent_is_treated_as_any_parent():
    s = swarm(20, fallback="coordinator")
    s.follow(("coordinator",), 0)
    s.on_have("coordinator", (1 << 20) - 1, 0)
    s.on_have("other", (1 << 20) - 1, 0)
    assert by_peer(s.next_requests(0)) == {"coordinator": 8}


def test_a_new_plan_leaves_earlier_requests_open():
    s = planned(100)
    s.next_requests(0)
    s.follow(("r",), 1)
    s.on_have("r", ALL, 1)
    asks = s.next_requests(1)
    assert by_peer(asks) == {"r": 8}
    assert min(indices(asks)) == 16


def test_chunks_that_a_former_parent_lacks_are_requested_from_the_new_one():
    s = swarm(20)
    s.follow(PLAN, 0)
    s.on_have("p", 0b101, 0)
    s.on_have("q", 0, 0)
    s.next_requests(0)
    s.follow(("q", "p"), 1)
    asks = s.next_requests(1)
    assert [ask.index for ask in asks if ask.peer == "q"] == [4, 6, 8, 10, 12, 14, 16, 18]
    assert [ask.index for ask in asks if ask.peer == "p"] == [1, 3, 5, 7, 9, 11, 13, 15]
    taken = s.take_cancellations()
    assert sorted(ask.index for ask in taken if ask.peer == "p") == [4, 6, 8, 10, 12, 14]
    assert sorted(ask.index for ask in taken if ask.peer == "q") == [1, 3, 5, 7, 9, 11, 13, 15]


def orphaned() -> ChunkPicker:
    """Return a picker with the first five even chunks stored, after their parent left. Another peer has two more, the
    coordinator all of them."""
    s = swarm(40, fallback="coordinator")
    s.follow(PLAN, 0)
    for peer, chunks in (("p", 0x155), ("q", 0), ("other", 0x5555), ("coordinator", (1 << 40) - 1)):
        s.on_have(peer, chunks, 0)
    s.next_requests(0)
    for index in range(0, 10, 2):
        s.on_chunk("p", index, 0)
    s.on_leave("p")
    return s


def test_the_coordinator_is_not_asked_for_a_stripe_that_still_spreads():
    s, now = orphaned(), 0.0
    for index in range(16, 28, 2):
        asks = s.next_requests(now)
        assert "coordinator" not in by_peer(asks)
        for ask in asks:
            if ask.peer == "other":
                s.on_chunk("other", ask.index, now)
        now += 0.9 * FALLBACK_GRACE_SECONDS
        s.on_have("other", 1 << index, now)
    s.next_requests(now)
    assert by_peer(s.next_requests(now + FALLBACK_GRACE_SECONDS))["coordinator"] == FALLBACK_WINDOW_MIN


def test_progress_of_another_stripe_or_of_a_stored_chunk_delays_no_request_to_the_coordinator():
    s = orphaned()
    s.next_requests(0)
    s.on_have("another", 0b11, FALLBACK_GRACE_SECONDS / 2)
    assert by_peer(s.next_requests(FALLBACK_GRACE_SECONDS))["coordinator"] == FALLBACK_WINDOW_MIN


def once(s: ChunkPicker, now: float, open_: set[PeerRequest]) -> list[PeerRequest]:
    """Return the requests made now. `open_`: those without an answer, none of which may be repeated."""
    asks = s.next_requests(now)
    open_.difference_update(s.take_cancellations())
    assert not open_.intersection(asks)
    assert len(set(asks)) == len(asks)
    open_.update(asks)
    return asks


def test_a_chunk_cancelled_at_a_lagging_parent_is_not_requested_again_from_another_peer_that_was_asked_too():
    s, open_ = planned(100), set[PeerRequest]()

    def comes(peer: str, now: float) -> None:
        ask = min((ask for ask in open_ if ask.peer == peer), key=lambda ask: ask.index)
        open_.remove(ask)
        s.on_chunk(peer, ask.index, now)
        once(s, now, open_)

    once(s, 0, open_)
    s.on_have("other", sum(1 << index for index in (6, 8, 10, 12, 14)), 0)
    comes("p", 0.1)
    for step in range(1, 35):
        comes("q", step / 10)
        if step == 22:  # p has sent nothing for so long that others were asked too; now it sends again, and lags
            comes("other", 2.21)
            comes("other", 2.22)
            assert sum(ask.peer == "other" for ask in open_) == 3
            comes("p", 2.23)
    for step in range(35, 42):
        comes("q", step / 10)
    assert sum(ask.peer == "p" for ask in open_) == 2
    assert sum(ask.peer == "other" for ask in open_) == 3


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**9))
def test_no_open_request_is_repeated_at_the_same_peer(seed):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("LAG_MIN", "LAG_SHARE", "LAG_SECONDS"):
            patch.setattr(f"echo2.p2p.swarm.picker.{name}", 0.1)
        live(Random(seed), 60)


def live(random: Random, chunks: int) -> None:
    """Let random events happen to a swarm; afterwards every missing chunk must arrive."""
    s, open_, now = ChunkPicker(chunks, CHUNK, seed=1, fallback="x"), set[PeerRequest](), 0.0
    everything, lazy = (1 << chunks) - 1, random.choice("abcd")
    for _ in range(200):
        now += random.choice((0, 0.01, 0.1, 0.5, 3.0))
        peer = random.choice("abcdx")
        match random.random():
            case chance if chance < 0.03:
                s.on_leave(peer)
                open_ = {ask for ask in open_ if ask.peer != peer}
            case chance if chance < 0.06:
                s.follow(random.choices("abcdx", k=random.randrange(4)), now)
            case chance if chance < 0.3:
                s.on_have(peer, random.getrandbits(chunks) & random.getrandbits(chunks), now)
        for ask in random.sample(sorted(open_, key=lambda ask: (ask.peer, ask.index)), len(open_) // 2):
            if ask.peer != lazy or random.random() < 0.1:
                assert s.is_requested(ask.peer, ask.index)
                open_.discard(ask)
                s.on_chunk(ask.peer, ask.index, now)
        once(s, now, open_)
        assert all(s.is_requested(ask.peer, ask.index) for ask in open_)
    for peer in "abcdx":
        s.on_have(peer, everything, now)
    for _ in range(1000):
        now += 1
        for ask in once(s, now, open_):
            open_.discard(ask)
            s.on_chunk(ask.peer, ask.index, now)
    assert s.complete


def test_no_more_requests_are_made_than_the_caller_wants():
    assert len(planned().next_requests(0, 3)) == 3
    assert len(planned().next_requests(0, 0)) == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 10**6), st.lists(st.sampled_from("abcdex"), max_size=40))
def test_every_chunk_arrives_with_any_plan_and_any_departures(chunks, stripes, seed, moves):
    everything = (1 << chunks) - 1
    s = ChunkPicker(chunks, CHUNK, seed=seed, fallback="x")
    s.follow("abcde"[:stripes], 0)
    for peer in "abcdex":
        s.on_have(peer, everything, 0)
    now, open_ = 0.0, list[PeerRequest]()
    while not s.complete:
        now += 0.5
        open_ += s.next_requests(now)
        if moves:
            s.on_leave(moves.pop())
        answered, open_ = open_[: 1 + len(open_) // 2], open_[1 + len(open_) // 2 :]
        for ask in answered:
            if s.is_requested(ask.peer, ask.index):
                s.on_chunk(ask.peer, ask.index, now)
        s.on_have("x", everything, now)
        assert now < 1000
