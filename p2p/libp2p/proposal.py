"""A stream's protocol, proposed with its first bytes instead of two round trips before them.

Multistream-select 1.0.0 (https://github.com/multiformats/multistream-select): both sides name the negotiation itself,
then the opener a protocol, which the other side repeats, or answers with "na". The opener knows here what the other
side must say, so it sends its part and goes on, as go-libp2p does with a single protocol; the other side's part comes
before its first frame.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from echo2.p2p.errors import Unreachable

NEGOTIATION: Final = b"\x13/multistream/1.0.0\n"
MOST_PROTOCOL_BYTES: Final = 126
"""Most bytes of a protocol's name: its length, with the newline, is one byte then."""


def proposal(protocol: str) -> bytes:
    """Return the opener's part. Raises ValueError for a name that is too long."""
    name = protocol.encode() + b"\n"
    if len(name) > MOST_PROTOCOL_BYTES + 1:
        raise ValueError(f"{protocol} has more than {MOST_PROTOCOL_BYTES} bytes")
    return NEGOTIATION + bytes([len(name)]) + name


async def confirm(protocol: str, exactly: Callable[[int], Awaitable[bytes]]) -> None:
    """Read the other side's part. `exactly`: reads so many bytes. Raises `Unreachable` unless it agrees."""
    if await exactly(len(NEGOTIATION)) != NEGOTIATION:
        raise Unreachable("the other side does not negotiate protocols")
    length = await exactly(1)
    if not length or length[0] > MOST_PROTOCOL_BYTES + 1 or await exactly(length[0]) != protocol.encode() + b"\n":
        raise Unreachable(f"the other side does not serve {protocol}")
