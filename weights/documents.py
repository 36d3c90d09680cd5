"""Define the documents that describe a policy version and the edges that lead to it. The publisher writes them; every
node reads them.

Canonical bytes are msgpack maps in field order; keys of `aliases` are sorted, and optional fields are left out when
they hold their default. Other modules sign documents. `from_bytes` enforces, in order:

1. The document is no longer than `MAX_DOCUMENT` bytes.
2. It decodes as its type. Fields that this version does not know are ignored: types may gain optional fields.
3. Numbers are in range, hashes and roots are exactly 32 bytes.
4. Tensors stand in strictly ascending order of name; an alias names a tensor of the table and is none itself.
5. A diff names both its base version and its base root, a full edge neither. Only a full edge has hashes of tensors.

A breach of any of them raises `BadPayload`.
"""

import itertools
import math
from typing import Annotated, Final, Literal, Self, get_args

import msgspec

from echo2.weights.errors import BadPayload

MAX_DOCUMENT: Final = 32 << 20
"""Bytes of one document: room for the table of a model with 10^5 and more tensors."""
MAX_TENSOR_BYTES: Final = 1 << 46
MAX_EDGES: Final = 256

DType = Literal[
    "BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "U16", "I16", "F16", "BF16", "U32", "I32", "F32", "U64", "I64", "F64"
]  # fmt: skip
"""Element types, by their safetensors names."""
DTYPES: Final[tuple[str, ...]] = get_args(DType)
ITEM_BYTES: Final[dict[str, int]] = {
    name: 1 if name == "BOOL" or name.startswith("F8") else int(name.lstrip("BFUI")) // 8 for name in DTYPES
}

Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Positive = Annotated[int, msgspec.Meta(gt=0, le=(1 << 63) - 1)]
Hash = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
Dimension = Annotated[int, msgspec.Meta(ge=0, lt=1 << 46)]

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")


class Document(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The base of all documents: conversion to canonical bytes and back."""

    def to_bytes(self) -> bytes:
        """Return the canonical bytes; equal documents give equal bytes."""
        return _ENCODER.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode and check. Raises `BadPayload`."""
        if len(data) > MAX_DOCUMENT:
            raise BadPayload(f"{cls.__name__} of {len(data)} bytes; at most {MAX_DOCUMENT} are read")
        try:
            document = msgspec.msgpack.decode(data, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadPayload(f"not a {cls.__name__}: {error}") from error
        document.check()
        return document

    def check(self) -> None:
        """Raise `BadPayload` where fields contradict each other."""


class TensorEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a snapshot: name in the model's state dict, safetensors dtype, shape (row-major)."""

    name: Name
    dtype: DType
    shape: Annotated[tuple[Dimension, ...], msgspec.Meta(max_length=8)]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * ITEM_BYTES[self.dtype]


class Version(Document, frozen=True, kw_only=True, omit_defaults=True):
    """The policy at (era, version): its content root and tensor table.

    `version`: the learner's step that produced it. `root`: see `weights.snapshot.root_of`. `aliases`: name -> name
    of the tensor that it is tied to; absent: none.
    """

    era: Number
    version: Number
    root: Hash
    tensors: list[TensorEntry]
    aliases: dict[Name, Name] = {}

    def check(self) -> None:
        check_table(self.tensors, self.aliases)


class Edge(Document, frozen=True, kw_only=True, omit_defaults=True):
    """The step from one snapshot to another: the payload's codec, hash (BLAKE3), length and chunks.

    `base`, `base_root`: absent for a full snapshot. `length`, `chunk_size`: bytes. `chunk_root`: Merkle root over the
    payload's chunks, computed where they are cut. `base_root` identifies the base; `base` is its number.
    `tensor_hashes`: hashes of a full edge's tensors, BLAKE3 of the bytes of each in the order of the Version's table;
    empty: not stated. They hold if they give `root` (weights.snapshot.root_of).
    """

    era: Number
    base: Number | None = None
    base_root: Hash | None = None
    version: Number
    root: Hash
    codec: Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[a-z0-9-]+/[0-9]+\Z")]
    payload_hash: Hash
    length: Positive
    chunk_size: Positive
    chunk_root: Hash
    tensor_hashes: bytes = b""

    def check(self) -> None:
        if self.tensor_hashes and (self.base is not None or len(self.tensor_hashes) % 32):
            raise BadPayload("hashes of tensors have 32 bytes each, and only a full edge has them")
        if (self.base is None) != (self.base_root is None):
            raise BadPayload("an edge names both base and base_root, or neither")
        if self.base is not None and self.base >= self.version:
            raise BadPayload(f"an edge leads forward, not from version {self.base} to {self.version}")


class EdgeIndex(Document, frozen=True, kw_only=True, omit_defaults=True):
    """The edges that lead to (era, version): BLAKE3 hashes of their sealed documents."""

    era: Number
    version: Number
    edges: Annotated[list[Hash], msgspec.Meta(max_length=MAX_EDGES)]

    def check(self) -> None:
        if len(set(self.edges)) != len(self.edges):
            raise BadPayload("an edge index names an edge twice")


def check_table(tensors: list[TensorEntry], aliases: dict[str, str]) -> None:
    """Check rule 4, and that no tensor exceeds `MAX_TENSOR_BYTES`. Raises `BadPayload`."""
    names = {entry.name for entry in tensors}
    for before, after in itertools.pairwise(tensors):
        if before.name >= after.name:
            raise BadPayload(f"tensor {after.name!r} does not come after {before.name!r}")
    for entry in tensors:
        if entry.nbytes > MAX_TENSOR_BYTES:
            raise BadPayload(f"tensor {entry.name!r} claims {entry.nbytes} bytes")
    for alias, target in aliases.items():
        if alias in names or target not in names:
            raise BadPayload(f"alias {alias!r} -> {target!r} does not fit the tensor table")
