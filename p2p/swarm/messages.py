"""Messages of the chunk protocol `/echo2/chunks/1`, one per frame.

Downloader -> holder: `PayloadRequest` once; then `ChunkRequest` (without indices: keep-alive) and `Cancel`.
Holder -> downloader: `HaveMore` without indices (keep-alive; sent at once by a holder that does not have the payload
yet); `Have` once, when it has the payload or begins to fetch it; then `HaveMore`, `Chunk`, `NotAvailable`.

A message is a MessagePack array: a letter for its type, then the fields in order. Later versions may append fields; an
absent field has its default. Every field is bounded, and a frame that breaks a bound is `Malformed`.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec

from echo2.p2p.errors import Malformed
from echo2.p2p.wire_types import read

CHUNK_SIZE_MIN = 16 << 10
CHUNK_SIZE_MAX = 1 << 20
CHUNKS_MAX = 1 << 20
"""Chunks in one payload; with the largest chunks that is 1 TiB."""
INDICES_MAX = 4096
"""Indices in one message."""
DOWNLOADER_LIMIT = 5 * INDICES_MAX + 64
"""Bytes of a downloader's longest frame."""
HOLDER_LIMIT = CHUNK_SIZE_MAX + 4096
"""Bytes of a holder's longest frame."""

Index = Annotated[int, msgspec.Meta(ge=0, lt=CHUNKS_MAX)]
Indices = Annotated[tuple[Index, ...], msgspec.Meta(max_length=INDICES_MAX)]
Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class PayloadRequest(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """The first message of a stream: the BLAKE3 hash of the payload that the stream is about."""

    payload: Digest


class ChunkRequest(msgspec.Struct, frozen=True, array_like=True, tag="w"):
    """A request for these chunks, in this order; the holder sends a chunk that it lacks on arrival."""

    indices: Indices = ()


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag="x"):
    """A cancellation of requests, since the chunks came from elsewhere. A chunk may be on its way already."""

    indices: Indices


class Have(msgspec.Struct, frozen=True, array_like=True, tag="h"):
    """The chunks that the holder has: bit i % 8 of byte i // 8 is chunk i; bit 0 is the lowest."""

    bitmap: Annotated[bytes, msgspec.Meta(max_length=CHUNKS_MAX // 8)]


class HaveMore(msgspec.Struct, frozen=True, array_like=True, tag="n"):
    """Chunks that the holder has in addition to those announced before."""

    indices: Indices = ()


class Chunk(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """A chunk and the siblings that lead from it to the chunk root."""

    index: Index
    proof: Annotated[tuple[Digest, ...], msgspec.Meta(max_length=20)]
    data: Annotated[memoryview, msgspec.Meta(max_length=CHUNK_SIZE_MAX)]
    """A view of the frame, in a decoded message."""


class NotAvailable(msgspec.Struct, frozen=True, array_like=True, tag="g"):
    """A notice that the holder can no longer send this chunk."""

    index: Index


FromDownloader = PayloadRequest | ChunkRequest | Cancel
FromHolder = Have | HaveMore | Chunk | NotAvailable

_BIN_8 = 0xC4
"""MessagePack's type byte for up to 255 bytes; those for up to 2**16 - 1 and 2**32 - 1 follow it."""

encode: Callable[[FromDownloader | FromHolder], bytes] = msgspec.msgpack.Encoder().encode
_from_downloader: msgspec.msgpack.Decoder[FromDownloader] = msgspec.msgpack.Decoder(FromDownloader)
_from_holder: msgspec.msgpack.Decoder[FromHolder] = msgspec.msgpack.Decoder(FromHolder)


def encode_chunk(index: int, proof: Sequence[bytes], data: bytes | memoryview) -> tuple[bytes, bytes | memoryview]:
    """Return the frame of a `Chunk` in two pieces, so that the data is not copied."""
    head = encode(Chunk(index, tuple(proof), memoryview(b"")))
    width = 1 if len(data) < 1 << 8 else 2 if len(data) < 1 << 16 else 4
    return head[:-2] + bytes([_BIN_8 + width // 2]) + len(data).to_bytes(width, "big"), data


def decode_from_downloader(frame: bytes) -> FromDownloader:
    """Decode a downloader's frame. Raises `Malformed`."""
    return read(_from_downloader, frame, "chunk request")


def decode_from_holder(frame: bytes) -> FromHolder:
    """Decode a holder's frame. Raises `Malformed`."""
    return read(_from_holder, frame, "chunk answer")


def pack_bitmap(indices: int, chunks: int) -> bytes:
    """Return the bytes of `Have` from an integer whose bit i is chunk i."""
    return indices.to_bytes((chunks + 7) // 8, "little")


def unpack_bitmap(bitmap: bytes, chunks: int) -> int:
    """Return an integer whose bit i is chunk i. Raises `Malformed` for a wrong length, or a bit set beyond the end."""
    indices = int.from_bytes(bitmap, "little")
    if len(bitmap) != (chunks + 7) // 8 or indices >> chunks:
        raise Malformed(f"bitmap of {len(bitmap)} bytes does not fit {chunks} chunks")
    return indices
