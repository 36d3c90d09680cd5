"""Parse the header of a safetensors file from untrusted bytes, and write it canonically. Pure.

A header is refused (`BadSnapshot`) unless

1. it is at most `MAX_HEADER` bytes of UTF-8 JSON, one object, without duplicate keys at any level;
2. `__metadata__`, if there, maps strings to strings;
3. each tensor has a known dtype, a shape of at most 8 dimensions, and offsets that span exactly its bytes;
4. the tensors cover the rest of the file without overlap, hole or remainder.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from echo2.weights.documents import TensorEntry
from echo2.weights.errors import BadSnapshot

MAX_HEADER: Final = 64 << 20
"""Bytes. Real headers take about 100 per tensor."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed header. `offsets`: first byte of each tensor, counted from the file's start, in the order of `tensors`
    (by name)."""

    tensors: list[TensorEntry]
    offsets: list[int]
    metadata: dict[str, str]


class _Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def header_length(prefix: bytes, file_size: int) -> int:
    """Return the number of bytes of JSON after the file's first 8. Raises `BadSnapshot`."""
    if len(prefix) < 8:
        raise BadSnapshot("not a safetensors file (shorter than its length field): download it again")
    length: int = struct.unpack("<Q", prefix[:8])[0]
    if length > min(MAX_HEADER, file_size - 8):
        raise BadSnapshot(f"header claims {length} bytes in a file of {file_size}; download the file again")
    return length


def parse(text: bytes, file_size: int) -> Header:
    """Parse the header of a file of `file_size` bytes whose JSON is `text`. Raises `BadSnapshot`."""
    fields = _json_object(text)
    metadata = fields.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise BadSnapshot("header's __metadata__ does not map strings to strings")
    start = 8 + len(text)
    stored = {name: _entry(name, value) for name, value in fields.items()}
    _check_cover([offsets for _, offsets in stored.values()], file_size - start)
    names = sorted(stored)
    return Header(
        tensors=[stored[name][0] for name in names],
        offsets=[start + stored[name][1][0] for name in names],
        metadata=metadata,
    )


def build(tensors: Sequence[TensorEntry], metadata: Mapping[str, str]) -> bytes:
    """Return length field and JSON, padded to a multiple of 8 bytes: tensors lie in the order given, without holes.
    Raises `BadSnapshot` above `MAX_HEADER`."""
    fields: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    position = 0
    for entry in tensors:
        fields[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [position, position + entry.nbytes],
        }
        position += entry.nbytes
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise BadSnapshot(f"a header of {len(text)} bytes; at most {MAX_HEADER} can be read back")
    return struct.pack("<Q", len(text)) + text


def _json_object(text: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(text.decode("utf-8"), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise BadSnapshot(f"header is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadSnapshot("header is not a JSON object")
    return fields


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise BadSnapshot("header has a duplicate key: write the file again with the safetensors library")
    return fields


def _entry(name: str, value: object) -> tuple[TensorEntry, tuple[int, int]]:
    try:
        stored = msgspec.convert(value, _Stored, strict=True)
        name.encode()
        entry = msgspec.convert({"name": name, "dtype": stored.dtype, "shape": stored.shape}, TensorEntry)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise BadSnapshot(f"header entry {name[:100]!r}: {error}") from error
    begin, end = stored.data_offsets
    if begin < 0 or end - begin != entry.nbytes:
        raise BadSnapshot(f"tensor {name!r} takes {entry.nbytes} bytes, but its offsets are {begin} to {end}")
    return entry, (begin, end)


def _check_cover(spans: list[tuple[int, int]], size: int) -> None:
    position = 0
    for begin, end in sorted(spans):
        if begin != position:
            raise BadSnapshot(f"tensors overlap or leave a hole at byte {min(begin, position)} of the data")
        position = end
    if position != size:
        raise BadSnapshot(f"tensors take {position} bytes, the file holds {size}; download the file again")
