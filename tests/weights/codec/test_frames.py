"""The codec of a frame: every bit pattern comes back, false frames are refused, and all builds agree on every byte."""

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from echo2.weights.codec import exponent_classes, native, rank_select
from echo2.weights.codec import frames as codec
from echo2.weights.codec.exponent_classes import LAYOUTS, REFERENCE
from echo2.weights.codec.frames import Bits
from echo2.weights.errors import BadPayload
from tests.support import paths

DTYPES = {"U8": 1, "BF16": 2, "F16": 2, "I16": 2, "F32": 4, "I64": 8}
NATIVE = native.builds()
BUILDS = [REFERENCE, *NATIVE]
VECTORS = paths.VECTORS / "weights_frames.json"


@pytest.fixture(params=BUILDS, ids=["numpy", *(f"native{number}" for number in range(len(NATIVE)))])
def build(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Run the test with each build: numpy, and the native ones that this processor can run."""
    with codec.using(request.param):
        yield request.param


each_build = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def frames(draw: st.DrawFn, dtypes: tuple[str, ...] = tuple(DTYPES)) -> tuple[str, Bits, Bits]:
    """Draw old and new frame of one dtype: from nearly equal to wholly different, exponents from many to one."""
    dtype = draw(st.sampled_from(dtypes))
    width = np.dtype(f"<u{DTYPES[dtype]}")
    count = draw(st.integers(1, 700))
    old = draw(hnp.arrays(width, count))
    old &= width.type(draw(st.sampled_from([-1, 0x3FF, 0x80FF, 0])) & ((1 << 8 * width.itemsize) - 1))
    new = old.copy()
    positions = draw(st.lists(st.integers(0, count - 1), max_size=count // draw(st.sampled_from([1, 10, 50]))))
    if draw(st.booleans()):
        new[positions] += width.type(1)
    else:
        new[positions] = draw(hnp.arrays(width, len(positions)))
    return dtype, old, new


def learned(count: int, rho: float, seed: int = 1) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Return bf16 weights before and after a step of one size for all, as a learner makes it."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(0, 0.02, count).astype(np.float32)
    step = (rng.normal(0, 1, count) * rho * 2e-4).astype(np.float32)
    old, new = weights.view(np.uint32), (weights + step).view(np.uint32)
    return (old >> 16).astype(np.uint16), (new >> 16).astype(np.uint16)


def round_trip(dtype: str, old: Bits | None, new: Bits) -> Bits:
    kind, body = codec.encode(dtype, old, new)
    patch = codec.decode(dtype, kind, memoryview(body), old, len(new))
    return patch.bits if old is None else patch.apply_to_copy(old)


@each_build
@given(frame=frames())
def test_any_bits_to_any_bits_come_back_exactly(build: Any, frame: tuple[str, Bits, Bits]) -> None:
    dtype, old, new = frame
    before = old.tobytes()
    assert round_trip(dtype, old, new).tobytes() == new.tobytes()
    assert round_trip(dtype, None, new).tobytes() == new.tobytes()
    assert old.tobytes() == before


@each_build
@given(frame=frames())
def test_the_changes_are_exactly_the_elements_whose_bits_differ(build: Any, frame: tuple[str, Bits, Bits]) -> None:
    dtype, old, new = frame
    kind, body = codec.encode(dtype, old, new)
    index, bits = codec.decode(dtype, kind, memoryview(body), old, len(new)).changes(old)
    assert index.tolist() == np.flatnonzero(old != new).tolist()
    assert bits.tolist() == new[index].tolist()
    assert codec.changes(dtype, kind, memoryview(body), len(new)) in (None, len(index))


@given(frame=frames(("BF16", "F16")))
def test_all_builds_write_the_same_bytes(frame: tuple[str, Bits, Bits]) -> None:
    dtype, old, new = frame
    written = []
    for build in BUILDS:
        with codec.using(build):
            written.append(codec.encode(dtype, old, new))
    assert written == [written[0]] * len(BUILDS)


@pytest.mark.parametrize("rho", [0.001, 0.02, 0.5, 3.0])
@pytest.mark.parametrize("count", [63, 64, 16_384, 16_385, 300_001])
def test_all_builds_agree_on_a_step_of_a_learner(count: int, rho: float) -> None:
    old, new = learned(count, rho)
    written = set()
    for build in BUILDS:
        with codec.using(build):
            written.add(codec.encode("BF16", old, new))
            assert (round_trip("BF16", old, new) == new).all()
    assert len(written) == 1


@pytest.mark.parametrize("rho", [0.02, 3.0])
@pytest.mark.slow_but("0.02")
def test_all_builds_agree_on_a_frame_of_several_pieces(rho: float) -> None:
    """The last piece is short, and not even whole words."""
    old, new = learned(2 * (1 << 20) + 70_001, rho)
    bodies = set()
    for build in BUILDS:
        with codec.using(build):
            bodies.add(codec.encode("BF16", old, new))
            assert (round_trip("BF16", old, new) == new).all()
    assert len(bodies) == 1


@pytest.mark.parametrize("dtype", LAYOUTS)
@pytest.mark.parametrize("shift", [1, 2, 255, 32767, 32768, 65535])
def test_every_pattern_steps_to_every_distance(build: Any, dtype: str, shift: int) -> None:
    """All 65,536 patterns: NaN payloads, infinities, both zeros, denormals; sparse, with 16 elements between."""
    old = np.zeros(1 << 20, np.uint16)
    old[::16] = np.arange(1 << 16, dtype=np.uint16)
    new = old.copy()
    new[::16] += np.uint16(shift)
    assert codec.encode(dtype, old, new)[0] == codec.CLASSES
    assert (round_trip(dtype, old, new) == new).all()


def test_a_step_costs_what_its_entropy_given_the_exponent_says(build: Any) -> None:
    old, new = learned(1 << 20, 0.05)
    body = codec.encode("BF16", old, new)[1]
    exponents, steps = old >> 7 & 0xFF, rank_select._place(new).astype(np.int32) - rank_select._place(old)
    bound = 0.0
    for exponent in np.unique(exponents):
        counts = np.unique(steps[exponents == exponent], return_counts=True)[1]
        bound -= float((counts * np.log2(counts / counts.sum())).sum())
    assert 8 * len(body) < 1.04 * bound


def test_a_whole_frame_with_one_change_at_its_end_comes_back(build: Any) -> None:
    old = np.zeros(codec.FRAME_ELEMENTS, np.uint16)
    new = old.copy()
    new[-1] = 0x8000  # +0 to -0
    kind, body = codec.encode("BF16", old, new)
    assert kind == codec.CLASSES
    assert len(body) < 20
    assert (round_trip("BF16", old, new) == new).all()


def test_where_most_change_those_that_stay_are_listed(build: Any) -> None:
    old = np.tile(np.array([0x3F80, 0x2F80, 0x2F80], np.uint16), 40_000)
    new = old + (old == 0x2F80)
    new[[7, 4000, 90_000, 100_000]] = old[[7, 4000, 90_000, 100_000]]
    body = codec.encode("BF16", old, new)[1]
    assert len(body) > 0
    assert (round_trip("BF16", old, new) == new).all()
    mostly = np.where(np.arange(120_000) % 30 < 10, old, 0x3F80).astype(np.uint16)
    kind, body = codec.encode("BF16", mostly, mostly + (mostly == 0x2F80))
    assert kind == codec.CLASSES
    assert len(body) < 6000  # a sign for each change, and next to nothing for its position


def test_an_unaligned_frame_is_as_good(build: Any) -> None:
    old, new = learned(1000, 0.1)
    raw = np.concatenate([np.zeros(1, np.uint8), old.view(np.uint8)])
    assert (round_trip("BF16", raw[1:].view("<u2"), new) == new).all()


def test_equal_frames_give_an_empty_body(build: Any) -> None:
    old = np.arange(10, dtype=np.uint16)
    assert codec.encode("BF16", old, old.copy()) == (codec.SAME, b"")
    assert codec.encode("I16", old, old.copy()) == (codec.SAME, b"")


def test_the_golden_frames_decode_and_encode_alike(build: Any) -> None:
    for vector in json.loads(VECTORS.read_text()):
        old, new = (np.frombuffer(base64.b64decode(vector[name]), "<u2") for name in ("old", "new"))
        body = base64.b64decode(vector["body"])
        assert codec.encode(vector["dtype"], old, new) == (codec.CLASSES, body), vector["name"]
        patch = codec.decode(vector["dtype"], codec.CLASSES, memoryview(body), old, len(old))
        assert (patch.apply_to_copy(old) == new).all(), vector["name"]


COUNT = 100
OLD = np.zeros(COUNT, np.uint16)
"""All of class 0; the honest frame steps elements 1 and 5 up by one and two."""


def frame(*, lo: int = 0, used: int = 1, head: bytes, codes: bytes, rest: bytes, length: int | None = None) -> bytes:
    size = exponent_classes._number(len(codes) if length is None else length)
    return bytes([lo]) + used.to_bytes(2, "little") + head + size + codes + rest


def honest(**changed: Any) -> bytes:
    """2 changes, k = 0; large steps listed: 1 with k = 0; unary gaps 1, 3; large gap 1; size 0."""
    parts: dict[str, Any] = {"head": bytes([2, 0, 0x80, 1, 0]), "codes": b"\xa2\x01", "rest": b"\x00"}
    return frame(**parts | changed)


def pack(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def undeclared(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


def lying(**parts: Any) -> tuple[int, bytes]:
    return codec.CLASSES, frame(**parts)


LIES: dict[str, tuple[int, bytes]] = {
    "an unknown kind": (9, b""),
    "a full frame where there is a base": (codec.FULL, pack(bytes(200))),
    "no change, with a body": (codec.SAME, b"x"),
    "an empty frame of classes": (codec.CLASSES, b""),
    "no class": (codec.CLASSES, honest(used=0)),
    "a class without a head": (codec.CLASSES, honest(used=3)),
    "a head cut short": (codec.CLASSES, b"\x00\x01\x00\x02"),
    "a number without end": (codec.CLASSES, honest(head=b"\xff" * 20)),
    "no change in a class": lying(head=bytes([0, 0, 0x80, 0]), codes=b"", rest=b""),
    "more changes than elements": lying(head=bytes([101, 0, 0x80, 0]), codes=b"\xff" * 12 + b"\x1f", rest=bytes(13)),
    "more changes than bits": (codec.CLASSES, honest(head=bytes([99, 0, 0x80, 1, 0]))),
    "more changes than 32 bits of memory": (codec.CLASSES, honest(head=b"\xff\xff\xff\xff\x7f\x00\x80\x01\x00")),
    "more large steps than changes": (codec.CLASSES, honest(head=bytes([2, 0, 0x80, 3, 0]))),
    "a k beyond all numbers": (codec.CLASSES, honest(head=bytes([2, 25, 0x80, 1, 0]))),
    "a k of the list beyond all numbers": (codec.CLASSES, honest(head=bytes([2, 0, 0x80, 1, 200]))),
    "unary codes longer than the frame": (codec.CLASSES, honest(length=4)),
    "unary codes of another length": (codec.CLASSES, honest(codes=b"\xa2\x01\x00")),
    "fewer unary codes than numbers": (codec.CLASSES, honest(codes=b"\xa2\x00")),
    "more unary codes than numbers": (codec.CLASSES, honest(codes=b"\xa2\x03")),
    "no fields": (codec.CLASSES, honest(rest=b"")),
    "bytes after the fields": (codec.CLASSES, honest(rest=b"\x00\x00")),
    "bits after the fields": (codec.CLASSES, honest(rest=b"\x04")),
    "a rank beyond the class": lying(head=bytes([1, 0, 0x80, 0]), codes=bytes(12) + b"\x10", rest=b"\x00"),
    "a rank in a class of none": lying(used=2, head=bytes([1, 0, 0x80, 0]), codes=b"\x01", rest=b"\x00"),
    "a gap of 2^25": lying(head=bytes([1, 24, 0x80, 0]), codes=b"\x04", rest=bytes(4)),
    "a large step beyond the changes": (codec.CLASSES, honest(codes=b"\x22\x06")),
    "a step beyond the floats": lying(head=bytes([1, 0, 0x4F]), codes=b"\x03", rest=b"\xfe\xff"),
    "a step longer than 16 bits": lying(head=bytes([1, 0, 0x18]), codes=b"\x05", rest=bytes(4)),
    "a gamma code longer than 16 bits": lying(head=bytes([1, 0, 0x40]), codes=b"\x01\x00\x04", rest=bytes(3)),
    "elements that stay beyond the last change": lying(head=bytes([2, 0x80, 1, 0x80, 0]), codes=b"\x08", rest=b"\x00"),
    "more that stay than there are": lying(head=bytes([1, 0x80, 120, 0x80, 0]), codes=b"\xff" * 15, rest=b"\x00"),
    "planes of another size": (codec.XOR, pack(bytes(199))),
    "planes that are a bomb": (codec.XOR, pack(bytes(1 << 26))),
    "planes that do not say their size": (codec.XOR, undeclared(bytes(200))),
    "planes that are not zstd": (codec.XOR, b"not zstd at all"),
    "planes of nothing": (codec.XOR, b""),
}  # fmt: skip


def test_the_honest_frame_of_the_table_is_taken(build: Any) -> None:
    patch = codec.decode("BF16", codec.CLASSES, memoryview(honest()), OLD, COUNT)
    assert [part.tolist() for part in patch.changes(OLD)] == [[1, 5], [1, 2]]


@pytest.mark.parametrize("lie", LIES)
def test_a_frame_that_contradicts_itself_is_refused(build: Any, lie: str) -> None:
    kind, body = LIES[lie]
    with pytest.raises(BadPayload):
        codec.decode("BF16", kind, memoryview(body), OLD, COUNT)


def test_too_many_changes_are_not_listed(build: codec.Build) -> None:
    old, new = np.zeros(300, np.uint16), np.zeros(300, np.uint16)
    new[:100] = 7
    layout = LAYOUTS["BF16"]
    assert build.encode(old, new, layout, 99) is None
    assert build.encode(old, new, layout, 100) == REFERENCE.encode(old, new, layout, 300)


def test_a_change_beyond_the_frame_is_not_written(build: codec.Build) -> None:
    target, index, bits = np.zeros(20, np.uint16), np.array([7, 26], np.uint32), np.array([1, 2], np.uint16)
    build.write(index, bits, target, 7)
    assert target.tolist() == [1, *[0] * 18, 2]
    for beyond in (6, 27):
        with pytest.raises(IndexError):
            build.write(np.array([beyond], np.uint32), bits[:1], target, 7)


def test_classes_of_integers_are_refused(build: Any) -> None:
    for dtype in ("I16", "F32", "U8"):
        with pytest.raises(BadPayload):
            codec.decode(dtype, codec.CLASSES, memoryview(honest()), OLD, COUNT)


@pytest.mark.parametrize("kind", [codec.SAME, codec.CLASSES, codec.XOR])
def test_a_difference_from_nothing_is_refused(kind: int) -> None:
    with pytest.raises(BadPayload):
        codec.decode("BF16", kind, memoryview(honest()), None, COUNT)


Outcome = tuple[list[int], list[int]] | str


def outcome(decode: Callable[[], Any]) -> Outcome:
    try:
        index, bits = decode()
    except BadPayload:
        return "refused"
    return index.tolist(), bits.tolist()


@settings(max_examples=400)
@given(frames(("BF16", "F16")), st.data())
@pytest.mark.slow
def test_a_damaged_body_means_the_same_to_all_builds(frame: tuple[str, Bits, Bits], data: st.DataObject) -> None:
    dtype, old, new = frame
    layout = LAYOUTS[dtype]
    damaged = bytearray(REFERENCE.encode(old, new, layout, len(old)) if (old != new).any() else honest())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del damaged[data.draw(st.integers(0, len(damaged))) :]
    outcomes: list[Outcome] = []
    for build in BUILDS:
        with codec.using(build):
            body = memoryview(bytes(damaged))
            outcomes.append(outcome(lambda body=body: codec.decode(dtype, 1, body, old, len(old)).changes(old)))
    assert outcomes == [outcomes[0]] * len(BUILDS)
    if outcomes[0] != "refused":
        index = np.array(outcomes[0][0])
        assert (np.diff(index) > 0).all()
        assert index[-1] < len(old)
