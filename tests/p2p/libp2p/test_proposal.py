"""A stream's protocol leaves with its first frame, and a refusal is known at once."""

from collections.abc import Awaitable, Callable

import pytest

from echo2.p2p.errors import Unreachable
from echo2.p2p.libp2p.proposal import MOST_PROTOCOL_BYTES, NEGOTIATION, confirm, proposal
from tests.support.libp2p_peers import echo, new_peer, on_trio, running


def answers(data: bytes) -> Callable[[int], Awaitable[bytes]]:
    """Read from these bytes."""
    rest = bytearray(data)

    async def exactly(count: int) -> bytes:
        part = bytes(rest[:count])
        del rest[:count]
        return part

    return exactly


def test_a_proposal_has_the_bytes_of_multistream_select() -> None:
    assert proposal("/a/1") == b"\x13/multistream/1.0.0\n\x05/a/1\n"
    assert len(proposal("x" * MOST_PROTOCOL_BYTES)) == len(NEGOTIATION) + 1 + MOST_PROTOCOL_BYTES + 1
    with pytest.raises(ValueError, match="more than 126 bytes"):
        proposal("x" * (MOST_PROTOCOL_BYTES + 1))


async def test_the_other_side_agrees_by_saying_the_same() -> None:
    await confirm("/a/1", answers(proposal("/a/1")))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (NEGOTIATION + b"\x03na\n", "does not serve /a/1"),
        (NEGOTIATION + b"\x05/b/1\n", "does not serve /a/1"),
        (NEGOTIATION + b"\xff\x01", "does not serve /a/1"),
        (NEGOTIATION, "does not serve /a/1"),
        (b"GET / HTTP/1.1\r\nHost: me\r\n\r\n", "does not negotiate protocols"),
        (b"", "does not negotiate protocols"),
    ],
    ids=["na", "another protocol", "a long name", "the end", "another negotiation", "nothing"],
)
async def test_anything_else_is_no_agreement(said: bytes, why: str) -> None:
    with pytest.raises(Unreachable, match=why):
        await confirm("/a/1", answers(said))


async def test_over_libp2p_a_protocol_that_is_not_served_is_known_at_once() -> None:
    a, b = new_peer(), new_peer()
    a.serve("echo", echo, limit=100)
    async with running(a, b):

        async def ask(transport) -> None:  # type: ignore[no-untyped-def]
            stream = await transport.open(a.peer_id, "/not/served")
            await stream.send(b"anything")
            with pytest.raises(Unreachable, match="did not agree to /not/served"):
                await stream.receive(100)
            with pytest.raises(Unreachable):
                await stream.receive(100)

        await on_trio(b, ask)
        assert await b.request(a.peer_id, "echo", b"x", timeout=60)
