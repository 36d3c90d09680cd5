"""Follows the run's versions: hears Heads, fetches the cheapest chain of edges, has the engine apply it, passes it on.

Rules
1. Nothing is fetched before trust.py has accepted Head, Version, EdgeIndex and Edges; nothing is held before the engine
   has shown that it has the content root of the signed Version.
2. A Head is passed on by gossip only once it has verified. Head, Version and Edges are stored before they are acted on.
3. Payloads come while the engine generates; only their application takes a turn of the engine, one for a whole chain.
4. A fetch to which no chunk comes for `FETCH_PATIENCE` is given up, and a plan made anew for the newest Head; what came
   is kept. A slow line is no stalled one. A fetch that failed is no reason to end: waits grow, and what is held stays.
5. Kept on disk: the version held, and payloads for others up to the owner's quota, oldest dropped first.
"""

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import structlog
from blake3 import blake3

from node.acknowledge import Acknowledger
from node.clock import RunClock
from node.engine import EngineFailed, Held, SupervisedEngine
from node.library import Library
from node.records import Records
from node.trust import order
from p2p.envelope import peek
from p2p.errors import P2PError, PeerFault
from p2p.messages import Asset, Head, decode, head_topic
from p2p.network import Fetched, Manifest, Network
from weights.documents import Edge, Version
from weights.errors import DiskFull, WeightsError
from weights.path import path_to
from weights.store import Store, StoredFile

FETCH_PATIENCE: Final = 60.0
"""Seconds from one chunk of a payload to the next."""
LONGEST_WAIT: Final = 30.0
DOCUMENTS_KEPT: Final = 300
"""Versions back for which Version and EdgeIndex are still served."""
TAKEN_KEPT: Final = 8
_ASSET_ENDINGS: Final = (".json", ".txt", ".model", ".jinja")

_log = structlog.get_logger("node")


class NoWay(Exception):
    """No chain of the known edges leads from what is held to the Head's version."""


class Stalled(Exception):
    """No peer sends the payload that is wanted."""


