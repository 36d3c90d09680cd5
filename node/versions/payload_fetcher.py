"""The payloads of edges on this node's disk: fetched once, served to peers, dropped beyond the owner's quota.

Rules
1. A fetch during which no chunk arrives for `FETCH_PATIENCE` seconds is abandoned; its chunks are kept for the next
   attempt. A slow connection alone does not end a fetch.
2. If a fetch receives no chunk in its first `ASK_AFTER` seconds, the node asks the coordinator to rebuild the payload,
   which the coordinator may have dropped.
3. A payload is verified chunk by chunk (p2p/swarm/payload_file.py), stored, and served to others from its first chunk
   on.
4. A stored payload that no longer matches its Edge is logged, and not served. Once it is needed, it is fetched again.
5. Local weights and payloads together stay within the quota, and within rule 4 of node/versions/local_weights.py. The
   oldest payloads are dropped first, and those of the loaded version never.
6. A fetch that takes longer than `PROGRESS_SECONDS` is reported to the owner: share, rate, time left. Once a payload
   has come, level info has one such line per `LATER_SECONDS`, as behind a slow line every version takes long. On a
   terminal the first payload has a bar instead, every `BAR_SECONDS`.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import structlog

from echo2.node.versions.acknowledgements import Acknowledger
from echo2.node.versions.fetch_progress import FetchProgress
from echo2.p2p.envelope import Verified
from echo2.p2p.errors import P2PError
from echo2.p2p.network import FetchReport, Links, PayloadExchange, Rpc
from echo2.p2p.payload_manifest import Manifest
from echo2.protocol.methods import REMAKE
from echo2.protocol.requests import DocumentsRequest
from echo2.protocol.versions import manifest_of_edge
from echo2.runtime.bottom_line import BOTTOM
from echo2.runtime.errors import LocalFault
from echo2.runtime.log_throttle import LogThrottle
from echo2.weights.documents import Edge
from echo2.weights.store import Store

FETCH_PATIENCE: Final = 60.0
"""Most seconds from one chunk of a payload to the next."""
ASK_AFTER: Final = 5.0
"""Seconds from the start of a fetch until, without a chunk, the coordinator is asked to rebuild the payload."""
PROGRESS_SECONDS: Final = 10.0
"""Seconds from one report of a fetch's progress to the next."""
BAR_SECONDS: Final = 1.0
LATER_SECONDS: Final = 300.0
PAYLOAD_ANSWER_SECONDS: Final = 10.0
"""Seconds to wait for the coordinator's answer."""
TAKEN_KEPT: Final = 8
"""Latest versions whose fetched bytes are counted separately."""

_log = structlog.get_logger("node")


class Stalled(Exception):
    """A fetch was abandoned, because no peer sends the payload."""


