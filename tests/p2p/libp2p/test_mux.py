"""The muxer without I/O: flow control, scheduling, resets, and frames that violate the protocol."""

import json
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.p2p.errors import LocalNetworkFault, Malformed
from echo2.p2p.libp2p import mux
from echo2.p2p.libp2p.mux import CREDIT, DATA, FIN, GOAWAY, HEADER, OPEN, PING, PONG, RESET, Mux, StreamState
from tests.support.mux_frames import FAULTS, check_invariants, frame
from tests.support.paths import VECTORS

VECTOR = VECTORS / "mux.json"
ALL = 1 << 30


def sent(one: Mux) -> bytes:
    return b"".join(one.data_to_send(ALL))


def cuts(*sizes: int) -> Callable[[], int]:
    random = Random(0)
    return lambda: random.choice(sizes)


def fed(receive: Callable[[bytes], object], data: bytes, step: int) -> None:
    for at in range(0, len(data), step):
        receive(data[at : at + step])


class Pair:
    """Two connected muxers; `move` passes bytes in both directions until none are left, split as `cut` says."""

    def __init__(self, cut: Callable[[], int] = lambda: ALL) -> None:
        self.a, self.b = Mux(True), Mux(False)
        self._cut = cut

    def step(self, one: Mux, other: Mux, limit: int = ALL) -> int:
        data = b"".join(one.data_to_send(limit))
        at = 0
        while at < len(data):
            size = self._cut()
            other.receive(data[at : at + size])
            at += size
        return len(data)

    def move(self) -> None:
        while self.step(self.a, self.b) + self.step(self.b, self.a):
            pass

    def stream(self) -> tuple[StreamState, StreamState]:
        near = self.a.open()
        self.move()
        return near, self.b.opened.popleft()

    def idle(self) -> bool:
        return not any((m.streams or m.resetting or m.window_bytes or any(m.counts)) for m in (self.a, self.b))


def test_bytes_arrive_in_order_and_both_sides_forget_a_finished_stream():
    pair = Pair(cuts(1, 2, 5, 9, 10, 700, 70_000))
    near, far = pair.stream()
    data = Random(0).randbytes(3_000_000)
    pair.a.write(near, data)
    pair.a.finish(near)
    got = b""
    while not (far.ended and not far.unread):
        pair.move()
        got += b"".join(pair.b.read(far, 50_000))
    pair.b.write(far, b"answer")
    pair.b.finish(far)
    pair.move()
    assert got == data
    assert b"".join(pair.a.read(near, ALL)) == b"answer"
    assert near.ended
    assert pair.idle()


def test_a_side_sends_no_more_than_its_credit_until_the_other_reads():
    pair = Pair()
    near, far = pair.stream()
    pair.a.write(near, bytes(1_000_000))
    pair.move()
    assert far.unread == mux.WINDOW_MIN
    assert near.unsent == 1_000_000 - mux.WINDOW_MIN
    pair.b.read(far, mux.WINDOW_MIN)
    pair.move()
    assert far.unread > mux.WINDOW_MIN, "the window has doubled"


def test_a_window_grows_while_it_is_used_up_to_its_bound():
    pair = Pair()
    near, far = pair.stream()
    for _ in range(40):
        pair.a.write(near, bytes(mux.WINDOW_MAX))
        pair.move()
        while pair.b.read(far, ALL):
            pair.move()
    assert far.window == mux.WINDOW_MAX


def test_all_windows_of_a_connection_stay_within_one_bound():
    pair = Pair()
    streams = [pair.stream() for _ in range(30)]
    for _ in range(12):
        for near, far in streams:
            pair.a.write(near, bytes(1 << 20))
            pair.move()
            while pair.b.read(far, ALL):
                pair.move()
    assert sum(far.window for _, far in streams) == pair.b.window_bytes <= mux.WINDOWS


def test_a_small_answer_waits_for_one_round_and_not_for_the_megabytes_before_it():
    pair = Pair()
    streams = [pair.stream()[0] for _ in range(3)]
    for flow in streams:
        flow.credit = 1 << 24
        pair.a.write(flow, bytes(8 << 20))
    pair.a.data_to_send(10 * mux.QUANTUM)
    small = pair.stream_of_a = pair.a.open()
    pair.a.write(small, b"small")
    ahead = 0
    while small.unsent:
        ahead += sum(map(len, pair.a.data_to_send(1))) - HEADER.size
    assert ahead <= 4 * mux.QUANTUM


