"""Read the PROXY header, versions 1 and 2, that a proxy sends before its client's bytes. Pure but for `read_source`.

1. The header is that of haproxy's proxy-protocol.txt. Addresses of TCP over IPv4 and IPv6 are taken. UNKNOWN, LOCAL (a
   proxy's own check) and other families leave the connection its own address. Further fields (TLVs) are skipped.
2. A header is required of a trusted proxy, within `HEADER_SECONDS`, and not one byte after it is read. Of all others it
   is refused: whoever sends it would choose a party.
3. `proxy-protocol` on PyPI reads it too, with 2,900 lines, and lets struct.error and UnicodeDecodeError out.
"""

import ipaddress
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import anyio

from echo2.p2p.errors import Malformed

HEADER_SECONDS: Final = 5.0
PEEKED_BYTES: Final = 12
"""Bytes that show whether a header begins."""
MOST_V1: Final = 107
MOST_V2: Final = 16 + 1024
"""Bytes of a header."""
_V1, _V2 = b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n"
_SIZES: Final = {0x11: 4, 0x21: 16}
"""Family and protocol of version 2 -> bytes of an address."""

Source = tuple[str, int]
"""An IP address and a port."""
Receive = Callable[[int, int], Awaitable[bytes]]
"""(most bytes, flags of recv) -> bytes of the connection; none at its end."""


class ProxyHeader(NamedTuple):
    """A header of `size` bytes. `source`: the client; None by rule 1."""

    size: int
    source: Source | None


def begins_header(data: bytes) -> bool:
    """Tell whether bytes begin with a header. Nothing else that is spoken here begins so."""
    return data.startswith((_V1, _V2))


def may_begin_header(data: bytes) -> bool:
    """Tell whether bytes begin with a header, or may with more of them."""
    return bool(data) and (begins_header(data) or _V1.startswith(data) or _V2.startswith(data))


def unnamed_proxy(ip: str) -> str:
    """Return the sentence for a header from an address that is not trusted."""
    return f"{ip} sends a PROXY header, and network.trusted_proxies does not name it"


def parse(data: bytes) -> ProxyHeader | None:
    """Return the header at the start of `data`; None: more bytes are needed. Raises `Malformed`."""
    if not may_begin_header(data):
        raise Malformed("no PROXY header")
    return _parse_v1(data) if data.startswith(_V1[:1]) else _parse_v2(data)


def _parse_v1(data: bytes) -> ProxyHeader | None:
    text, end, _ = data[:MOST_V1].partition(b"\r\n")
    if not end:
        if len(data) >= MOST_V1:
            raise Malformed(f"a PROXY header of more than {MOST_V1} bytes")
        return None
    words = text.decode("ascii", "replace").split(" ")
    size = len(text) + 2
    if words[1] == "UNKNOWN":
        return ProxyHeader(size, None)
    try:
        _, family, source, _, port, _ = words
        version = {"TCP4": 4, "TCP6": 6}[family]
        if ipaddress.ip_address(source).version != version or not (port.isdecimal() and int(port) < 65536):
            raise ValueError
    except (KeyError, ValueError):
        raise Malformed(f"not a PROXY header: {text[:MOST_V1]!r}") from None
    return ProxyHeader(size, (source, int(port)))


def _parse_v2(data: bytes) -> ProxyHeader | None:
    if len(data) < 16:
        return None
    command, family, length = struct.unpack_from("!BBH", data, 12)
    size = 16 + length
    if command not in (0x20, 0x21) or size > MOST_V2:
        raise Malformed(f"a PROXY header of version {command >> 4}, command {command & 15} and {size} bytes")
    if len(data) < size:
        return None
    width = _SIZES.get(family, 0)
    if command == 0x20 or not width:
        return ProxyHeader(size, None)
    if length < 2 * width + 4:
        raise Malformed("a PROXY header without its addresses")
    (port,) = struct.unpack_from("!H", data, 16 + 2 * width)
    return ProxyHeader(size, (str(ipaddress.ip_address(data[16 : 16 + width])), port))


async def read_source(receive: Receive) -> Source | None:
    """Read a trusted proxy's header, and not one byte more (rule 2). Return the client's address; None: the
    connection's own counts. Raises `Malformed`."""
    data = b""
    try:
        with anyio.fail_after(HEADER_SECONDS):
            while True:
                piece = await receive(MOST_V2 - len(data), socket.MSG_PEEK)
                header = parse(data + piece)
                taken = (len(piece) if header is None else header.size - len(data)) if piece else 0
                if not taken:
                    raise Malformed("the connection ended within its PROXY header")
                data += await receive(taken, 0)
                if header is not None:
                    return header.source
    except TimeoutError:
        raise Malformed(f"no PROXY header within {HEADER_SECONDS:g} s") from None
