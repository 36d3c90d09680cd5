"""Unsigned LEB128 numbers, in place of the library varint, which has no wheel."""

from io import BytesIO
from typing import Final

MOST_VARINT_BYTES: Final = 9
"""Most bytes of a number, by the specification of multiformats."""


def encode(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def decode_stream(stream: BytesIO) -> int:
    """Read a number. Raises ValueError if it is cut off or too long."""
    number = 0
    for place in range(MOST_VARINT_BYTES):
        byte = stream.read(1)
        if not byte:
            raise ValueError("a number ends early")
        number |= (byte[0] & 0x7F) << 7 * place
        if byte[0] < 0x80:
            return number
    raise ValueError(f"a number of more than {MOST_VARINT_BYTES} bytes")