def test_streams_are_served_round_robin_by_bytes():
    pair = Pair()
    flows = [pair.stream()[0] for _ in range(4)]
    for flow in flows:
        flow.credit = 1 << 24
        pair.a.write(flow, bytes(4 << 20))
    pair.a.data_to_send(16 * mux.QUANTUM)
    assert {flow.sent for flow in flows} == {4 * mux.QUANTUM}


def test_one_direction_of_a_stream_may_end_long_before_the_other():
    pair = Pair()
    near, far = pair.stream()
    pair.a.finish(near)
    pair.move()
    assert far.ended
    assert not near.ended
    pair.b.write(far, bytes(10_000))
    pair.move()
    assert near.unread == 10_000
    pair.b.finish(far)
    pair.move()
    assert pair.idle()


def test_a_reset_ends_both_halves_and_what_was_under_way_is_discarded():
    pair = Pair()
    near, far = pair.stream()
    pair.a.write(near, bytes(50_000))
    pair.b.write(far, bytes(50_000))
    pair.a.reset(near)  # the other side's bytes are on their way
    pair.a.receive(sent(pair.b))
    pair.move()
    assert far.aborted
    assert not far.unread
    pair.move()
    assert pair.idle()


def test_both_sides_may_reset_at_once():
    pair = Pair()
    near, far = pair.stream()
    pair.a.reset(near)
    pair.b.reset(far)
    pair.move()
    assert pair.idle()


def test_a_reset_between_the_header_of_a_frame_and_its_bytes_discards_the_rest():
    pair = Pair()
    near, far = pair.stream()
    pair.a.write(near, b"x" * 100)
    data = sent(pair.a)
    pair.b.receive(data[:50])
    pair.b.reset(far)
    pair.b.receive(data[50:])
    pair.move()
    assert pair.idle()


def test_a_reset_of_a_stream_that_has_ended_is_no_fault():
    pair = Pair()
    near, far = pair.stream()
    pair.a.finish(near)
    pair.b.finish(far)
    ends = sent(pair.b)
    far_reset = frame(RESET, near.id)
    pair.move()
    pair.a.receive(ends)
    assert pair.a.streams == {}
    pair.a.receive(far_reset)
    assert sent(pair.a) == frame(RESET, near.id)


def test_a_stream_beyond_the_limit_is_refused_locally_and_never_sent():
    pair = Pair()
    flows = [pair.stream() for _ in range(mux.STREAMS_MAX)]
    with pytest.raises(LocalNetworkFault):
        pair.a.open()
    pair.a.reset(flows[0][0])
    with pytest.raises(LocalNetworkFault):
        pair.a.open()  # not until the reset is answered
    pair.move()
    pair.stream()


@pytest.mark.slow
def test_opening_and_resetting_alternately_stays_within_the_other_sides_count():
    pair = Pair(cuts(1, 9, 30))
    for number in range(3000):
        try:
            flow = pair.a.open()
        except LocalNetworkFault:
            pair.move()
            flow = pair.a.open()
        (pair.a.reset if number % 2 else pair.a.finish)(flow)
        if number % 7 == 0:
            pair.step(pair.a, pair.b)
            while pair.b.opened:
                pair.b.finish(pair.b.opened.popleft())
    pair.move()


def test_a_ping_is_answered():
    pair = Pair()
    pair.a.ping(7)
    pair.move()
    pair.a.ping(8)
    assert sent(pair.a) == frame(PING, 0, 8)


def test_goaway_is_the_last_frame_and_nothing_after_it_is_read():
    pair = Pair()
    near, far = pair.stream()
    pair.a.write(near, b"last words")
    pair.a.go_away(mux.LEAVING)
    pair.move()
    assert b"".join(pair.b.read(far, ALL)) == b"last words"
    assert pair.b.away == mux.LEAVING
    assert pair.a.left
    pair.b.receive(b"\xff" * 100)


def test_small_pieces_do_not_retain_the_received_buffer():
    pair = Pair()
    near, far = pair.stream()
    other, drained = pair.stream()
    for _ in range(500):
        pair.a.write(near, b"x")
        pair.a.write(other, bytes(60_000))
        pair.move()
        while pair.b.read(drained, ALL):
            pair.move()
    assert len(far.arrived) == 1
    assert len(far.arrived[0]) == 500


