"""Follows the run's versions: hears Heads, fetches the cheapest chain of edges, has the engine apply it, passes it on.

Rules
1. Nothing is fetched before trust.py has accepted Head, Version, EdgeIndex and Edges; nothing is held before the engine
   has shown that it has the content root of the signed Version.
2. A Head is passed on by gossip only once it has verified. Head, Version and Edges are stored before they are acted on.
3. Payloads come while the engine generates; only their application takes a turn of the engine, one for a whole chain.
   The weights held are stepped in place (node/held.py): the lease that binds them has ended when a turn begins.
4. A fetch that failed is no reason to end: waits grow, a plan is made anew for the newest Head, and what is held stays.
5. Kept on disk: the version held, the payloads for others that an index may still name, up to the owner's quota, oldest
   dropped first, and the documents that the next version's index will name again: each is asked for once. So a version
   costs the same after however many.
6. A node that heard no newer Head for half of a Head's life asks a few peers and the coordinator for theirs, and again
   after each further half: gossip may lose one, and the coordinator signs a new one every third of its life.
7. A Head that names a later Root than the one held is judged once that Root was asked for (node/library.py, rule 5). A
   Head that was heard under an earlier Root is no candidate any more.
"""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import structlog
from blake3 import blake3

from engines.context import context_of
from node.acknowledge import Acknowledger
from node.clock import RunClock
from node.engine import EngineFailed, Held, SupervisedEngine
from node.held import BadChain, HeldWeights
from node.library import Library
from node.payloads import Payloads, Stalled, edge_of
from node.records import Records
from node.trust import order
from p2p.envelope import peek
from p2p.errors import P2PError, PeerFault
from p2p.messages import Asset, Head, decode, head_topic
from p2p.network import Manifest, Network
from runtime.backoff import Backoff
from weights.documents import Edge, Version
from weights.path import path_to
from weights.store import Store

RETRY: Final = Backoff(1.0, 30.0, jitter=0.5)
HEAD_LIFE: Final = 180.0
"""Seconds that a Head is taken to live before the first was heard."""
LIFE_BOUNDS: Final = 10.0, 3600.0
"""Seconds within which a Head's life counts for rule 6."""
DOCUMENTS_KEPT: Final = 300
"""Documents of a kind that are still served, and payloads of these edges: an index names the newest 128."""
_ASSET_ENDINGS: Final = (".json", ".txt", ".model", ".jinja")

_log = structlog.get_logger("node")


class NoWay(Exception):
    """No chain of the known edges leads from what is held to the Head's version."""


