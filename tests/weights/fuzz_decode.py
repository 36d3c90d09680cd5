"""Coverage-guided fuzzing of decoding: `python tests/weights/fuzz_decode.py [-runs=1000000] [atheris options]`.

Needs atheris. An input is a frame's dtype, kind, size and old bits, and then its body; the seeds are honest frames.
Decoding must refuse with `BadPayload` or give ascending positions within the frame; and numpy and the other builds, one
of which the input picks, must say the same. Every 64th input is also read as a whole payload.
"""

import sys
import tempfile
from pathlib import Path

import atheris

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

with atheris.instrument_imports(include=["echo2.weights"]):
    import numpy as np

    from echo2.weights.codec import frames, native
    from echo2.weights.codec.exponent_classes import REFERENCE
    from echo2.weights.codec.frames import Bits
    from echo2.weights.diff import bodies
    from echo2.weights.documents import ITEM_BYTES, TensorEntry
    from echo2.weights.errors import BadPayload
    from echo2.weights.payload_format import PayloadReader, read_header

DTYPES = ("BF16", "F16", "I16", "F32")
BUILDS = native.builds() or [REFERENCE]
HEAD = 5
"""Bytes before the body: dtype and kind, build, two of size, seed of the old bits."""
ENTRIES = [TensorEntry(name="a", dtype="BF16", shape=(300,)), TensorEntry(name="b", dtype="F32", shape=(3,))]
_scratch = Path(tempfile.mkdtemp()) / "payload"
_turns = 0


def old_frame(dtype: str, count: int, seed: int) -> Bits:
    width = np.dtype(f"<u{ITEM_BYTES[dtype]}")
    bits = (np.arange(1, count + 1, dtype=np.uint64) * np.uint64(2654435761 + 2 * seed)) >> np.uint64(5)
    return (bits.astype(width) & width.type((1 << 8 * width.itemsize) - 1 >> seed % 4)).astype(width)


def outcome(build: frames.Build, dtype: str, kind: int, body: bytes, old: Bits) -> object:
    with frames.using(build):
        try:
            patch = frames.decode(dtype, kind, memoryview(body), old, len(old))
        except BadPayload:
            return None
    index, bits = patch.changes(old)
    assert len(index) == len(bits) <= len(old)
    if len(index):
        assert (np.diff(index.astype(np.int64)) > 0).all()
        assert index[-1] < len(old)
    return index.tolist(), bits.tolist()


def test_one_input(data: bytes) -> None:
    global _turns
    _turns += 1
    if _turns % 64 == 0:
        read_payload(data)
    if len(data) < HEAD:
        return
    dtype, kind = DTYPES[data[0] & 3], data[0] >> 2 & 3
    old = old_frame(dtype, 1 + int.from_bytes(data[2:4], "little") % 2000, data[4])
    decoded = outcome(REFERENCE, dtype, kind, data[HEAD:], old)
    assert outcome(BUILDS[data[1] % len(BUILDS)], dtype, kind, data[HEAD:], old) == decoded


def read_payload(data: bytes) -> None:
    _scratch.write_bytes(data)
    try:
        reader = PayloadReader(_scratch)
        read_header(reader)
        for _ in bodies(reader, ENTRIES):
            pass
    except BadPayload:
        pass


def seeds(folder: Path) -> None:
    """Yield honest frames of few and many changes, long and short steps."""
    for number in range(48):
        dtype, count, rng = DTYPES[number % 4], 1 + 41 * number, np.random.default_rng(number)
        old = old_frame(dtype, count, number)
        new = np.where(rng.random(count) < (0.02, 0.3, 0.7)[number % 3], old + old.dtype.type(1 + number // 9), old)
        kind, body = frames.encode(dtype, old, new)
        head = bytes([number % 4 | kind << 2, number]) + (count - 1).to_bytes(2, "little") + bytes([number])
        (folder / str(number)).write_bytes(head + body)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as corpus:
        seeds(Path(corpus))
        atheris.Setup([*sys.argv, "-max_len=4096", corpus], test_one_input)
        atheris.Fuzz()
