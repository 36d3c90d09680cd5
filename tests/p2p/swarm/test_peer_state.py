"""Counts and timers behind the picker."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.p2p.swarm.peer_state import (
    CHUNK_STALL_SECONDS,
    ENDGAME_FACTOR,
    ENDGAME_MIN,
    ENDGAME_SLOW,
    ENDGAME_STALL,
    SLOWEST_LINK_RATE,
    STALL_FACTOR,
    STALL_MIN,
    Availability,
    PeerState,
    bits,
    stall_seconds,
)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 255))), st.integers(1, 255))
def test_the_rarest_chunks_are_those_that_the_fewest_peers_have(steps, candidates):
    counted, holders = Counter[int](), Availability()
    for comes, chunks in steps:
        counts = [index for index in range(8) if chunks >> index & 1 and (comes or counted[index])]
        for index in counts:
            counted[index] += 1 if comes else -1
        (holders.add if comes else holders.remove)(sum(1 << index for index in counts))
    of = [index for index in range(8) if candidates >> index & 1]
    fewest = min(counted[index] for index in of)
    assert holders.rarest(candidates) == sum(1 << index for index in of if counted[index] == fewest)


CHUNK = 1 << 20
FIRST = CHUNK_STALL_SECONDS + CHUNK / SLOWEST_LINK_RATE
LAST = ENDGAME_STALL + CHUNK / ENDGAME_SLOW


@pytest.mark.parametrize(
    ("has", "interval", "ending", "seconds"),
    {
        "before its first chunk": (1, None, False, FIRST),
        "a parent that lacks the chunk itself": (0, None, False, 2 * FIRST),
        "a fast peer": (1, 0.01, False, STALL_MIN),
        "a slow peer": (1, 3.0, False, STALL_FACTOR * 3.0),
        "a slow parent that lacks the chunk itself": (0, 3.0, False, 2 * STALL_FACTOR * 3.0),
        "a fast peer in the endgame": (1, 0.01, True, ENDGAME_MIN),
        "a middling peer in the endgame": (1, 0.4, True, ENDGAME_FACTOR * 0.4),
        "a slow peer in the endgame": (1, 60.0, True, LAST),
        "a peer without a chunk in the endgame": (1, None, True, LAST),
    }.values(),
)
def test_the_time_without_a_chunk_after_which_a_peer_is_stalled(has, interval, ending, seconds):
    peer_state = PeerState(progress=0.0, has=has, requested=1, interval=interval)
    assert stall_seconds(peer_state, CHUNK, ending=ending) == pytest.approx(seconds)


def test_the_members_of_a_set_of_chunks_come_one_by_one():
    assert list(bits(0b10110)) == [0b10, 0b100, 0b10000]
    assert list(bits(0)) == []
