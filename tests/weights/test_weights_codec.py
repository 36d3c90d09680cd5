"""The codec of a frame: every bit pattern comes back, every lie is refused."""

import struct
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from weights import codec
from weights.codec import Bits
from weights.errors import BadPayload

WIDTHS = (1, 2, 4, 8)


@st.composite
def frames(draw: st.DrawFn) -> tuple[Bits, Bits]:
    """Old and new frame of one width: from nearly equal to wholly different."""
    dtype = np.dtype(f"<u{draw(st.sampled_from(WIDTHS))}")
    count = draw(st.integers(1, 700))
    old = draw(hnp.arrays(dtype, count))
    new = old.copy()
    positions = draw(st.lists(st.integers(0, count - 1), max_size=count // draw(st.sampled_from([1, 10, 50]))))
    new[positions] = draw(hnp.arrays(dtype, len(positions)))
    return old, new


def round_trip(old: Bits | None, new: Bits) -> Bits:
    kind, body = codec.encode(old, new)
    patch = codec.decode(kind, memoryview(body), old, len(new), new.itemsize)
    return patch.bits if old is None else patch.onto(old)


@given(frames())
def test_any_bits_to_any_bits_come_back_exactly(pair: tuple[Bits, Bits]) -> None:
    old, new = pair
    before = old.tobytes()
    assert round_trip(old, new).tobytes() == new.tobytes()
    assert round_trip(None, new).tobytes() == new.tobytes()
    assert old.tobytes() == before


@given(frames())
def test_the_changes_are_exactly_the_elements_whose_bits_differ(pair: tuple[Bits, Bits]) -> None:
    old, new = pair
    kind, body = codec.encode(old, new)
    index, bits = codec.decode(kind, memoryview(body), old, len(new), new.itemsize).changes(old)
    assert index.tolist() == np.flatnonzero(old != new).tolist()
    assert bits.tolist() == new[index].tolist()


@pytest.mark.parametrize("shift", [1, 2, 255, 32767, 32768, 65535])
def test_every_bf16_pattern_steps_to_every_distance(shift: int) -> None:
    """All 65,536 patterns: NaN payloads, infinities, both zeros, denormals; sparse, with 16 elements between."""
    old = np.zeros(1 << 20, np.uint16)
    old[::16] = np.arange(1 << 16, dtype=np.uint16)
    new = old.copy()
    new[::16] += np.uint16(shift)
    assert codec.encode(old, new)[0] == codec.SPARSE
    assert (round_trip(old, new) == new).all()


@pytest.mark.parametrize("position", [0, 254, 255, 256, 509, 510, 511, 999])
def test_gaps_around_the_escape_byte_come_back(position: int) -> None:
    old = np.zeros(1000, np.uint16)
    new = old.copy()
    new[position] = 1
    assert (round_trip(old, new) == new).all()


def test_a_whole_frame_with_one_change_at_its_end_comes_back() -> None:
    old = np.zeros(codec.FRAME, np.uint16)
    new = old.copy()
    new[-1] = 0x8000  # +0 to -0
    assert (round_trip(old, new) == new).all()


def test_equal_frames_give_an_empty_body() -> None:
    old = np.arange(10, dtype=np.uint16)
    assert codec.encode(old, old.copy()) == (codec.SAME, b"")


def test_the_same_frames_give_the_same_bytes() -> None:
    rng = np.random.default_rng(1)
    old = rng.integers(0, 1 << 16, 10_000, dtype=np.uint16)
    new = old + (rng.random(10_000) < 0.01).astype(np.uint16)
    assert codec.encode(old, new) == codec.encode(old.copy(), new.copy())


def pack(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def sparse(changes: int, gaps: bytes, steps: bytes, *, gap_bytes: int | None = None) -> bytes:
    packed = pack(gaps)
    claimed = len(gaps) if gap_bytes is None else gap_bytes
    return struct.pack("<III", changes, claimed, len(packed)) + packed + pack(steps)


def undeclared(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


COUNT = 100
GOOD = sparse(2, b"\x00\x05", b"\x02\x02\x00\x00")
LIES: dict[str, tuple[int, bytes]] = {
    "an unknown kind": (9, b""),
    "a full frame where there is a base": (codec.FULL, pack(bytes(200))),
    "no change, with a body": (codec.SAME, b"x"),
    "an empty sparse frame": (codec.SPARSE, b""),
    "a sparse frame of no change": (codec.SPARSE, sparse(0, b"", b"")),
    "more changes than elements": (codec.SPARSE, sparse(101, bytes(101), b"\x02" * 202)),
    "more changes than 32 bits of memory": (codec.SPARSE, sparse(0xFFFFFFFF, b"\x00", b"\x02\x00")),
    "more gap bytes than fit the frame": (codec.SPARSE, sparse(1, b"\xff" * 9 + b"\x00", b"\x02\x00")),
    "gap bytes that are a bomb": (codec.SPARSE, sparse(1, bytes(1 << 24), b"\x02\x00", gap_bytes=1)),
    "steps that are a bomb": (codec.SPARSE, sparse(1, b"\x00", bytes(1 << 24))),
    "fewer positions than changes": (codec.SPARSE, sparse(2, b"\x00", b"\x02\x02\x00\x00")),
    "more positions than changes": (codec.SPARSE, sparse(1, b"\x00\x00", b"\x02\x00", gap_bytes=2)),
    "an escape with no gap after it": (codec.SPARSE, sparse(2, b"\x00\xff", b"\x02\x02\x00\x00")),
    "a position after the end": (codec.SPARSE, sparse(1, b"\x64", b"\x02\x00")),
    "a sum of gaps after the end": (codec.SPARSE, sparse(2, b"\x32\x32", b"\x02\x02\x00\x00")),
    "a step of zero": (codec.SPARSE, sparse(1, b"\x00", b"\x00\x00")),
    "fewer steps than changes": (codec.SPARSE, sparse(2, b"\x00\x05", b"\x02\x00")),
    "bytes after the steps": (codec.SPARSE, GOOD + b"x"),
    "a second zstd frame after the steps": (codec.SPARSE, GOOD + pack(b"x")),
    "a gap length that reaches past the end": (codec.SPARSE, GOOD[:8] + b"\xff\xff\xff\xff" + GOOD[12:]),
    "planes of another size": (codec.XOR, pack(bytes(199))),
    "planes that are a bomb": (codec.XOR, pack(bytes(1 << 26))),
    "planes that do not say their size": (codec.XOR, undeclared(bytes(200))),
    "planes that are not zstd": (codec.XOR, b"not zstd at all"),
    "planes of nothing": (codec.XOR, b""),
}


def test_the_honest_frame_of_the_table_is_taken() -> None:
    patch = codec.decode(codec.SPARSE, memoryview(GOOD), np.zeros(COUNT, np.uint16), COUNT, 2)
    assert patch.changes(np.zeros(COUNT, np.uint16))[0].tolist() == [0, 6]


@pytest.mark.parametrize("lie", LIES)
def test_a_frame_that_lies_is_refused(lie: str) -> None:
    kind, body = LIES[lie]
    with pytest.raises(BadPayload):
        codec.decode(kind, memoryview(body), np.zeros(COUNT, np.uint16), COUNT, 2)


@pytest.mark.parametrize("kind", [codec.SAME, codec.SPARSE, codec.XOR])
def test_a_difference_from_nothing_is_refused(kind: int) -> None:
    with pytest.raises(BadPayload):
        codec.decode(kind, memoryview(GOOD), None, COUNT, 2)


@given(frames(), st.data())
def test_a_damaged_body_is_refused_or_decodes_within_the_frame(pair: tuple[Bits, Bits], data: st.DataObject) -> None:
    old, new = pair
    kind, body = codec.encode(old, new)
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        patch: Any = codec.decode(kind, memoryview(bytes(damaged)), old, len(new), new.itemsize)
    except BadPayload:
        return
    assert patch.onto(old).shape == old.shape
