"""The sources of heads and proofs of the ledger: the coordinator, other peers, and the coordinator over HTTPS.

Rules
1. The coordinator is asked first. Where its answer fails, or lacks what is wanted, up to `OTHER_PEERS` peers at random
   are asked, and then the coordinator over HTTPS: another route shows whether the first one is at fault.
2. Peers have heads with their consistency proofs, and no entries: proofs of entries come from the coordinator alone.
3. HTTPS is asked where the owner admits that route and the invite offers it, by a connection of its own per request, at
   the addresses and within the limits of p2p/discovery/operator_addresses.py.
4. An answer counts by its proofs, whatever its source.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, NamedTuple

import anyio

from echo2.p2p.guard import one_error
from echo2.p2p.https.client import HttpsClient
from echo2.p2p.limits.origin import Origin
from echo2.p2p.network import Links, Rpc
from echo2.protocol.ledger_heads import LedgerRequest, LedgerResponse
from echo2.protocol.methods import LEDGER

OTHER_PEERS: Final = 2
"""Peers asked per round."""
LEDGER_ANSWER_SECONDS: Final = 15.0
"""Seconds to wait for an answer."""

Source = Callable[[LedgerRequest], Awaitable[LedgerResponse]]
"""Asks one peer. Raises `P2PError`."""


class PeerSource(NamedTuple):
    """A peer as a source. `party`: party that it belongs to (p2p/limits/origin.py)."""

    party: str
    ask: Source


class LedgerSources:
    """The sources of one node. `coordinator`: returns its peer id; None: it is not connected. `origin_of`: returns the
    origin of a peer. `https`: asks the coordinator over HTTPS; None: that route is not there."""

    def __init__(
        self, rpc: Rpc, links: Links, coordinator: Callable[[], str | None], origin_of: Callable[[str], Origin],
        seed: int, https: Source | None = None,
    ) -> None:  # fmt: skip
        self._rpc, self._links, self._coordinator, self._https = rpc, links, coordinator, https
        self._origin_of = origin_of
        self._random = random.Random(seed)

    def of(self, peer: str) -> Source:
        """Return a connected peer as a source."""

        async def ask(request: LedgerRequest) -> LedgerResponse:
            return await LEDGER.ask(self._rpc, peer, request, timeout=LEDGER_ANSWER_SECONDS)

        return ask

    def coordinator(self) -> Source | None:
        """Return the coordinator; None: it is not connected."""
        peer = self._coordinator()
        return None if peer is None else self.of(peer)

    async def peers(self, most: int = OTHER_PEERS) -> list[PeerSource]:
        """Return up to `most` connected peers at random, none of them the coordinator."""
        others = [peer for peer in await self._links.peers() if peer != self._coordinator()]
        chosen = self._random.sample(others, min(most, len(others)))
        return [PeerSource(self._origin_of(peer).party, self.of(peer)) for peer in chosen]

    async def instead(self, *, entries: bool) -> AsyncIterator[Source]:
        """Yield the sources that are asked where the coordinator fails (rules 1 to 3). `entries`: entries for proofs of
        entries."""
        for peer in [] if entries else await self.peers():
            yield peer.ask
        if self._https is not None:
            yield self._https


def over_https(peer: str, pin: bytes, dial: Callable[[Links], Awaitable[str]]) -> Source:
    """Return the coordinator over HTTPS as a source (rule 3). `peer`: this node's peer id. `pin`: the hash of the
    coordinator's HTTPS key, from the invite. `dial`: dials the coordinator by these links; returns its peer id."""

    async def ask(request: LedgerRequest) -> LedgerResponse:
        client = HttpsClient(peer, pin, patience=LEDGER_ANSWER_SECONDS)
        with one_error():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.run)
                await client.ready()
                coordinator = await dial(client)
                answer = await LEDGER.ask(client, coordinator, request, timeout=LEDGER_ANSWER_SECONDS)
                tasks.cancel_scope.cancel()
        return answer

    return ask
