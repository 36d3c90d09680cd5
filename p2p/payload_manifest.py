"""The manifest of a payload: what a signed document says of its bytes."""

import msgspec


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The chunk size of a payload and the hashes that verify it. Every field comes from a signed document.

    `hash`: BLAKE3 of the payload, 32 bytes. `length`: bytes. `chunk_size`: bytes, the last chunk may be shorter.
    `chunk_root`: Merkle root (BLAKE3) over the chunks in order."""

    hash: bytes
    length: int
    chunk_size: int
    chunk_root: bytes
