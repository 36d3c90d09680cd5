"""PROXY headers: those of haproxy and of another implementation, cut at each byte, and malformed ones."""

import pytest

from echo2.p2p.errors import Malformed
from echo2.p2p.limits import proxy_header
from echo2.p2p.limits.proxy_header import MOST_V1, ProxyHeader, begins_header, may_begin_header, parse, read_source

V2 = "0d0a0d0a000d0a515549540a"
HEADERS = {
    "version 1, IPv4": (b"PROXY TCP4 8.8.8.8 192.0.2.7 56324 4310\r\n", ("8.8.8.8", 56324)),
    "version 1, IPv6": (b"PROXY TCP6 2606:4700::1111 2001:db8::7 56324 4310\r\n", ("2606:4700::1111", 56324)),
    "version 1, unknown": (b"PROXY UNKNOWN\r\n", None),
    "version 1, unknown with addresses": (b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", None),
    "version 2, IPv4": (bytes.fromhex(f"{V2}2111000c08080808c0000207dc0410d6"), ("8.8.8.8", 56324)),
    "version 2, IPv6": (
        bytes.fromhex(f"{V2}212100242606470000000000000000000000111120010db8000000000000000000000007dc0410d6"),
        ("2606:4700::1111", 56324),
    ),
    "version 2 with a field": (
        bytes.fromhex(
            f"{V2}212100342606470000000000000000000000111120010db8000000000000000000000007dc0410d6"
            "02000d636f6f72642e6578616d706c65"
        ),
        ("2606:4700::1111", 56324),
    ),
    "version 2, the proxy's own check": (bytes.fromhex(f"{V2}20000000"), None),
    "version 2, a Unix socket": (bytes.fromhex(f"{V2}213100d8") + bytes(216), None),
}
"""Those of version 2 as `proxy-protocol` 0.11.3 writes them."""
MALFORMED = {
    "nothing of a header": b"\x13/multistream/1.0.0\n",
    "a request of HTTP": b"GET / HTTP/1.1\r\n",
    "no addresses": b"PROXY TCP4\r\n",
    "an address of the other family": b"PROXY TCP4 2606:4700::1 192.0.2.7 1 2\r\n",
    "no address": b"PROXY TCP4 example 192.0.2.7 1 2\r\n",
    "a port that is too large": b"PROXY TCP4 8.8.8.8 192.0.2.7 65536 2\r\n",
    "a port with a sign": b"PROXY TCP4 8.8.8.8 192.0.2.7 +1 2\r\n",
    "bytes that are no text": b"PROXY TCP4 8.8.8.\xff 192.0.2.7 1 2\r\n",
    "an endless line": b"PROXY " + b"x" * MOST_V1,
    "version 3": bytes.fromhex(f"{V2}3111000c") + bytes(12),
    "an unknown command": bytes.fromhex(f"{V2}2211000c") + bytes(12),
    "more bytes than any header has": bytes.fromhex(f"{V2}2111ffff"),
    "addresses that are missing": bytes.fromhex(f"{V2}2111000408080808"),
}


class Wire:
    """A connection with bytes on it. `step`: most bytes that have arrived at a time; `taken`: those read."""

    def __init__(self, data: bytes, step: int = 1 << 20) -> None:
        self.data, self.step, self.taken = data, step, 0

    async def receive(self, most: int, flags: int) -> bytes:
        piece = self.data[self.taken : self.taken + min(most, self.step)]
        self.taken += 0 if flags else len(piece)
        return piece


@pytest.mark.parametrize("name", HEADERS)
async def test_a_header_is_read_whole_or_byte_by_byte_and_nothing_after_it(name: str) -> None:
    header, source = HEADERS[name]
    assert parse(header + b"\x13/multistream") == ProxyHeader(len(header), source)
    assert begins_header(header)
    for step in (1, 7, 1 << 20):
        wire = Wire(header + b"\x13/multistream", step)
        assert await read_source(wire.receive) == source
        assert wire.taken == len(header)


@pytest.mark.parametrize("name", HEADERS)
async def test_a_header_that_is_cut_off_is_refused_at_each_byte(name: str) -> None:
    header, _ = HEADERS[name]
    for size in range(1, len(header)):
        assert may_begin_header(header[:size])
        assert parse(header[:size]) is None
        with pytest.raises(Malformed):
            await read_source(Wire(header[:size]).receive)


@pytest.mark.parametrize("name", MALFORMED)
async def test_what_is_no_header_is_refused(name: str) -> None:
    with pytest.raises(Malformed):
        await read_source(Wire(MALFORMED[name]).receive)


async def test_a_proxy_that_sends_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    import anyio

    async def silent(most: int, flags: int) -> bytes:
        await anyio.sleep_forever()
        return b""

    monkeypatch.setattr(proxy_header, "HEADER_SECONDS", 0.01)
    with pytest.raises(Malformed, match=r"no PROXY header within 0.01 s"):
        await read_source(silent)
