"""The asks of a key in a run with a market: it seals one for the coming epoch, opens it, and lets it stand."""

from typing import Final

import anyio

from benchmarks.attacks.flood_keys import Key
from echo2.p2p.identity import peer_id
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.market import EpochTerms, MarketRequest, MarketResponse
from echo2.protocol.requests import Refusal
from echo2.protocol.sealed_asks import NANO, commitment

ASK: Final = NANO
"""Nano units per hour."""
SALT: Final = b"sixteen bytes..."
_LOOK: Final = 0.25
"""Seconds between two looks at the market."""
ENOUGH: Final = 1_000
"""Milliseconds that have to be left for sealing: a key without accepted work seals one ask per hour."""


async def told(key: Key, request: MarketRequest) -> MarketResponse:
    """Send a request of the method `market`; ask again while the coordinator is busy."""
    while True:
        answer = await key.request("market", encode(request))
        if not isinstance(answer, Refusal):
            return decode(answer, MarketResponse)
        await anyio.sleep(max(_LOOK, (answer.retry_after or 0) / 1000))


async def coming(key: Key, *, closed: bool, since: int = 0) -> EpochTerms:
    """Wait for an epoch after number `since` that is announced: whose asks are sealed for a while yet, or opened."""
    while True:
        terms = (await told(key, MarketRequest())).coming
        if terms is not None and terms.epoch > since:
            left = terms.closes - key.clock()
            if left < 0 if closed else left > ENOUGH:
                return terms
        await anyio.sleep(_LOOK)


def sealed(key: Key, epoch: int) -> MarketRequest:
    """Return the request that seals `ASK`."""
    hash_ = commitment(key.run, peer_id(key.public), epoch, ASK, SALT)
    return MarketRequest(epoch=epoch, sealed=hash_)


async def stand(key: Key) -> None:
    """Seal and open an ask, until one stands."""
    while True:
        terms = await coming(key, closed=False)
        await told(key, sealed(key, terms.epoch))
        await anyio.sleep(max(0, terms.closes - key.clock()) / 1000 + _LOOK)
        if (await told(key, MarketRequest(epoch=terms.epoch, ask=ASK, salt=SALT))).ask is not None:
            return
