"""Frames of the muxer, those that violate its protocol, and the invariants of its state, for tests and the fuzzer."""

from echo2.p2p.libp2p import mux
from echo2.p2p.libp2p.mux import CREDIT, DATA, FIN, GOAWAY, HEADER, OPEN, PING, PONG, RESET, Mux


def frame(kind: int, stream: int = 0, value: int = 0, data: bytes = b"") -> bytes:
    """Return one frame; `value` 0 stands for the length of `data`."""
    return HEADER.pack(kind, stream, value or len(data)) + data


FAULTS = {
    "a type that is not known": [frame(8)],
    "a stream of the wrong parity": [frame(OPEN, 2)],
    "stream 0": [frame(OPEN, 0)],
    "a stream opened twice": [frame(OPEN, 1), frame(OPEN, 1)],
    "a stream opened out of order": [frame(OPEN, 3), frame(OPEN, 1)],
    "an open with a value": [frame(OPEN, 1, 5)],
    "data on a stream that was never opened": [frame(DATA, 1, data=b"x")],
    "data on a stream of this side that was never opened": [frame(DATA, 2, data=b"x")],
    "no data": [frame(OPEN, 1), frame(DATA, 1)],
    "a frame too long": [frame(OPEN, 1), HEADER.pack(DATA, 1, mux.FRAME_MAX + 1)],
    "a frame of 4 GiB": [frame(OPEN, 1), HEADER.pack(DATA, 1, (1 << 32) - 1)],
    "data beyond the window": [frame(OPEN, 1), frame(DATA, 1, data=bytes(mux.WINDOW_MIN)), frame(DATA, 1, data=b"x")],
    "data after its end": [frame(OPEN, 1), frame(FIN, 1), frame(DATA, 1, data=b"x")],
    "two ends": [frame(OPEN, 1), frame(FIN, 1), frame(FIN, 1)],
    "an end with a value": [frame(OPEN, 1), frame(FIN, 1, 1)],
    "an end of what was never opened": [frame(FIN, 7)],
    "data after a reset": [frame(OPEN, 1), frame(RESET, 1), frame(DATA, 1, data=b"x")],
    "a reset of what was never opened": [frame(RESET, 9)],
    "a reset of what this side never opened": [frame(RESET, 2)],
    "a reset with a value": [frame(OPEN, 1), frame(RESET, 1, 1)],
    "no credit": [frame(OPEN, 1), frame(CREDIT, 1)],
    "credit beyond 32 bits": [frame(OPEN, 1), frame(CREDIT, 1, (1 << 32) - 1)],
    "credit for what was never opened": [frame(CREDIT, 1, 1)],
    "credit for stream 0": [frame(CREDIT, 0, 1)],
    "a ping on a stream": [frame(PING, 1, 1)],
    "a pong without a ping": [frame(PONG, 0, 1)],
    "an away on a stream": [frame(GOAWAY, 1, 0)],
    "streams without end": [frame(OPEN, 2 * number + 1) for number in range(mux.STREAMS_MAX + 1)],
    "pings whose answers are not read": [frame(PING, 0, 1)] * (mux.ANSWERS_MAX + 1),
    "resets whose answers are not read": [
        frame(OPEN, 2 * number + 1) + frame(RESET, 2 * number + 1) for number in range(mux.ANSWERS_MAX + 1)
    ],
}
"""Name of a violation -> its frames, as received by the side that was dialled."""


def check_invariants(one: Mux) -> None:
    """Assert the invariants of a muxer, which hold after any received bytes."""
    for stream in one.streams.values():
        buffered = sum(map(len, stream.arrived))
        assert buffered == stream.unread
        assert buffered + stream.uncredited + stream.allowed <= stream.window
    of_peer = [stream for id, stream in one.streams.items() if id & 1 != one._parity]
    assert one.peer_streams == len(of_peer)
    assert one.peer_bytes == sum(stream.unread + stream.kept for stream in of_peer)
    assert one.window_bytes == sum(stream.window for stream in one.streams.values())
    ids = [*one.streams, *one.resetting]
    assert one.counts == [sum(1 for id in ids if id & 1 == parity) for parity in (0, 1)]
    assert all(count <= mux.STREAMS_MAX for count in one.counts)