class PayloadFetcher:
    """The payloads on this disk. `taken_bytes`: bytes fetched since the start. `taken`: these bytes by (era, version),
    for the last `TAKEN_KEPT`."""

    def __init__(
        self,
        exchange: PayloadExchange,
        rpc: Rpc,
        links: Links,
        store: Store,
        acknowledger: Acknowledger,
        *,
        coordinator: Callable[[], str | None],
    ) -> None:
        """`coordinator`: returns its peer id, or None; it is asked for chunks last."""
        self._exchange, self._rpc, self._links = exchange, rpc, links
        self._store, self._coordinator = store, coordinator
        self._acknowledger = acknowledger
        self.taken: dict[tuple[int, int], int] = {}
        self.taken_bytes = 0
        self._reports = LogThrottle(lambda: asyncio.get_running_loop().time(), LATER_SECONDS)

    async def get(self, verified: Verified[Edge]) -> Path:
        """Return the file of an edge's payload, fetched if it is not here. One fetch at a time: all payload bytes that
        this node receives meanwhile count as its progress (rules 1 and 2). Raises `Stalled`, `P2PError`."""
        edge = verified.value
        stored = await self._stored_payload(edge)
        if stored is not None:
            return stored
        incoming = self._store.incoming(edge.payload_hash)
        before = (await self._exchange.traffic()).received
        fetch = self._exchange.fetch(manifest_of_edge(edge), incoming, fallback=self._coordinator())
        fetching = asyncio.ensure_future(fetch)
        try:
            await self._wait_while_progressing(fetching, edge, before)
            fetched = fetching.result()
        finally:
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)
        self._acknowledger.on_payload(edge.payload_hash, fetched)
        path = await anyio.to_thread.run_sync(
            self._store.put_payload, edge.era, edge.version, edge.payload_hash, incoming
        )
        await self._exchange.share(manifest_of_edge(edge), path)
        self._count(edge)
        _log.debug("payload fetched", version=edge.version, nbytes=edge.length)
        return path

    async def _stored_payload(self, edge: Edge) -> Path | None:
        """Return the stored payload of an edge, and serve it: a call of `get` that was cancelled may have stored it
        without. One that does not match is dropped (rule 4)."""
        path = self._store.payload(edge.payload_hash)
        if path is None:
            return None
        try:
            await self._exchange.share(manifest_of_edge(edge), path)
        except LocalFault as fault:
            _log.warning("payload fetched again", version=edge.version, reason=str(fault))
            await self._exchange.unshare(edge.payload_hash)
            await anyio.to_thread.run_sync(self._store.drop_file, path)
            return None
        return path

    async def fetch_file(self, manifest: Manifest, path: Path) -> None:
        """Fetch a file that belongs to no edge, such as a model's config.json, to `path`. Raises `PeerFault` for a
        manifest beyond the bounds, `LocalFault`."""
        await self._exchange.fetch(manifest, path, fallback=self._coordinator())

    async def share_all(self, edges: Iterable[Verified[Edge]]) -> None:
        """Serve the stored payloads of `edges` to peers (rule 4)."""
        for edge in (verified.value for verified in edges):
            path = self._store.payload(edge.payload_hash)
            if path is not None:
                try:
                    await self._exchange.share(manifest_of_edge(edge), path)
                except LocalFault as fault:
                    _log.warning("payload not served", version=edge.version, reason=str(fault))

    async def tidy(self, era: int, version: int, quota: int) -> None:
        """Drop unfinished fetches, and the oldest payloads beyond `quota` bytes except those of (era, version) (rule
        5)."""
        self._store.abandon(())
        await self._collect({(era, version)}, quota)

    async def make_room(self, chain: Iterable[Edge], room: Callable[[int], int]) -> None:
        """Drop the oldest payloads beyond the bytes that `room` returns, except those of `chain`. `room`: takes the
        bytes of `chain` that are yet to be fetched."""
        edges = list(chain)
        missing = [edge.length for edge in edges if self._store.payload(edge.payload_hash) is None]
        await self._collect(set(), max(0, room(sum(missing))), spare={edge.payload_hash for edge in edges})

    async def forget(self, since: tuple[int, int], spare: set[bytes]) -> None:
        """Drop payloads of versions before (era, version) `since`, which no index names. `spare`: hashes to keep."""
        kept = {(file.era, file.version) for file in self._store.payloads()}
        await self._collect({place for place in kept if place >= since}, 0, kind="payloads/", spare=spare)

    async def _collect(self, keep: set[tuple[int, int]], most: int, **which: Any) -> None:
        collect = partial(self._store.collect, keep, most, **which)
        for file in await anyio.to_thread.run_sync(collect):
            await self._exchange.unshare(file.hash)

    async def _wait_while_progressing(self, fetching: asyncio.Future[FetchReport], edge: Edge, before: int) -> None:
        """Wait until a fetch is done (rules 1, 2 and 6). `before`: bytes received at its start. Raises `Stalled`."""
        done, _ = await asyncio.wait({fetching}, timeout=ASK_AFTER)
        if not done and (await self._exchange.traffic()).received == before:
            await self._ask(edge)
        now = asyncio.get_running_loop().time
        progress = FetchProgress(edge.length, before, now() - ASK_AFTER)
        as_bar = BOTTOM.visible and not self.taken
        try:
            while not (await asyncio.wait({fetching}, timeout=BAR_SECONDS if as_bar else PROGRESS_SECONDS))[0]:
                progress.on_received((await self._exchange.traffic()).received, now())
                if progress.quiet >= FETCH_PATIENCE:
                    peers = len(await self._links.peers())
                    raise Stalled(
                        f"no chunk of the payload for version {edge.version} ({edge.length} bytes) arrived for "
                        f"{FETCH_PATIENCE:.0f} s from {peers} connected peers"
                    )
                if as_bar:
                    BOTTOM.show(f"version {edge.version} {progress.bar} {progress.describe()}")
                else:
                    say = _log.info if self._reports.count("") or not self.taken else _log.debug
                    say(f"fetching version {edge.version}: {progress.describe()}")
        finally:
            BOTTOM.clear()

    async def _ask(self, edge: Edge) -> None:
        """Ask the coordinator to rebuild the payload of an edge (rule 2)."""
        coordinator = self._coordinator()
        if coordinator is not None:
            with contextlib.suppress(P2PError):  # without an answer, the fetch continues all the same
                ask = DocumentsRequest(hashes=[edge.payload_hash])
                await REMAKE.ask(self._rpc, coordinator, ask, timeout=PAYLOAD_ANSWER_SECONDS)

    def _count(self, edge: Edge) -> None:
        place = (edge.era, edge.version)
        self.taken_bytes += edge.length
        self.taken[place] = self.taken.get(place, 0) + edge.length
        while len(self.taken) > TAKEN_KEPT:
            del self.taken[next(iter(self.taken))]
