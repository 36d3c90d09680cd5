"""The node's advance from version to version: fetch the cheapest chain of edges, have the engine apply it.

Rules
1. No payload is fetched before node/trust has verified Head, Version, EdgeIndex and Edges. No version counts as loaded
   before the engine has verified the content root of the signed Version.
2. Head (node/versions/head_listener.py), Version and Edges are stored before any part acts on them.
3. Payloads arrive while the engine generates. Only their application reserves the engine, once per chain. The weights
   are stepped in place (node/versions/local_weights.py), so a group under way is completed first. The folder on disk is
   stepped while groups are completed (engines/process/engine_fleet.py, rule 2a): the engine then only changes its
   memory.
4. A failed fetch does not end the node. The waits between attempts grow, each attempt starts from the newest Head, and
   the loaded version stays in use.
5. The disk keeps the loaded version, and payloads that an index may still name, up to the owner's quota and rule 4 of
   node/versions/local_weights.py. The oldest payloads are dropped first. Files and payloads beyond the quota are not
   fetched.
   a. Documents that the next index will name again are kept too, so each is requested once. So the cost per version
      does not grow with the number of versions.
   b. A verified document is handed on as `Verified`, and not decoded again.
6. An update waits until age asks for it (engines/process/change_time.py), and for the groups under way. Newer ones are
   fetched meanwhile, and the newest one here is applied: a node passes over versions in place of emptying the engine
   once for each. One that needs weights made anew is not fetched so, does not wait for age, and is not replaced.
7. Weights that are on no disk of this node begin at a copy of the base, where the machine has one that saves bytes
   (node/versions/base_copies.py).
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import anyio
import anyio.to_thread
import structlog

from echo2.engines.context import context_of
from echo2.engines.process.change_time import WorkFacts, is_due
from echo2.engines.process.engine_fleet import EngineFleet, FolderStep
from echo2.engines.process.versioned import LoadedVersion
from echo2.node.errors import BadConfig, TrustFailure
from echo2.node.run_context import RunContext
from echo2.node.versions.acknowledgements import Acknowledger
from echo2.node.versions.base_copies import BaseCopies
from echo2.node.versions.document_exchange import DocumentExchange
from echo2.node.versions.head_listener import HeadListener
from echo2.node.versions.local_weights import InvalidChain, LocalWeights
from echo2.node.versions.payload_fetcher import PayloadFetcher, Stalled
from echo2.p2p.envelope import Verified
from echo2.p2p.errors import P2PError, PeerFault
from echo2.p2p.network import Gossip
from echo2.p2p.swarm import manifest
from echo2.protocol.authority import Asset
from echo2.protocol.versions import Head
from echo2.runtime.backoff import Backoff
from echo2.runtime.child import ChildError
from echo2.runtime.errors import DiskFull
from echo2.runtime.figures import apart
from echo2.runtime.log_throttle import LogThrottle
from echo2.weights.documents import ITEM_BYTES, Edge, Version
from echo2.weights.errors import BadSnapshot, MemoryFull, WeightsError
from echo2.weights.lora.adapter_config import BASE_FILE
from echo2.weights.update_path import path_to

LOAD_BACKOFF: Final = Backoff(1.0, 30.0, jitter=0.5)
"""Seconds between two attempts to load the newest version."""
DUE_POLL_SECONDS: Final = 0.5
"""Seconds until it is looked again whether age asks for a change."""
FREE_SECONDS: Final = 2.0
"""Seconds in which a pause frees the memory of the weights, or leaves it."""
DOCUMENTS_KEPT: Final = 300
"""Documents kept per kind, and Edges whose payloads are kept: an index names the newest 128."""
VERSIONS_LOG_SECONDS: Final = 300.0
"""Seconds from one line on loaded versions to the next."""
_ASSET_ENDINGS: Final = (".json", ".txt", ".model", ".jinja", ".safetensors")
_ASK_REMEDY: Final = "ask the operator, or install a newer version"

_log = structlog.get_logger("node")

T = TypeVar("T")


class NoUpdatePath(Exception):
    """No chain of known edges leads from the local weights to the Head's version."""


