"""The parts that all wire types share: bounded field types, the base class, the canonical encoding.

Rules
1. Types only gain optional fields within a protocol version; an unknown field is ignored.
2. Times are integers: milliseconds since the Unix epoch, on the coordinator's clock unless stated otherwise.
3. Ids and nonces are 16 bytes, hashes, roots and public keys 32 bytes; `decode` enforces these lengths.
4. Every list and string has a bound; a decode never allocates more than a small multiple of its input.

Documents are sent sealed (p2p/envelope.py); a node's requests that have an effect are sealed `Request`s
(protocol/requests.py). The documents of role "policy" (Version, Edge, EdgeIndex) are in weights/documents.py.
"""

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from echo2.p2p.errors import Malformed

Id = Annotated[bytes, Meta(min_length=16, max_length=16)]
Hash = Annotated[bytes, Meta(min_length=32, max_length=32)]
Key = Hash
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Sentence = Annotated[str, Meta(max_length=2000)]
Address = Annotated[str, Meta(max_length=400)]
SealedRecord = Annotated[bytes, Meta(max_length=4096)]
PeerId = Annotated[str, Meta(min_length=1, max_length=128)]
Milliseconds = Annotated[int, Meta(ge=0, lt=1 << 53)]
Count = Annotated[int, Meta(ge=0, lt=1 << 53)]
Token = Annotated[int, Meta(ge=0, lt=1 << 31)]
Tokens = Annotated[list[Token], Meta(max_length=1 << 20)]


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all wire types."""


T = TypeVar("T")
_encode = msgspec.msgpack.Encoder().encode
_decoders: dict[type, msgspec.msgpack.Decoder[object]] = {}


def encode(message: msgspec.Struct) -> bytes:
    """Return the canonical bytes of a message: MessagePack, fields in order, defaults left out."""
    return _encode(message)


def decode(data: bytes, type_: type[T]) -> T:
    """Decode bytes as `type_`, checking types and bounds. Raises `Malformed`."""
    decoder = _decoders.get(type_)
    if decoder is None:
        decoder = _decoders[type_] = msgspec.msgpack.Decoder(type_)
    return read(decoder, data, f"not a {type_.__name__}")  # type: ignore[return-value]


def read(decoder: msgspec.msgpack.Decoder[T], data: bytes, fault: str) -> T:
    """Decode bytes. Raises `Malformed`, whose text begins with `fault`."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"{fault}: {error}") from error
