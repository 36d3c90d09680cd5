"""Rebuild payloads that the disk budget dropped, when a node requests one.

Rules
1. Only payloads of edges signed here are rebuilt, only if the weights at their ends can be read from the store
   (stored_weights.py), one at a time: other or repeated requests cost nothing.
2. A rebuilt payload is served only if its hash is that of the signed Edge, so its bytes are the original ones.
3. A rebuilt payload stays for at least `REBUILT_KEPT_SECONDS` seconds, so that the requesting node can fetch it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import anyio.to_thread
import structlog

from echo2.coordinator.publishing.stored_weights import StoredWeights
from echo2.p2p.handlers import Handlers
from echo2.protocol.methods import REMAKE
from echo2.protocol.requests import DocumentsRequest
from echo2.runtime.errors import DiskFull
from echo2.weights.documents import Edge
from echo2.weights.edges import rebuild
from echo2.weights.errors import WeightsError
from echo2.weights.store import Store

REBUILT_KEPT_SECONDS: Final = 3600.0
"""Seconds (rule 3)."""

log = structlog.get_logger("coordinator")


class PayloadRebuilder:
    """Rebuilds dropped payloads: the handler of "remake". `edges`: returns all signed edges. `clock`: seconds."""

    def __init__(
        self, store: Store, handlers: Handlers, *, edges: Callable[[], Iterable[Edge]], clock: Callable[[], float]
    ) -> None:
        self._store, self._edges, self._clock = store, edges, clock
        self._weights = StoredWeights(store, edges)
        self._wanted: dict[bytes, Edge] = {}
        self._rebuilt_at: dict[bytes, float] = {}
        self._asked = asyncio.Event()
        REMAKE.serve(handlers, self._answer)

    def possible(self) -> set[bytes]:
        """Return the hashes of the payloads that are stored or can be rebuilt."""
        roots = {None, *self._weights.roots()}
        return {edge.payload_hash for edge in self._edges() if edge.base_root in roots and edge.root in roots}

    def recent(self) -> set[bytes]:
        """Return the hashes of the payloads that were rebuilt in the last `REBUILT_KEPT_SECONDS` seconds (rule 3)."""
        self._rebuilt_at = {
            digest: at for digest, at in self._rebuilt_at.items() if self._clock() - at < REBUILT_KEPT_SECONDS
        }
        return set(self._rebuilt_at)

    async def run(self, share: Callable[[list[Edge]], Awaitable[None]]) -> None:
        """Rebuild requested payloads, until cancelled. `share`: serves the payloads of the given edges."""
        while True:
            self._asked.clear()
            for digest, edge in list(self._wanted.items()):
                if await anyio.to_thread.run_sync(self._make, edge):
                    self._rebuilt_at[digest] = self._clock()
                    log.info("payload made again", version=edge.version, base=edge.base, nbytes=edge.length)
                    await share([edge])
                del self._wanted[digest]
            if not self._wanted:
                await self._asked.wait()

    async def _answer(self, peer: str, ask: DocumentsRequest) -> None:
        """Queue the requested payloads and return an empty answer at once; the node fetches each once it is served."""
        asked = set(ask.hashes)
        for edge in self._edges():
            if edge.payload_hash in asked and self._store.payload(edge.payload_hash) is None:
                self._wanted.setdefault(edge.payload_hash, edge)
                self._asked.set()

    def _make(self, edge: Edge) -> bool:
        """Rebuild one payload into the store; return False if that is not possible."""
        out = self._store.scratch(f"{edge.payload_hash.hex()}.remade")
        try:
            base = None if edge.base_root is None else self._weights.read(edge.base_root)
            new = self._weights.read(edge.root)
            if new is None or (base is None and edge.base_root is not None):
                return False
            rebuild(edge, base, new, out)
            self._store.put_payload(edge.era, edge.version, edge.payload_hash, out)
        except (WeightsError, DiskFull, FileNotFoundError) as error:
            log.error("payload rebuild failed", version=edge.version, base=edge.base, reason=str(error))
            return False
        return True