@pytest.mark.parametrize("frames", FAULTS.values(), ids=FAULTS.keys())
@pytest.mark.parametrize("size", [1, ALL], ids=["byte by byte", "at once"])
@pytest.mark.slow_for("byte by byte-data beyond the window")
def test_a_frame_that_no_honest_peer_sends_is_malformed(frames, size):
    with pytest.raises(Malformed):
        fed(Mux(False).receive, b"".join(frames), size)


def test_data_beyond_the_window_of_a_reset_stream_is_malformed():
    pair = Pair()
    _, far = pair.stream()
    pair.b.reset(far)
    for _ in range(mux.WINDOW_MIN // (1 << 15)):
        pair.b.receive(frame(DATA, far.id, data=bytes(1 << 15)))
    with pytest.raises(Malformed, match="window"):
        pair.b.receive(frame(DATA, far.id, data=b"x"))


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_accepted_or_malformed(data):
    one = Mux(False)
    try:
        one.receive(data)
    except Malformed:
        return
    sent(one)


KINDS = st.tuples(st.integers(0, 8), st.integers(0, 8), st.one_of(st.integers(0, 40), st.integers(0, (1 << 32) - 1)))


@given(st.lists(KINDS, max_size=60), st.integers(1, 50))
@settings(max_examples=300, deadline=None)
@pytest.mark.slow
def test_any_frames_leave_the_state_of_the_muxer_consistent(frames, size):
    one = Mux(False)
    data = b"".join(HEADER.pack(*each) + bytes(each[2] if each[0] == DATA and each[2] <= 40 else 0) for each in frames)
    try:
        for at in range(0, len(data), size):
            one.receive(data[at : at + size])
            while one.opened:
                flow = one.opened.popleft()
                if not flow.aborted and flow.id % 3:
                    one.write(flow, b"hello")
                    one.finish(flow)
    except Malformed:
        return
    check_invariants(one)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_two_correct_sides_never_violate_the_protocol(data):
    random = Random(data.draw(st.integers(0, 1 << 32)))
    pair = Pair(lambda: random.choice([1, 3, 9, 100, 70_000]))
    flows: dict[Mux, list[StreamState]] = {pair.a: [], pair.b: []}
    for _ in range(data.draw(st.integers(1, 200))):
        one, other = random.sample([pair.a, pair.b], 2)
        flows[one] += one.opened
        one.opened.clear()
        action = random.randrange(7)
        if action == 0 and len(flows[one]) < 20:
            flows[one].append(one.open())
        elif action == 1:
            pair.step(one, other, random.choice([1, 100_000]))
        elif action == 2:
            one.ping(random.randrange(1 << 32))
        elif flows[one]:
            flow = random.choice(flows[one])
            if action == 3 and not flow.finishing and not flow.aborted:
                one.write(flow, bytes(random.randrange(200_000)))
            elif action == 4:
                one.read(flow, random.choice([1, 10_000, ALL]))
            elif action == 5:
                one.finish(flow)
            else:
                one.reset(flow)
        check_invariants(one)
    pair.move()


def vector() -> dict[str, str]:
    """Return one frame of each kind, and the frames of a short request and answer."""
    pair = Pair()
    flow = pair.a.open()
    pair.a.write(flow, b"question")
    pair.a.finish(flow)
    asked = sent(pair.a)
    pair.b.receive(asked)
    far = pair.b.opened.popleft()
    pair.b.read(far, ALL)
    pair.b.write(far, b"answer")
    pair.b.finish(far)
    pair.b.go_away(mux.LEAVING)
    kinds = {"open": OPEN, "credit": CREDIT, "fin": FIN, "reset": RESET, "ping": PING, "pong": PONG, "away": GOAWAY}
    values = {"credit": 65536, "ping": 7, "pong": 7, "away": 1}
    frames = {name: frame(kind, 0 if kind >= PING else 1, values.get(name, 0)).hex() for name, kind in kinds.items()}
    return frames | {"data": frame(DATA, 1, data=b"abc").hex(), "asked": asked.hex(), "answered": sent(pair.b).hex()}


def test_the_frames_are_those_of_the_golden_vector():
    assert vector() == json.loads(VECTOR.read_text())
