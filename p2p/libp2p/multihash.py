"""Multihashes, in place of the library py-multihash: a code, a length and the digest."""

from io import BytesIO
from typing import Final, NamedTuple

from echo2.p2p.libp2p import varint

CODES: Final = {"sha2-256": 0x12}


class Multihash(NamedTuple):
    """A parsed multihash. `func`: code of the hash function, 0 if the digest is the content itself."""

    func: int
    digest: bytes


def encode(digest: bytes, code: int | str) -> bytes:
    """Return the binary form of a digest. `code`: code of the hash function, or its name."""
    number = CODES[code] if isinstance(code, str) else code
    return varint.encode(number) + varint.encode(len(digest)) + digest


def decode(multihash: bytes) -> Multihash:
    """Parse a multihash. Raises ValueError."""
    stream = BytesIO(multihash)
    code, length = varint.decode_stream(stream), varint.decode_stream(stream)
    digest = stream.read()
    if len(digest) != length:
        raise ValueError(f"a multihash of {len(digest)} bytes says that it has {length}")
    return Multihash(code, digest)