class Update(NamedTuple):
    """A version, and the fetched chain of edges that leads to it."""

    version: Version
    chain: list[Verified[Edge]]
    payloads: list[Path]

    @property
    def start(self) -> bytes | None:
        """Content root of the weights at which the chain begins; None: it needs none."""
        return self.chain[0].value.base_root if self.chain else self.version.root

    @property
    def anew(self) -> bool:
        """Whether the chain begins with the whole weights."""
        return self.start is None


class Follower:
    """The part that keeps the engine at the newest version. `trouble`: why the newest version is not loaded, one
    sentence; empty when it is. `heads`: Heads that the node hears. `refused`: the last 16 sentences, each the reason
    why a Head was refused or an attempt failed. `changed`: set when another version is loaded."""

    def __init__(
        self,
        gossip: Gossip,
        context: RunContext,
        weights: LocalWeights,
        payloads: PayloadFetcher,
        documents: DocumentExchange,
        engine: EngineFleet,
        acknowledger: Acknowledger,
        copies: BaseCopies | None = None,
    ) -> None:
        """`copies`: copies of the base on this machine; None: none is looked for."""
        self.heads = HeadListener(gossip, context, documents, acknowledger, self._note)
        self._trust_store, self._store, self._clock = context.trust_store, context.store, context.clock
        self._weights, self._payloads, self._documents = weights, payloads, documents
        self._engine, self._acknowledger, self._copies = engine, acknowledger, copies
        self._random = random.Random(context.seed)
        self._loaded = LogThrottle(lambda: asyncio.get_running_loop().time(), VERSIONS_LOG_SECONDS)
        self._stored: list[Verified[Edge]] = []
        """The Edges that `resume` read from the store."""
        self._indexed: dict[bytes, bytes] = {}
        """Hash -> payload hash of the edges in the newest index; the next index names nearly the same."""
        self._is_size_known = False
        """Whether the owner was told how large the model is."""
        self._at_weights = asyncio.Lock()
        self.changed = asyncio.Event()
        self.trouble = "no version is loaded yet"
        self.refused: list[str] = []
        self.may_fetch: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0)
        """Waits until payloads may be fetched."""
        self.work_facts: Callable[[], WorkFacts] = WorkFacts
        """Returns the work of the node."""
        engine.on_corrupt = self._on_corrupt
        weights.on_damage = self._note

    @property
    def current(self) -> LoadedVersion | None:
        return self._engine.current

    async def prepare(self, folder: Path, assets: list[Asset]) -> None:
        """Fetch the model's files (config.json, tokenizer.json, a frozen base) into `folder`. Raises `TrustFailure` for
        a RunSpec that no honest operator signs: no retry helps, because a RunSpec never changes. Raises `BadConfig` for
        files beyond the owner's quota."""
        await anyio.Path(folder).mkdir(parents=True, exist_ok=True)
        for asset in assets:
            if Path(asset.name).name != asset.name or not asset.name.endswith(_ASSET_ENDINGS):
                raise TrustFailure(
                    f"the RunSpec names an asset {asset.name[:80]!r}, no plain file of a model: {_ASK_REMEDY}"
                )
            try:
                manifest.check(asset.manifest)
                if (nbytes := sum(one.manifest.length for one in assets)) > self._weights.quota:
                    raise BadConfig(f"the model's files take {self._beyond(nbytes)}")
                if not (folder / asset.name).exists():
                    if asset.name == BASE_FILE:
                        await self._with_weights(partial(self._write_frozen_base, asset, folder / asset.name))
                    await self.may_fetch()
                await self._payloads.fetch_file(asset.manifest, folder / asset.name)
            except PeerFault as error:
                raise TrustFailure(
                    f"the RunSpec's asset {asset.name} cannot be fetched ({error}): {_ASK_REMEDY}"
                ) from error
        self._engine.prepare(folder, context_of(folder))

    async def resume(self) -> None:
        """Make the weights on disk the current version, if a stored Edge names them; the engine verifies their root
        when it loads them."""
        self._stored = list(self._stored_edges())
        root = await self._with_weights(self._weights.root)
        if self._engine.rests:  # the pause that began meanwhile could not free it
            await self._with_weights(self._weights.free_memory)
        versions = [(edge.value.era, edge.value.version) for edge in self._stored if edge.value.root == root]
        if root is not None and versions:
            self._engine.current = self._loaded_version(*max(versions), root)

    def _stored_edges(self) -> Iterator[Verified[Edge]]:
        for document in self._store.documents("edge"):
            try:
                yield self._trust_store.trusted.stored_edge(document.sealed)
            except P2PError as error:
                _log.warning("stored Edge no longer verifies", version=document.version, reason=str(error))

    async def run(self) -> None:
        """Follow until cancelled. Raises `runtime.errors.DiskFull`."""
        await self._payloads.share_all(self._stored)
        failures = 0
        while True:
            self.heads.news.clear()
            try:
                await self._advance()
                failures, self.trouble = 0, ""
                await self.heads.news.wait()
            except (P2PError, NoUpdatePath, Stalled, InvalidChain, ChildError) as error:
                failures += 1
                message = error.message if isinstance(error, ChildError) else str(error)
                self.trouble = message or type(error).__name__
                self._note(self.trouble)
                wait = LOAD_BACKOFF.delay(failures, self._random.random())
                _log.warning("cannot follow", reason=self.trouble, seconds=round(wait, 1))
                await self._wait_for_news(wait)
                await self.heads.search()

    async def _advance(self) -> None:
        """Load the version of the newest Head heard, unless it is loaded. Raises `NoUpdatePath`, `Stalled`,
        `InvalidChain`, `ChildError`, `P2PError`."""
        first = await self._fetch_update(self.current.root if self.current else None)
        if first is None:
            return
        if first.anew:
            steps = list(zip(first.chain, first.payloads, strict=True))
            await anyio.to_thread.run_sync(self._weights.make, steps)
        async with self._fetching_newer(first) as updates:
            while not self._is_due(first):  # noqa: ASYNC110 (it depends on the time)
                await asyncio.sleep(DUE_POLL_SECONDS)
            del updates[:-1]
            async with self._engine.exclusive(self._ahead(updates[0])):
                update = updates[-1]
                version = update.version
                _log.debug("applying", version=version.version, edges=len(update.chain))
                await self._swap(update)
            self._acknowledger.on_version_load(
                version.era, version.version, {edge.value.payload_hash for edge in update.chain}
            )
            self._log_loaded(version)
        await self._tidy(version)

    def _is_due(self, update: Update) -> bool:
        """Tell whether age asks for a change to an update, or a newer one (rule 6)."""
        current, spec, newest = self.current, self._trust_store.trusted.runspec, self.heads.newest
        if current is None or spec is None or newest is None or update.anew or newest.era != current.era:
            return True
        step, behind = self.heads.pace.seconds(), self.heads.pace.behind(current.version, self._clock.now())
        return step is None or behind is None or is_due(behind, step, spec.value.staleness, self.work_facts())

    def _log_loaded(self, version: Version) -> None:
        _log.debug("version held", era=version.era, version=version.version)
        if versions := self._loaded.count(""):
            _log.info("versions held", era=version.era, version=version.version, versions=versions)

    def _ahead(self, update: Update) -> list[FolderStep]:
        """Return the steps of an update that the folder can make before the engine is free: those from the version that
        it has."""
        if self.current is None or update.anew or update.start != self.current.root:
            return []
        edges = zip((verified.value for verified in update.chain), update.payloads, strict=True)
        return [FolderStep(payload, self._loaded_version(edge.era, edge.version, edge.root)) for edge, payload in edges]

    @contextlib.asynccontextmanager
    async def _fetching_newer(self, first: Update) -> AsyncIterator[list[Update]]:
        """Yield the updates of the present weights that are here, the newest last: in the block it grows (rule 6). The
        folder makes the steps of the first one meanwhile, so others go on from it. What is being fetched at the block's
        end is fetched to its end, so that nothing is asked for twice."""
        updates, enough = [first], asyncio.Event()
        newer = asyncio.ensure_future(self._fetch_newer(updates, enough))
        try:
            yield updates
            enough.set()
            self.heads.news.set()
            await newer
        finally:
            newer.cancel()
            await asyncio.wait({newer})
            self.heads.news.set()

    async def _fetch_newer(self, updates: list[Update], enough: asyncio.Event) -> None:
        """Fetch each update that is heard of, until it is `enough`. A fault ends it: the next attempt to follow meets
        it again."""
        with contextlib.suppress(P2PError, NoUpdatePath, Stalled, DiskFull):
            while not updates[-1].anew:
                await self.heads.news.wait()
                if enough.is_set():
                    return
                self.heads.news.clear()
                first = updates[0]
                newer = await self._fetch_update(first.version.root)
                if first is not updates[0]:  # the folder has other steps to make meanwhile
                    self.heads.news.set()
                elif newer is not None and not newer.anew:
                    updates.append(Update(newer.version, first.chain + newer.chain, first.payloads + newer.payloads))

    async def _fetch_update(self, start: bytes | None) -> Update | None:
        """Fetch the update to the version of the newest Head heard; None if that is loaded. `start`: content root of
        the present weights; None: those on disk. Raises `NoUpdatePath`, `Stalled`, `P2PError`."""
        head = await self.heads.believe()
        believed = self._trust_store.trusted.version
        if believed is None or self._holds(believed.value):
            return None
        version = believed.value
        if head is None:
            raise NoUpdatePath("no valid Head was heard yet")
        self.trouble = f"version {version.version} is being fetched"
        edges = await self._edges(head)
        if start is None:
            start = await self._with_weights(partial(self._root_on_disk, version, [edge.value for edge in edges]))
        chain = _chain(edges, start, version.root)
        if chain is None:
            raise NoUpdatePath(f"no chain of edges leads from the local weights to version {version.version}")
        if (nbytes := sum(edge.value.length for edge in chain)) > self._weights.quota:
            raise NoUpdatePath(f"the payloads to version {version.version} take {self._beyond(nbytes)}")
        _log.debug("way found", version=version.version, edges=len(chain))
        if self.current is None and not self._is_size_known:
            self._is_size_known = True
            _log.info(_size_words(version, nbytes))
        await self.may_fetch()
        if chain and chain[0].value.base_root is None:
            await self._fold(steps=1)
            await self._payloads.make_room((edge.value for edge in chain), self._weights.room_beside_made)
        return Update(version, chain, [await self._payloads.get(edge) for edge in chain])

    def _root_on_disk(self, version: Version, edges: list[Edge]) -> bytes | None:
        """Return the content root of the weights on disk, of a copy of the base where there were none (rule 7); None
        without any. Blocks. Raises `BadConfig`, `DiskFull`."""
        root, spec = self._weights.root(), self._trust_store.trusted.runspec
        if root is not None or self._copies is None or spec is None:
            return root
        if any(asset.name == BASE_FILE for asset in spec.value.assets):
            return None  # versions are adapters, and their base is a file of the model (`prepare`)
        if (nbytes := sum(entry.nbytes for entry in version.tensors)) > self._weights.quota:
            raise NoUpdatePath(f"the weights take {self._beyond(nbytes)}")
        copy = self._copies.choose(spec.value.model, version, edges, self._weights.ends.is_set)
        if copy is None:
            return None
        try:
            self._weights.adopt(copy, version)
        except (BadSnapshot, OSError) as error:
            raise NoUpdatePath(f"the copy of the base cannot be read any more: {error}") from error
        _log.info("base taken from a copy", folder=str(copy.folder), not_fetched=copy.saves)
        return copy.root

    def _write_frozen_base(self, asset: Asset, path: Path) -> None:
        """Write a frozen base from a copy, where there is one. Blocks. Raises `BadConfig`, `DiskFull`."""
        spec = self._trust_store.trusted.runspec
        if self._copies is not None and spec is not None:
            self._copies.write_frozen_base(spec.value.model, asset.manifest, path, self._weights.ends.is_set)

    def _beyond(self, nbytes: int) -> str:
        """Say that a download exceeds the owner's quota."""
        needed, most = apart(nbytes / 1e9, self._weights.quota / 1e9)
        return f"{needed} GB, and this node may use {most} GB of disk: raise `disk` in its settings"

    async def _edges(self, head: Verified[Head]) -> list[Verified[Edge]]:
        """Return the Edges of the Head's index. Edges of the previous index are not fetched again."""
        trusted, digest = self._trust_store.trusted, head.value.index_hash
        index = trusted.edge_index((await self._documents.get([digest], hint=self.heads.source))[digest], head)
        self._store.put_document("index", head.value.era, head.value.version, index.sealed)
        fetched = await self._documents.get(trusted.unknown(index), hint=self.heads.source)
        edges = trusted.edges(index, fetched)
        for digest, edge in zip(index.value.edges, edges, strict=True):
            if digest not in self._indexed:
                self._store.put_document("edge", edge.value.era, edge.value.version, edge.sealed)
        self._indexed = {digest: edge.value.payload_hash for digest, edge in zip(index.value.edges, edges, strict=True)}
        return edges

    async def _swap(self, update: Update) -> None:
        """Load a version by its chain of edges. The engine is reserved, so no group is generated halfway."""
        version, chain, _ = update
        first = chain[0].value if chain else None
        if update.anew:
            await anyio.to_thread.run_sync(self._weights.swap_in)
        elif first is not None and self.current is None:  # the weights are on disk, but no document states their number
            await self._engine.hold(self._loaded_version(first.era, first.base or 0, first.base_root or b""))
        for edge, payload in self._remaining_steps(update):
            if self.current is None or self.current.root != edge.base_root:
                raise NoUpdatePath("the weights at the start of the chain are damaged")
            await self._step(payload, self._loaded_version(edge.era, edge.version, edge.root))
        await self._engine.hold(self._loaded_version(version.era, version.version, version.root))
        if not self._holds(version):
            raise NoUpdatePath("the new weights are damaged")
        self.changed.set()

    async def _step(self, payload: Path, to: LoadedVersion) -> None:
        """Make one step; on disk, where the machine's memory has no room for it any more."""
        try:
            await self._engine.advance(payload, to)
        except ChildError as error:
            if error.kind != MemoryFull.__name__:
                raise
            await self._with_weights(partial(self._weights.leave_memory, error.message))
            await self._engine.advance(payload, to)

    def _remaining_steps(self, update: Update) -> list[tuple[Edge, Path]]:
        """Return the steps of an update that the weights have not made yet."""
        steps = list(zip((verified.value for verified in update.chain), update.payloads, strict=True))
        here = None if self.current is None else self.current.root
        behind = [number for number, (edge, _) in enumerate(steps, 1) if edge.root == here]
        return [] if update.anew else steps[max(behind, default=0) :]

    def _loaded_version(self, era: int, version: int, root: bytes) -> LoadedVersion:
        return LoadedVersion(era=era, version=version, root=root, weights=self._weights.path)

    def _on_corrupt(self, corrupt: LoadedVersion) -> None:
        """Drop the weights that the engine found damaged, so that their version is fetched again."""
        self.trouble = f"version {corrupt.version} on disk is damaged, and is fetched again"
        self._note(self.trouble)
        self._weights.drop()
        self.heads.news.set()

    def _holds(self, version: Version) -> bool:
        current = self.current
        return current is not None and (current.era, current.version, current.root) == (
            version.era,
            version.version,
            version.root,
        )

    async def _tidy(self, version: Version) -> None:
        """Drop payloads and documents that no peer needs any more (rule 5); fold a log that is long enough."""
        await self._payloads.tidy(version.era, version.version, self._weights.room())
        await self._fold()
        here = version.era, version.version
        await self._payloads.forget(min(here, self._store.place("edge", DOCUMENTS_KEPT)), set(self._indexed.values()))
        for kind in ("version", "index", "edge"):
            since = self._store.place(kind, DOCUMENTS_KEPT)
            await anyio.to_thread.run_sync(self._store.forget_documents, (kind,), since, {here}, self._indexed.keys())

    async def _fold(self, steps: int | None = None) -> None:
        """Fold the log of the weights if it is due, while no engine reads or moves the folder."""
        if self._engine.rests or not self._weights.is_fold_due(steps):
            return
        async with self._engine.still_folder():
            try:
                await self._with_weights(partial(self._weights.fold, steps))
            except WeightsError as error:
                _log.warning("weights are fetched again", reason=str(error))
                if self.current is not None:
                    self._engine.report_damage(self.current)

    async def _with_weights(self, work: Callable[[], T]) -> T:
        """Do `work` in a thread, one at a time. A cancellation ends it at its next frame, and is then raised."""
        async with self._at_weights:
            doing = asyncio.ensure_future(anyio.to_thread.run_sync(work))
            try:
                return await asyncio.shield(doing)
            except asyncio.CancelledError:
                self._weights.ends.set()
                with anyio.CancelScope(shield=True):
                    await asyncio.wait({doing})
                self._weights.ends.clear()
                if not doing.cancelled():
                    doing.exception()  # asyncio reports one that nothing has looked at
                raise

    @contextlib.asynccontextmanager
    async def pause(self, finishing: Callable[[], bool]) -> AsyncIterator[None]:
        """Have the memory that the weights take free within the block, where no engine may run. A change of version
        that is under way keeps it: that waits for the block's end. `finishing`: whether none will run afterwards."""
        is_free = False
        with anyio.move_on_after(FREE_SECONDS):
            async with self._engine.still_folder():
                await self._with_weights(self._weights.free_memory)
                is_free = True
        yield
        if is_free and not finishing():
            async with self._engine.still_folder():
                await self._with_weights(self._weights.take_memory)

    def _note(self, sentence: str) -> None:
        self.refused.append(sentence)
        del self.refused[:-16]

    async def _wait_for_news(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.heads.news.wait()
        except TimeoutError:
            return


def _size_words(version: Version, fetched: int) -> str:
    """Say how large a model is. `fetched`: bytes that come over the network."""
    parameters = sum(entry.nbytes // ITEM_BYTES[entry.dtype] for entry in version.tensors)
    nbytes = sum(entry.nbytes for entry in version.tensors)
    weights, payloads = (f"{count / 1e6:,.1f} MB" for count in (nbytes, fetched))
    return (
        f"the model has {parameters / 1e6:,.2f} million parameters, {weights} of weights, which the device's memory "
        f"takes with the answers under way; {payloads} are fetched"
    )


def _chain(edges: list[Verified[Edge]], start: bytes | None, root: bytes) -> list[Verified[Edge]] | None:
    """Return the cheapest chain of edges from the weights `start`, or from a full payload, to `root`; None without
    one."""
    verified = {edge.value: edge for edge in edges}
    chain = path_to(verified, [] if start is None else [start], root)
    return None if chain is None else [verified[edge] for edge in chain]
