"""The transport phase of Noise, without I/O: encrypt and decrypt many messages at a time.

1. On the wire a message is its length (2 bytes, big-endian) and a ciphertext of at most 65535 bytes, the last 16 of
   them the tag.
2. Messages are counted from 0 in each direction, and the count is the nonce. A message that is lost, changed, repeated
   or out of order fails authentication, as does each later one. That is `Malformed`: the connection cannot be used.
"""

import struct
from collections.abc import Iterator, Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from echo2.p2p.errors import Malformed

TAG = 16
MESSAGE_MAX = 65535 - TAG
"""Bytes of plaintext in one message."""
_LENGTH = struct.Struct(">H")
_NONCE = struct.Struct("<4xQ")


class Encryptor:
    """The sending direction of a connection."""

    def __init__(self, key: bytes, count: int = 0) -> None:
        self._aead = ChaCha20Poly1305(key)
        self._count = count

    def encrypt(self, *pieces: bytes | memoryview) -> memoryview:
        """Return the messages that carry the pieces. They must be sent, whole and in this order."""
        size = sum(map(len, pieces))
        # Any two consecutive messages carry more than one full message: this bounds their number.
        out, at = memoryview(bytearray(size + (2 * size // MESSAGE_MAX + 2) * (_LENGTH.size + TAG))), 0
        for plain in _messages(pieces):
            length = len(plain) + TAG
            _LENGTH.pack_into(out, at, length)
            at += _LENGTH.size
            self._aead.encrypt_into(_NONCE.pack(self._count), plain, None, out[at : at + length])
            self._count += 1
            at += length
        return out[:at]


def _messages(pieces: Sequence[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the plaintext of each message, as many pieces as fit. Each is joined just before it is encrypted, while it
    is in the CPU cache."""
    gathered: list[bytes | memoryview] = []
    room = MESSAGE_MAX
    for piece in pieces:
        if len(piece) > room and gathered:
            yield b"".join(gathered)
            gathered, room = [], MESSAGE_MAX
        while len(piece) > MESSAGE_MAX:
            yield piece[:MESSAGE_MAX]
            piece = memoryview(piece)[MESSAGE_MAX:]
        if piece:
            gathered.append(piece)
            room -= len(piece)
    if gathered:
        yield b"".join(gathered)


class Decryptor:
    """The receiving direction of a connection."""

    def __init__(self, key: bytes, count: int = 0) -> None:
        self._aead = ChaCha20Poly1305(key)
        self._count = count
        self._rest = bytearray()
        """The start of an incomplete message."""

    def decrypt(self, data: bytes | memoryview) -> list[bytes]:
        """Return the plaintexts of all messages that are complete now. `data`: received bytes, split anywhere. Raises
        `Malformed`."""
        view, at, plaintexts = memoryview(data), 0, []
        while self._rest and at < len(view):
            need = _LENGTH.size - len(self._rest)
            if need <= 0:
                need = _LENGTH.size + _LENGTH.unpack_from(self._rest)[0] - len(self._rest)
            part = view[at : at + need]
            self._rest += part
            at += len(part)
            if self._complete(self._rest):
                plaintexts += self._decrypt_message(memoryview(bytes(self._rest))[_LENGTH.size :])
                self._rest.clear()
        while self._complete(view, at):
            start = at + _LENGTH.size
            at = start + _LENGTH.unpack_from(view, at)[0]
            plaintexts += self._decrypt_message(view[start:at])
        self._rest += view[at:]
        return plaintexts

    def _complete(self, buffer: bytearray | memoryview, at: int = 0) -> bool:
        available = len(buffer) - at
        return available >= _LENGTH.size and available >= _LENGTH.size + _LENGTH.unpack_from(buffer, at)[0]

    def _decrypt_message(self, message: memoryview) -> list[bytes]:
        try:
            if len(message) < TAG:
                raise Malformed(f"a Noise message of {len(message)} bytes")
            plain = self._aead.decrypt(_NONCE.pack(self._count), message, None)
        except InvalidTag:
            raise Malformed(f"Noise message {self._count} fails authentication") from None
        self._count += 1
        return [plain] if plain else []
