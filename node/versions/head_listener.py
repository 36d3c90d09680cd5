"""Hear the Heads of a run: verify each, follow the newest, and adopt it together with the Version that it names.

Rules
1. A Head is passed on by gossip only once verified.
2. A node that heard no newer Head for half of a Head's life asks a few peers and the coordinator for theirs, and again
   after each further half. Gossip may lose a Head, and the coordinator signs a new one every third of its life.
3. A Head that needs a later Root is verified after that Root was requested (node/versions/document_exchange.py, rule
   5). A candidate, the newest Head not yet adopted, is dropped if a later Root was adopted since.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from echo2.engines.process.change_time import StepPace
from echo2.node.run_context import RunContext
from echo2.node.trust.trusted_set import NotSigned, RootExpired, order
from echo2.node.versions.acknowledgements import Acknowledger
from echo2.node.versions.document_exchange import DocumentExchange
from echo2.p2p.envelope import Verified
from echo2.p2p.errors import P2PError
from echo2.p2p.network import Gossip
from echo2.protocol.versions import Head, head_topic

HEAD_LIFE: Final = 180.0
"""Seconds assumed as a Head's life before the first Head is heard."""
LIFE_BOUNDS: Final = 10.0, 3600.0
"""Seconds: least and most that rule 2 assumes as a Head's life."""

_log = structlog.get_logger("node")


class HeadListener:
    """The Heads that a node hears. `news`: set by a newer Head. `source`: peer that sent the newest. `pace`: pace of
    the steps that they announce."""

    def __init__(
        self,
        gossip: Gossip,
        context: RunContext,
        documents: DocumentExchange,
        acknowledger: Acknowledger,
        note: Callable[[str], None],
    ) -> None:
        """`note`: takes a sentence that says why a Head was refused."""
        self._trust_store, self._store, self._clock = context.trust_store, context.store, context.clock
        self._documents, self._acknowledger, self._note = documents, acknowledger, note
        self._candidate: Verified[Head] | None = None
        self._candidate_root: int | None = None
        """Serial of the Root under which the candidate verified."""
        self.source: str | None = None
        self.news = asyncio.Event()
        self.pace = StepPace()
        self._heard = asyncio.Event()
        gossip.subscribe(head_topic(context.run), self.hear)

    @property
    def newest(self) -> Head | None:
        """The newest Head heard, whose documents may not be here yet."""
        newest = self._candidate or self._trust_store.trusted.head
        return None if newest is None else newest.value

    async def hear(self, peer: str, sealed: bytes) -> bool:
        """Verify a sealed Head from any peer, and follow the newest. Return whether to pass it on: it verifies, and is
        newer than every Head heard before. An older Head is not the peer's fault."""
        newest = self.newest
        try:
            verified = await self._verify_head(peer, sealed)
        except P2PError as error:
            self._note(f"Head from {peer}: {error}")
            return False
        head = verified.value
        if self._candidate_root != self._trust_store.serial:
            self._candidate = None
        if self._candidate is not None and order(head) <= order(self._candidate.value):
            return False
        self._candidate, self.source = verified, peer
        self._candidate_root = self._trust_store.serial
        self._acknowledger.on_message(head.era, head.version)
        self.pace.on_head(head.version, head.issued)
        self.news.set()
        self._heard.set()
        _log.debug("head heard", version=head.version, sequence=head.sequence)
        return newest is None or order(head) > order(newest)

    async def _verify_head(self, peer: str, sealed: bytes) -> Verified[Head]:
        """Verify a Head, after a request for a later Root if the Head needs one (rule 3). Raises as
        `TrustStore.offer_head`."""
        serial = self._trust_store.serial
        try:
            head = self._trust_store.offer_head(sealed, self._clock.now())
        except (NotSigned, RootExpired):
            await self._documents.seek_roots(None if serial is None else serial + 1, peer)
            if self._trust_store.serial == serial:
                raise
            return self._trust_store.offer_head(sealed, self._clock.now())
        await self._documents.seek_roots(head.value.root_serial, peer)
        return head if self._trust_store.serial == serial else self._trust_store.offer_head(sealed, self._clock.now())

    async def search(self) -> None:
        """Ask a few peers and the coordinator for their Heads."""
        for peer, sealed in await self._documents.heads():
            await self.hear(peer, sealed)

    async def keep_hearing(self) -> None:
        """Ask for Heads whenever no newer one arrived for half of a Head's life (rule 2), until cancelled."""
        while True:
            self._heard.clear()
            try:
                async with asyncio.timeout(self._life() / 2):
                    await self._heard.wait()
            except TimeoutError:
                _log.debug("no head heard", seconds=round(self._life() / 2, 1))
                await self.search()

    def _life(self) -> float:
        """Return the seconds that a Head of this run lives, clamped to `LIFE_BOUNDS`."""
        head = self.newest
        life = HEAD_LIFE if head is None else (head.expires - head.issued) / 1000
        return min(max(life, LIFE_BOUNDS[0]), LIFE_BOUNDS[1])

    async def believe(self) -> Verified[Head] | None:
        """Adopt the newest Head heard, with its Version; return the trusted Head."""
        candidate = self._candidate
        if candidate is None:
            return self._trust_store.trusted.head
        head, believed = candidate.value, self._trust_store.trusted.version
        if believed is None or (head.era, head.version) > (believed.value.era, believed.value.version):
            try:
                documents = await self._documents.get([head.version_hash, head.index_hash], hint=self.source)
                self._trust_store.update_version(candidate.sealed, documents[head.version_hash], self._clock.now())
            except P2PError:
                # By its high number, a Head without valid documents would otherwise hide every later honest one.
                if self._candidate is candidate:
                    self._candidate = None
                raise
            self._store.put_document("version", head.era, head.version, documents[head.version_hash])
            self._store.put_document("index", head.era, head.version, documents[head.index_hash])
        return self._trust_store.trusted.head
