"""The order in which a node asks for heads and proofs, and the coordinator over HTTPS by real TLS."""

import pytest

from echo2.node.rollouts.ledger_sources import LedgerSources, over_https
from echo2.p2p.errors import Unreachable
from echo2.p2p.limits.origin import Origin
from echo2.protocol.ledger_heads import GrownHead, LedgerRequest, LedgerResponse
from echo2.protocol.methods import LEDGER
from tests.support.https import address_of, served, shown


class Peers:
    """Connected peers, each of which answers with a head of its own name. `down`: does not answer."""

    peer_id = "me"

    def __init__(self, *names: str, down: str = "") -> None:
        self._names, self._down = names, down

    async def peers(self) -> list[str]:
        return list(self._names)

    async def request(self, peer: str, method: str, payload: bytes, *, timeout: float) -> bytes:
        if peer == self._down:
            raise Unreachable(peer)
        return LEDGER.answer.encode(LedgerResponse(heads=[GrownHead(sealed=peer.encode())]))


async def _https(request: LedgerRequest) -> LedgerResponse:
    return LedgerResponse(heads=[GrownHead(sealed=b"https")])


async def asked(sources: LedgerSources, *, entries: bool) -> list[bytes]:
    answers = [await ask(LedgerRequest()) async for ask in sources.instead(entries=entries)]
    return [answer.heads[0].sealed for answer in answers]


def sources_of(peers: Peers, coordinator: str | None = "c", **more: object) -> LedgerSources:
    return LedgerSources(peers, peers, lambda: coordinator, lambda peer: Origin(peer, peer), 1, **more)  # type: ignore[arg-type]


async def test_heads_are_asked_of_two_other_peers_and_then_over_https() -> None:
    *others, last = await asked(sources_of(Peers("c", "a", "b", "d"), https=_https), entries=False)
    assert last == b"https"
    assert len(set(others)) == 2
    assert b"c" not in others


async def test_proofs_of_entries_are_asked_over_https_alone() -> None:
    assert await asked(sources_of(Peers("c", "a"), https=_https), entries=True) == [b"https"]
    assert await asked(sources_of(Peers("c", "a")), entries=True) == []


async def test_without_a_coordinator_there_is_no_first_source() -> None:
    assert sources_of(Peers("a"), coordinator=None).coordinator() is None
    first = sources_of(Peers("c", "a")).coordinator()
    assert first is not None
    assert (await first(LedgerRequest())).heads[0].sealed == b"c"


async def _answer(peer: str, data: bytes) -> bytes:
    after = LEDGER.request.decode(data).after
    return LEDGER.answer.encode(LedgerResponse(heads=[GrownHead(sealed=b"after %d" % (after or 0))]))


async def test_the_coordinator_is_asked_over_https_by_a_connection_of_its_own() -> None:
    async with served(ledger=_answer) as server:
        address = await address_of(server)
        ask = over_https(
            "node", shown().pin, lambda client: client.dial(["/ip4/127.0.0.1/tcp/1/p2p/coordinator", address])
        )
        assert (await ask(LedgerRequest(after=6))).heads == [GrownHead(sealed=b"after 6")]
        assert (await ask(LedgerRequest(after=7))).heads == [GrownHead(sealed=b"after 7")]


async def test_a_coordinator_that_cannot_be_reached_over_https_is_one_error() -> None:
    ask = over_https("node", shown().pin, lambda client: client.dial(["/ip4/127.0.0.1/tcp/1/https/p2p/c"]))
    with pytest.raises(Unreachable):
        await ask(LedgerRequest())
    none = over_https("node", shown().pin, lambda client: client.dial([]))
    with pytest.raises(Unreachable, match="no HTTPS address"):
        await none(LedgerRequest())