class Follower:
    """`trouble`: why the newest version is not held, one sentence, empty when it is. `refused`: lies heard.
    `taken_bytes`: of payloads fetched since the start; `taken`: the same by (era, version), the last `TAKEN_KEPT`."""

    def __init__(
        self,
        network: Network,
        records: Records,
        store: Store,
        library: Library,
        engine: SupervisedEngine,
        clock: RunClock,
        *,
        run: bytes,
        acknowledger: Acknowledger,
        coordinator: Callable[[], str | None],
        disk: int,
        seed: int,
    ) -> None:
        """`disk`: bytes that payloads and snapshots may take."""
        self._network, self._records, self._store = network, records, store
        self._library, self._engine, self._clock = library, engine, clock
        self._acknowledger = acknowledger
        self._coordinator, self._disk, self._random = coordinator, disk, random.Random(seed)
        self._live: dict[bytes, Path] = {}
        self._candidate = b""
        self._source: str | None = None
        self._news = asyncio.Event()
        self.changed = asyncio.Event()
        self.trouble = "no version is held yet"
        self.refused: list[str] = []
        self.taken: dict[tuple[int, int], int] = {}
        self.taken_bytes = 0
        network.subscribe(head_topic(run), self.hear)
        engine.spoiled = self._spoiled

    @property
    def held(self) -> Held | None:
        return self._engine.held

    @property
    def newest(self) -> Head | None:
        """The newest Head heard; its documents may not be here yet."""
        return _head_of(self._candidate) if self._candidate else self._records.trusted.head

    async def hear(self, peer: str, sealed: bytes) -> bool:
        """A sealed Head from anyone; whether it verified. Older than what is held counts as a lie by nobody."""
        try:
            head = self._records.offer_head(sealed, self._clock.now())
        except P2PError as error:
            self._note(f"Head from {peer}: {error}")
            return False
        if not self._candidate or order(head) > order(_head_of(self._candidate)):
            self._candidate, self._source = sealed, peer
            self._acknowledger.heard(head.era, head.version)
            self._news.set()
            _log.debug("head heard", version=head.version, sequence=head.sequence)
        return True

    async def search(self) -> None:
        """Ask a few peers for a Head."""
        for peer, sealed in await self._library.heads():
            await self.hear(peer, sealed)

    async def prepare(self, folder: Path, assets: list[Asset]) -> None:
        """Bring the model's files (config.json, tokenizer.json) into `folder`."""
        await anyio.Path(folder).mkdir(parents=True, exist_ok=True)
        for asset in assets:
            if Path(asset.name).name != asset.name or not asset.name.endswith(_ASSET_ENDINGS):
                raise PeerFault(f"the RunSpec names an asset {asset.name[:80]!r}: no plain file of a model")
            path = folder / asset.name
            if await anyio.to_thread.run_sync(_is_there, path, asset.manifest):
                await self._network.share(asset.manifest, path)
            else:
                await self._network.fetch(asset.manifest, path, last=self._coordinator())
        self._engine.model = folder

    def resume(self) -> None:
        """Hold the newest snapshot on disk; the engine checks its root when it loads it."""
        snapshots = self._store.snapshots()
        if snapshots:
            self._engine.held = _held(snapshots[-1])

    async def run(self) -> None:
        """Follow until cancelled. Raises `weights.errors.DiskFull`."""
        await self._share_all()
        failures = 0
        while True:
            self._news.clear()
            try:
                await self._advance()
                failures, self.trouble = 0, ""
                await self._news.wait()
            except (P2PError, NoWay, Stalled, EngineFailed) as error:
                failures += 1
                self.trouble = str(error) or type(error).__name__
                self._note(self.trouble)
                wait = min(LONGEST_WAIT, 0.5 * 2 ** min(failures, 8)) * self._random.uniform(0.5, 1.0)
                _log.warning("cannot follow", reason=self.trouble, seconds=round(wait, 1))
                await self._wait_for_news(wait)
                await self.search()

    async def _advance(self) -> None:
        """One plan: from what is held to the newest Head heard, which may be none."""
        head = await self._believe()
        version = self._records.trusted.version
        if version is None or self._holds(version):
            return
        if head is None:
            raise NoWay("no fresh Head was heard yet")
        self.trouble = f"version {version.version} is on its way"
        edges = await self._edges(head)
        roots = {file.hash: file.path for file in self._store.snapshots()}
        chain = path_to(edges, roots, version.root)
        if chain is None:
            raise NoWay(f"no chain of edges leads to version {version.version} from what is held")
        _log.debug("way found", version=version.version, edges=len(chain))
        payloads = [await self._fetch(edge) for edge in chain]
        # One turn for all: nothing is generated under a version on the way, which may be older than the one held.
        async with self._engine.turn():
            _log.debug("applying", version=version.version, edges=len(chain))
            for edge, payload in zip(chain, payloads, strict=True):
                await self._apply(edge, payload)
            if not self._holds(version):  # these very weights are held, under the number of another version
                path = next(file.path for file in self._store.snapshots() if file.hash == version.root)
                await self._hold(Held(era=version.era, version=version.version, root=version.root, snapshot=path))
        self._acknowledger.held(version.era, version.version)
        _log.info("version held", era=version.era, version=version.version)
        await self._tidy()

    async def _believe(self) -> Head | None:
        """Adopt the newest Head heard, with its Version."""
        if not self._candidate:
            return self._records.trusted.head
        sealed, head = self._candidate, _head_of(self._candidate)
        version = self._records.trusted.version
        if version is None or (head.era, head.version) > (version.era, version.version):
            try:
                documents = await self._library.get([head.version_hash, head.index_hash], hint=self._source)
                self._records.update_version(sealed, documents[head.version_hash], self._clock.now())
            except P2PError:
                # Or a Head that leads nowhere would hide, by its high number, every honest one that follows.
                if self._candidate == sealed:
                    self._candidate = b""
                raise
            self._keep("version", head, documents[head.version_hash])
            self._keep("index", head, documents[head.index_hash])
        return self._records.trusted.head

    async def _edges(self, head: Head) -> list[Edge]:
        trusted = self._records.trusted
        data = (await self._library.get([head.index_hash], hint=self._source))[head.index_hash]
        index = trusted.edge_index(data, head)
        self._keep("index", head, data)
        documents = await self._library.get(index.edges, hint=self._source)
        edges = []
        for digest in index.edges:
            edge = trusted.edge(documents[digest], index)
            self._store.put_document("edge", edge.era, edge.version, documents[digest])
            edges.append(edge)
        return edges

    async def _fetch(self, edge: Edge) -> Path:
        held = self._store.payload(edge.payload_hash)
        if held is not None:
            return held
        incoming = self._store.incoming(edge.payload_hash)
        fetched = await self._fetch_while_it_comes(edge, incoming)
        self._acknowledger.fetched(edge.payload_hash, fetched)
        path = await anyio.to_thread.run_sync(
            self._store.put_payload, edge.era, edge.version, edge.payload_hash, incoming
        )
        await self._network.share(manifest_of_edge(edge), path)
        self._count(edge)
        _log.debug("payload fetched", version=edge.version, nbytes=edge.length)
        return path

    async def _fetch_while_it_comes(self, edge: Edge, incoming: Path) -> Fetched:
        """Rule 4. Raises `Stalled`."""
        before = (await self._network.traffic()).received
        fetch = self._network.fetch(manifest_of_edge(edge), incoming, last=self._coordinator())
        fetching = asyncio.ensure_future(fetch)
        try:
            while not (await asyncio.wait({fetching}, timeout=FETCH_PATIENCE))[0]:
                received = (await self._network.traffic()).received
                if received == before:
                    peers = len(await self._network.peers())
                    raise Stalled(
                        f"no chunk of the payload for version {edge.version} ({edge.length} bytes) came for "
                        f"{FETCH_PATIENCE:.0f} s from {peers} connected peers"
                    )
                before = received
            return await fetching
        finally:
            fetching.cancel()
            await asyncio.gather(fetching, return_exceptions=True)

    def _count(self, edge: Edge) -> None:
        place = (edge.era, edge.version)
        self.taken_bytes += edge.length
        self.taken[place] = self.taken.get(place, 0) + edge.length
        while len(self.taken) > TAKEN_KEPT:
            del self.taken[next(iter(self.taken))]

    async def _apply(self, edge: Edge, payload: Path) -> None:
        """Within a turn: make the edge's snapshot, and hold it."""
        out = self._store.scratch(f"{edge.root.hex()}.safetensors")
        if edge.base_root is None:
            await anyio.to_thread.run_sync(_unpack, payload, out, edge.root, self._disk)
        else:
            base = next((file for file in self._store.snapshots() if file.hash == edge.base_root), None)
            if base is None:
                raise NoWay("the snapshot that the plan starts from was damaged")
            if self._engine.held is None:
                await self._engine.hold(_held(base))
            await self._engine.apply(payload, self._live.get(base.hash, base.path), out, edge.root)
        path = await anyio.to_thread.run_sync(self._adopt, edge, out)
        self._live = {edge.root: out}
        await self._hold(Held(era=edge.era, version=edge.version, root=edge.root, snapshot=path))

    def _adopt(self, edge: Edge, out: Path) -> Path:
        """Into the store under a second name: the engine has the first one open, as the base of the next diff."""
        twin = out.with_suffix(".put")
        twin.unlink(missing_ok=True)
        os.link(out, twin)
        return self._store.put_snapshot(edge.era, edge.version, edge.root, twin)

    def _spoiled(self, held: Held) -> None:
        """The engine could not load a snapshot as what it should be: fetch that version again."""
        self.trouble = f"the snapshot of version {held.version} on disk is damaged, and is fetched again"
        self._note(self.trouble)
        self._store.drop_file(held.snapshot)
        self._news.set()

    async def _hold(self, held: Held) -> None:
        await self._engine.hold(held)
        self.changed.set()

    def _holds(self, version: Version) -> bool:
        held = self.held
        return held is not None and (held.era, held.version, held.root) == (version.era, version.version, version.root)

    def _keep(self, kind: str, head: Head, data: bytes) -> None:
        self._store.put_document(kind, head.era, head.version, data)

    async def _tidy(self) -> None:
        """Rule 5: one snapshot; payloads up to the quota; documents of the last `DOCUMENTS_KEPT` versions."""
        held = self.held
        assert held is not None
        for file in self._store.snapshots():
            if file.path != held.snapshot:
                self._store.drop_file(file.path)
        for path in self._store.scratch("").glob("*.safetensors"):
            if path not in self._live.values():
                path.unlink()
        self._store.abandon(())
        for file in self._store.collect({(held.era, held.version)}, self._disk):
            await self._network.unshare(file.hash)
        payloads = {file.hash for file in self._store.payloads()}
        for kind in ("version", "index", "edge"):
            for document in self._store.documents(kind)[:-DOCUMENTS_KEPT]:
                edge = _edge_of(document.sealed) if kind == "edge" else None
                if edge is None or edge.payload_hash not in payloads:
                    self._store.drop_document(document.hash)

    async def _share_all(self) -> None:
        for document in self._store.documents("edge"):
            edge = _edge_of(document.sealed)
            path = self._store.payload(edge.payload_hash)
            if path is not None:
                await self._network.share(manifest_of_edge(edge), path)

    def _note(self, sentence: str) -> None:
        self.refused.append(sentence)
        del self.refused[:-16]

    async def _wait_for_news(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return


def manifest_of_edge(edge: Edge) -> Manifest:
    """How the payload of an edge is cut and checked."""
    return Manifest(hash=edge.payload_hash, length=edge.length, chunk_size=edge.chunk_size, chunk_root=edge.chunk_root)


def _is_there(path: Path, manifest: Manifest) -> bool:
    if not path.is_file() or path.stat().st_size != manifest.length:
        return False
    return blake3().update_mmap(path).digest() == manifest.hash


def _held(file: StoredFile) -> Held:
    return Held(era=file.era, version=file.version, root=file.hash, snapshot=file.path)


def _head_of(sealed: bytes) -> Head:
    return decode(peek(sealed).payload, Head)


def _edge_of(sealed: bytes) -> Edge:
    """Of a document that was verified before it was stored."""
    return Edge.from_bytes(peek(sealed).payload)


def _unpack(payload: Path, out: Path, root: bytes, most: int) -> None:
    """A full payload becomes a snapshot, before any engine can load one. In a thread: numpy, no torch."""
    from weights.diff import apply

    try:
        apply(None, payload, out, root, max_bytes=most)
    except DiskFull:
        raise
    except WeightsError as error:
        raise PeerFault(f"the full payload: {error}") from error
