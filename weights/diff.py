"""Encode and apply the payload of an edge: from a base snapshot, or from nothing, to a new one. Layout: see
`weights.payload_format`.

`apply` does this, in order:

1. The payload's header is read; codec, roots and table must be the expected ones, else `BadPayload`.
2. The base must be the one from which the diff starts, else `WrongBase`. (Applying a diff twice ends here.)
3. Frames are decoded one at a time, purely: old frame + bytes -> positions and new bits. The base is never written to.
4. The new frames are written to a hidden file beside the target, and hashed on the way.
5. The file becomes visible only if the content root is the expected one. A failure leaves no file.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from echo2.runtime.files import writing
from echo2.weights.codec import frames
from echo2.weights.codec.frames import Bits
from echo2.weights.documents import TensorEntry, Version
from echo2.weights.errors import BadPayload, BadSnapshot, WrongBase
from echo2.weights.ordered_map import in_order
from echo2.weights.payload_format import Frame, PayloadReader, Sink, Table, frames_of, header_bytes, read_header
from echo2.weights.snapshot import Snapshot, WeightsSource, writing_snapshot

MAX_SNAPSHOT: Final = 1 << 42
"""Most bytes of weights that a full payload may claim, unless the caller sets a lower limit."""


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """A payload file and the values that its `Edge` states: codec, BLAKE3 hash, length in bytes, and the roots of both
    ends."""

    path: Path
    codec: str
    hash: bytes
    length: int
    base_root: bytes | None
    root: bytes


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Elements of one tensor that get new bits: flat positions (int64, ascending) and bits, of equal length."""

    tensor: TensorEntry
    index: NDArray[np.int64]
    bits: Bits


def encode(old: WeightsSource | None, new: WeightsSource, path: Path, *, threads: int | None = None) -> Payload:
    """Write the payload that leads from `old` (None: from nothing) to `new`. Equal snapshots give equal bytes at any
    number of threads (None: one per core), with the same version of zstd. Memory per thread:
    see `weights.codec.frames`. Raises `BadSnapshot` when the tensor tables differ, `DiskFull`."""
    if old is not None and old.tensors != new.tensors:
        raise BadSnapshot("a diff needs equal tensor tables on both sides: encode a full payload (old = None)")
    with writing(path) as file:
        sink = Sink(file)
        sink.write(header_bytes(old, new))
        encoded = in_order(lambda frame: _encode(old, new, frame), frames_of(new.tensors), threads)
        for kind, body in encoded:
            sink.write(bytes([kind]))
            if kind != frames.SAME:
                sink.write(struct.pack("<I", len(body)) + body)
    base_root = old.root if old else None
    return Payload(
        path=path, codec=frames.NAME, hash=sink.hash.digest(), length=sink.length, base_root=base_root, root=new.root
    )


def encode_full(new: WeightsSource, path: Path) -> Payload:
    """Write the payload of a full edge: all of `new`, from nothing."""
    return encode(None, new, path)


def apply(
    base: Snapshot | None,
    payload: Path,
    out: Path,
    expect_root: bytes,
    *,
    expect: Version | None = None,
    max_bytes: int = MAX_SNAPSHOT,
    threads: int | None = None,
) -> Snapshot:
    """Write the snapshot `out` that `payload` makes of `base` (None: a full payload), and open it.

    `expect_root`: content root from the signed Edge or Version. `expect`: the Version, where the caller has it: its
    tensor table must match, too. `max_bytes`: most bytes of weights that a full payload may claim. Memory for each of
    `threads` (None: one per core): see `weights.codec.frames`. Raises `BadPayload`, `WrongBase`, `DiskFull`; `base` and
    an older `out` are then untouched."""
    reader = PayloadReader(payload)
    table = open_payload(reader, base, expect_root)
    if expect is not None and (expect.tensors, expect.aliases) != (table.tensors, table.aliases):
        raise BadPayload("payload leads to another tensor table than its Version names")
    if sum(entry.nbytes for entry in table.tensors) > max_bytes:
        raise BadPayload(f"payload claims more than {max_bytes} bytes of weights")
    with writing_snapshot(out, table.tensors, table.aliases) as writer:
        for frame, patch in patches(reader, base, table.tensors, threads):
            old = base.span(frame.start, frame.elements, frame.width) if base else None
            for piece in [patch.bits] if old is None else patch.pieces(old):
                writer.write(piece)
        if writer.finish() != expect_root:
            raise BadPayload("payload decodes to weights of another root than it claims")
    return Snapshot(out, root=expect_root)


def by_tensor(frame: Frame, index: NDArray[np.uint32], bits: Bits) -> Iterator[Change]:
    """Yield the changes of a frame (positions in it, ascending), cut where tensors end."""
    begin = 0
    for entry, first, elements in frame.pieces:
        low, high = np.searchsorted(index, [begin, begin + elements])
        if low < high:
            yield Change(tensor=entry, index=index[low:high].astype(np.int64) - begin + first, bits=bits[low:high])
        begin += elements


def bodies(reader: PayloadReader, tensors: list[TensorEntry]) -> Iterator[tuple[Frame, int, memoryview]]:
    """Yield (frame, kind, body) of all frames, after the header. Raises `BadPayload`."""
    for frame in frames_of(tensors):
        kind = reader.u8()
        yield frame, kind, memoryview(b"") if kind == frames.SAME else reader.take(reader.u32())
    reader.end()


def patches(
    reader: PayloadReader, base: Snapshot | None, tensors: list[TensorEntry], threads: int | None
) -> Iterator[tuple[Frame, frames.Patch]]:
    """Yield the patch of each frame, in order. Raises `BadPayload`."""

    def decode(body_of_frame: tuple[Frame, int, memoryview]) -> tuple[Frame, frames.Patch]:
        frame, kind, body = body_of_frame
        old = base.span(frame.start, frame.elements, frame.width) if base else None
        return frame, frames.decode(frame.dtype, kind, body, old, frame.elements)

    return in_order(decode, bodies(reader, tensors), threads)


def _encode(old: WeightsSource | None, new: WeightsSource, frame: Frame) -> tuple[int, bytes]:
    before = old.span(frame.start, frame.elements, frame.width) if old else None
    return frames.encode(frame.dtype, before, new.span(frame.start, frame.elements, frame.width))


def open_payload(reader: PayloadReader, base: Snapshot | None, expect_root: bytes | None) -> Table:
    """Check header, roots and base (steps 1 and 2); return the tensor table that the payload leads to."""
    head = read_header(reader)
    if expect_root is not None and head.root != expect_root:
        raise BadPayload(f"payload leads to {head.root.hex()[:16]}, not to {expect_root.hex()[:16]}")
    if base is None:
        if head.base_root is not None or head.table is None:
            raise WrongBase("payload is a diff, and no base was given")
        return head.table
    if head.base_root is None:
        raise WrongBase("payload is a full snapshot: apply it to no base")
    if base.root != head.base_root:
        already = "; it is the target already" if base.root == head.root else ""
        raise WrongBase(f"diff starts from {head.base_root.hex()[:16]}, base is {base.root.hex()[:16]}{already}")
    if head.table is not None and head.table.tensors != base.tensors:
        raise BadPayload("a diff renames or reshapes tensors")
    return head.table or Table(base.tensors, base.aliases)
