"""Documents by hash: kept in the store, fetched from any peer that has them, served to any peer.

Rules
1. A document from a peer is kept only if its hash is the one requested. Its signature is verified by node/trust.
2. The peer that announced a version is asked first, and the coordinator last, unless it announced the version.
3. Answers to other peers: protocol/document_service.py.
4. A request for a Head also asks for the Roots after the newest one that the requester has; the answer carries them. So
   a node learns new keys of its run from any peer, by any route. Roots are trusted by the run's own signatures alone
   (node/trust/trusted_set.py, rule 1).
5. A Head that the newest Root does not verify, or that names a later Root, makes this node search for that Root. It
   asks the peer that sent the Head, a few others and the coordinator. Such a Head may be forged, so there is at most
   one search per `SEEK_AGAIN` seconds.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final

import structlog

from echo2.node.run_context import RunContext
from echo2.p2p.envelope import document_hash
from echo2.p2p.errors import P2PError, PeerFault, Unreachable
from echo2.p2p.handlers import Handlers
from echo2.p2p.network import Links, Rpc
from echo2.protocol import document_service
from echo2.protocol.methods import DOCUMENTS, HEAD
from echo2.protocol.requests import DocumentsRequest, DocumentsResponse
from echo2.protocol.versions import HeadRequest, HeadResponse

_AT_ONCE: Final = 64
"""Documents per request."""
_OTHER_PEERS: Final = 3
"""Other peers to ask before the coordinator, chosen at random."""
DOCUMENT_ANSWER_SECONDS: Final = 10.0
"""Seconds to wait for one answer."""
SEEK_AGAIN: Final = 10.0
"""Seconds between two searches for Roots, unless the first found its Root."""

_log = structlog.get_logger("node")


class DocumentExchange:
    """The fetching and serving of documents. `coordinator`: returns its peer id, or None."""

    def __init__(
        self,
        handlers: Handlers,
        rpc: Rpc,
        links: Links,
        context: RunContext,
        *,
        coordinator: Callable[[], str | None],
    ) -> None:
        self._rpc, self._links = rpc, links
        self._store, self._trust_store, self._clock = context.store, context.trust_store, context.clock
        self._coordinator = coordinator
        self._random = random.Random(context.seed)
        self._sought = -SEEK_AGAIN
        DOCUMENTS.serve(handlers, self._answer_documents)
        HEAD.serve(handlers, self._answer_head)

    async def get(self, hashes: list[bytes], *, hint: str | None = None) -> dict[bytes, bytes]:
        """Return documents by hash, from the store or from peers. `hint`: a peer that should have them. Raises
        `Unreachable` if one of them is at no peer asked."""
        documents = {wanted: stored for wanted in hashes if (stored := self._store.document(wanted)) is not None}
        for peer in await self._sources(hint):
            missing = [wanted for wanted in hashes if wanted not in documents]
            for first in range(0, len(missing), _AT_ONCE):
                documents |= await self._ask(peer, missing[first : first + _AT_ONCE])
        if absent := [wanted for wanted in hashes if wanted not in documents]:
            raise Unreachable(f"{len(absent)} documents are at no peer, the first {absent[0].hex()[:16]}")
        return documents

    async def heads(self) -> list[tuple[str, bytes]]:
        """Ask a few peers and the coordinator for their Heads; return (peer, sealed Head) pairs, unverified. Adopt the
        Roots in their answers."""
        heads = []
        for peer in await self._sources(None):
            head = await self._head_of(peer)
            if head is not None:
                heads.append((peer, head))
        return heads

    async def seek_roots(self, serial: int | None, hint: str | None) -> None:
        """Ask peers for Roots until the Root with this serial is adopted (rule 5). `serial`: None: no search.
        `hint`: a peer that should have the Root."""
        known, clock = self._trust_store.serial, asyncio.get_running_loop().time()
        if known is None or serial is None or serial <= known or clock - self._sought < SEEK_AGAIN:
            return
        self._sought = clock
        for peer in await self._sources(hint):
            await self._head_of(peer)
            if self._trust_store.serial is not None and self._trust_store.serial >= serial:
                self._sought = -SEEK_AGAIN
                return

    async def _head_of(self, peer: str) -> bytes | None:
        """Ask one peer for its Head, and adopt the Roots in its answer; None without an answer or Head."""
        ask = HeadRequest(root_serial=self._trust_store.serial)
        try:
            answer = await HEAD.ask(self._rpc, peer, ask, timeout=DOCUMENT_ANSWER_SECONDS)
        except (PeerFault, Unreachable):
            return None
        try:
            if answer.roots:
                self._trust_store.update_roots(answer.roots, self._clock.now())
        except P2PError as error:
            _log.warning("Root refused", peer=peer, reason=str(error))
        return answer.head

    async def _sources(self, hint: str | None) -> list[str]:
        """Return the peers to ask, in order (rule 2)."""
        last = self._coordinator()
        others = [peer for peer in await self._links.peers() if peer not in (hint, last)]
        chosen = self._random.sample(others, min(_OTHER_PEERS, len(others)))
        # The peer that announced a version has its documents, or will soon; the coordinator is asked last otherwise.
        return list(dict.fromkeys(peer for peer in (hint, *chosen, last) if peer is not None))

    async def _ask(self, peer: str, hashes: list[bytes]) -> dict[bytes, bytes]:
        """Ask one peer for documents; return those whose hash is right (rule 1)."""
        try:
            answer = await DOCUMENTS.ask(
                self._rpc, peer, DocumentsRequest(hashes=hashes), timeout=DOCUMENT_ANSWER_SECONDS
            )
        except P2PError:
            return {}
        pairs = zip(hashes, answer.documents, strict=False)
        return {wanted: data for wanted, data in pairs if data is not None and document_hash(data) == wanted}

    async def _answer_documents(self, peer: str, ask: DocumentsRequest) -> DocumentsResponse:
        return document_service.documents(ask, self._store.document)

    async def _answer_head(self, peer: str, ask: HeadRequest) -> HeadResponse:
        trusted = self._trust_store.trusted
        newest = None if trusted.head is None else trusted.head.sealed
        return document_service.head(ask, newest, trusted.roots_by_serial)