class Follower:
    """`trouble`: why the newest version is not held, one sentence, empty when it is. `refused`: lies heard."""

    def __init__(
        self,
        network: Network,
        records: Records,
        store: Store,
        weights: HeldWeights,
        payloads: Payloads,
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
        """`disk`: bytes that weights and payloads may take."""
        self._network, self._records, self._store = network, records, store
        self._weights, self._payloads, self._acknowledger = weights, payloads, acknowledger
        self._library, self._engine, self._clock = library, engine, clock
        self._coordinator, self._disk, self._random = coordinator, disk, random.Random(seed)
        self._candidate = b""
        self._candidate_root: int | None = None
        """Serial of the Root under which the candidate verified."""
        self._source: str | None = None
        self._indexed: dict[bytes, bytes] = {}
        """Hash -> payload hash of the edges in the newest index: the next one names nearly the same."""
        self._news, self._heard = asyncio.Event(), asyncio.Event()
        self.changed = asyncio.Event()
        self.trouble = "no version is held yet"
        self.refused: list[str] = []
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
        """Take a sealed Head from anyone. Return whether it verified and is newer than all that were heard: no other is
        passed on. Older than what is held counts as a lie by nobody."""
        newest = self.newest
        try:
            await self._library.seek_roots(_head_of(sealed).root_serial, peer)
            head = self._records.offer_head(sealed, self._clock.now())
        except P2PError as error:
            self._note(f"Head from {peer}: {error}")
            return False
        if self._candidate_root != self._records.serial:
            self._candidate = b""
        if not self._candidate or order(head) > order(_head_of(self._candidate)):
            self._candidate, self._source = sealed, peer
            self._candidate_root = self._records.serial
            self._acknowledger.heard(head.era, head.version)
            self._news.set()
            self._heard.set()
            _log.debug("head heard", version=head.version, sequence=head.sequence)
        return newest is None or order(head) > order(newest)

    async def search(self) -> None:
        """Ask a few peers for a Head."""
        for peer, sealed in await self._library.heads():
            await self.hear(peer, sealed)

    async def keep_hearing(self) -> None:
        """Ask for a Head whenever none came for half of its life (rule 6), until cancelled."""
        while True:
            self._heard.clear()
            try:
                async with asyncio.timeout(self._life() / 2):
                    await self._heard.wait()
            except TimeoutError:
                _log.debug("no head heard", seconds=round(self._life() / 2, 1))
                await self.search()

    def _life(self) -> float:
        """Seconds that a Head of this run lives."""
        head = self.newest
        life = HEAD_LIFE if head is None else (head.expires - head.issued) / 1000
        return min(max(life, LIFE_BOUNDS[0]), LIFE_BOUNDS[1])

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
        self._engine.model, self._engine.context = folder, context_of(folder)

    def resume(self) -> None:
        """Hold what is on disk, if a document says which version it is; the engine checks the root when it loads it."""
        root = self._weights.root()
        found = [(edge.era, edge.version) for edge in self._stored_edges() if edge.root == root]
        if root is not None and found:
            self._engine.held = self._named(*max(found), root)

    def _stored_edges(self) -> list[Edge]:
        return [edge_of(document.sealed) for document in self._store.documents("edge")]

    async def run(self) -> None:
        """Follow until cancelled. Raises `weights.errors.DiskFull`."""
        await self._payloads.share_all()
        failures = 0
        while True:
            self._news.clear()
            try:
                await self._advance()
                failures, self.trouble = 0, ""
                await self._news.wait()
            except (P2PError, NoWay, Stalled, BadChain, EngineFailed) as error:
                failures += 1
                self.trouble = str(error) or type(error).__name__
                self._note(self.trouble)
                wait = RETRY.delay(failures, self._random.random())
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
        start = self.held.root if self.held else await anyio.to_thread.run_sync(self._weights.root)
        chain = path_to(edges, [] if start is None else [start], version.root)
        if chain is None:
            raise NoWay(f"no chain of edges leads to version {version.version} from what is held")
        _log.debug("way found", version=version.version, edges=len(chain))
        payloads = [await self._payloads.get(edge) for edge in chain]
        if chain and chain[0].base_root is None:
            way = list(zip(chain, payloads, strict=True))
            await anyio.to_thread.run_sync(self._weights.make, way, self._disk)
        async with self._engine.turn():
            _log.debug("applying", version=version.version, edges=len(chain))
            await self._swap(version, chain, payloads)
        self._acknowledger.held(version.era, version.version)
        _log.info("version held", era=version.era, version=version.version)
        await self._tidy(version)

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
        self._indexed = {digest: edge.payload_hash for digest, edge in zip(index.edges, edges, strict=True)}
        return edges

    async def _swap(self, version: Version, chain: list[Edge], payloads: list[Path]) -> None:
        """Within a turn: hold `version`. Nothing is generated under a version on the way."""
        made = bool(chain) and chain[0].base_root is None
        if made:
            await anyio.to_thread.run_sync(self._weights.put_made)
        elif chain and self.held is None:  # it is on disk, but under which number, no document says
            await self._engine.hold(self._named(chain[0].era, chain[0].base or 0, chain[0].base_root or b""))
        for edge, payload in zip(chain, payloads, strict=True):
            if made:
                break
            if self.held is None or self.held.root != edge.base_root:
                raise NoWay("the weights that the plan starts from were damaged")
            await self._engine.forward(payload, self._named(edge.era, edge.version, edge.root))
        await self._engine.hold(self._named(version.era, version.version, version.root))
        if not self._holds(version):
            raise NoWay("the weights that were made are damaged")
        self.changed.set()

    def _named(self, era: int, version: int, root: bytes) -> Held:
        return Held(era=era, version=version, root=root, weights=self._weights.path)

    def _spoiled(self, held: Held) -> None:
        """The engine could not load the weights as what they should be: fetch that version again."""
        self.trouble = f"version {held.version} on disk is damaged, and is fetched again"
        self._note(self.trouble)
        self._weights.drop()
        self._news.set()

    def _holds(self, version: Version) -> bool:
        held = self.held
        return held is not None and (held.era, held.version, held.root) == (version.era, version.version, version.root)

    def _keep(self, kind: str, head: Head, data: bytes) -> None:
        self._store.put_document(kind, head.era, head.version, data)

    async def _tidy(self, held: Version) -> None:
        """Rule 5, and the last `DOCUMENTS_KEPT` documents of each kind."""
        await self._payloads.tidy(held.era, held.version, self._disk - self._weights.nbytes())
        here = held.era, held.version
        await self._payloads.forget(min(here, self._store.place("edge", DOCUMENTS_KEPT)), set(self._indexed.values()))
        for kind in ("version", "index", "edge"):
            since = self._store.place(kind, DOCUMENTS_KEPT)
            await anyio.to_thread.run_sync(self._store.forget_documents, (kind,), since, {here}, self._indexed.keys())

    def _note(self, sentence: str) -> None:
        self.refused.append(sentence)
        del self.refused[:-16]

    async def _wait_for_news(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return


def _is_there(path: Path, manifest: Manifest) -> bool:
    if not path.is_file() or path.stat().st_size != manifest.length:
        return False
    return blake3().update_mmap(path).digest() == manifest.hash


def _head_of(sealed: bytes) -> Head:
    return decode(peek(sealed).payload, Head)
