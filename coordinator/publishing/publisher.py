"""Publish the learner's exports: store, sign, serve, and announce them.

Only this module signs with the policy key.

Rules
1. Durable before visible: payloads and snapshot are in the store before their Version and Edges are signed, and these
   before the Head that names them.
2. Each (era, version) is published once: an export that the store already has is not signed again with other bytes.
   When the policy key changes, the same edges and the latest Version with its index are signed again, in one
   transaction of the store: nodes no longer accept the former key.
3. One task at a time stores, shares or drops files. Only the event loop adds a version and its edges, together, once
   the payloads are shared: other tasks read both while a thread stores files.
4. Memory and store keep the newest `KEPT_VERSIONS` versions and those back to the oldest in use, the newest full edge,
   and the newest edge from its version (the *anchor*). They keep the edges of a path from nothing to the oldest in use
   and to each further version that is asked for; to the first version of the window within the budgets alone. Documents
   of these are always kept. No node needs anything else: an index lists newer edges only, and a node that joins or has
   an older version starts from the anchor or the full edge. run.sqlite keeps the root of every version. So a
   publication, a check of the disk and a start cost the same after any number of versions.
   a. The latest version alone has a snapshot, and one that is to be published again until then (`whole`): all others
      are read through payloads (stored_weights.py). The former snapshot is dropped once its successor is published.
   b. The *links*, the edges by which version 0 leads to the newest full edge's version, stay as long as they are few
      and have fewer bytes than that edge: a node with a copy of the base begins there at any time
      (node/versions/base_copies.py).
   c. Payloads take at most `PAYLOAD_SHARE` of a snapshot, the oldest are dropped first; those of paths above, of the
      latest version and of versions in use stay beyond it.
5. A payload is not hashed here: the export carries the hashes computed while writing, which go into the Edge and to the
   payload exchange. A file found on disk after a crash or at a start is hashed once before it is signed or shared.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType

import anyio
import structlog

from echo2.coordinator.learner.messages import Export, ExportedEdge
from echo2.coordinator.publishing.head_announcer import HeadAnnouncer
from echo2.coordinator.publishing.payload_rebuild import PayloadRebuilder
from echo2.coordinator.publishing.published import Published
from echo2.coordinator.publishing.signing_keys import Signing
from echo2.coordinator.publishing.stored_weights import StoredWeights
from echo2.p2p.envelope import document_hash, seal, verify_envelope
from echo2.p2p.network import Network
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.plan.trees import PayloadSize
from echo2.p2p.swarm import manifest as chunks
from echo2.p2p.swarm.manifest import bare
from echo2.protocol import document_service
from echo2.protocol.methods import DOCUMENTS, HEAD
from echo2.protocol.requests import DocumentsRequest, DocumentsResponse
from echo2.protocol.versions import HeadRequest, HeadResponse, manifest_of_edge
from echo2.runtime.errors import LocalFault
from echo2.runtime.files import link_or_copy
from echo2.weights.codec import frames
from echo2.weights.documents import Edge, EdgeIndex, Version
from echo2.weights.errors import WeightsError
from echo2.weights.snapshot import Snapshot
from echo2.weights.store import Store, StoredFile
from echo2.weights.update_path import path_to, reachable
from echo2.weights.virtual_snapshot import write_out

REACH_EDGES = 128
"""Newest edges that an EdgeIndex lists, beside the full edge and the anchor: within them a node updates by diffs."""
KEPT_VERSIONS = 1024
"""Versions whose documents and payloads are kept; a verdict under one of them can be repeated."""
MOST_RESTORED_VERSIONS = 4 * KEPT_VERSIONS
"""Most versions that a start reads."""
MOST_EARLIER_EDGES = 1024
"""Most edges older than those versions that a start reads: those of the first version, and of the path from it."""
PAYLOAD_SHARE = 1.0
LEAST_PAYLOADS = 1 << 20
"""Rule 4c: bytes of payloads that stay whatever the weights' size."""
MOST_LINKS = 16
"""Most links, in the index beside the others: of about 16 x 256 versions."""
KINDS = ("version", "edge", "edgeindex", "published")

log = structlog.get_logger("coordinator")


class Publisher:
    """The published versions and the newest Head; the handler of "head" and "documents". Each stored edge is verified
    once, at the start."""

    def __init__(
        self,
        signing: Signing,
        store: Store,
        network: Network,
        *,
        head_file: Path,
        addresses: Callable[[], Awaitable[list[str]]],
        clock: Callable[[], float],
        on_announce: Callable[[int, int, int], None] = lambda era, version, now: None,
    ) -> None:
        """`addresses`: returns those at which nodes reach this coordinator. `clock`: seconds since the Unix
        epoch. `on_announce`: see `HeadAnnouncer`."""
        self._signing = signing
        self._store = store
        self._exchange = network.exchange
        self.addresses = addresses
        self.heads = HeadAnnouncer(
            signing, network.gossip, head_file=head_file, addresses=addresses, clock=clock, on_announce=on_announce
        )
        self._step = 0
        self._storing = asyncio.Lock()
        self.finished = False
        self.versions = self._restored_versions()
        """The first version of the era and the newest ones (rule 4), oldest first."""
        self._edges = self._restored_edges()
        self.stored = StoredWeights(store, lambda: [*self._edges.values()])
        self._again: tuple[int, int] | None = None
        """(era, version) of the snapshot that `whole` wrote."""
        self._rebuilder = PayloadRebuilder(store, network.handlers, edges=lambda: [*self._edges.values()], clock=clock)
        self._edges, self.versions = self._sealed_anew()
        HEAD.serve(network.handlers, self._answer_head, limit=HEAD.at_coordinator)
        DOCUMENTS.serve(network.handlers, self._answer_documents)

    @property
    def latest(self) -> Published | None:
        """The newest version published, None before the first."""
        return self.versions[-1] if self.versions else None

    @property
    def sealed_head(self) -> bytes | None:
        """The newest sealed Head, None before the first."""
        return self.heads.sealed

    @property
    def edges(self) -> Mapping[bytes, Edge]:
        """The signed edges by document hash, oldest first."""
        return MappingProxyType(self._edges)

    def payload_size(self) -> PayloadSize | None:
        """Return the payload size of the newest diff, else of the newest full edge; None before the first version."""
        edges = list(self._edges.values())
        newest = next((edge for edge in reversed(edges) if edge.base is not None), edges[-1] if edges else None)
        return None if newest is None else PayloadSize(newest.length, newest.chunk_size)

    async def whole(self, era: int, version: int, root: bytes) -> Path | None:
        """Return the snapshot of a version, written if it is not stored; it stays until the next publication. None
        where nothing stored leads to it, or what does is damaged."""
        async with self._storing:
            path = self.stored.snapshots().get(root)
            if path is None:
                path = await anyio.to_thread.run_sync(self._write_whole, era, version, root)
                self._again = (era, version)
            return path

    def steps_from(self, root: bytes) -> list[Edge]:
        """Return the edges that start at `root` and whose payloads are stored."""
        return [edge for edge in self._edges.values() if edge.base_root == root and self.payload(edge) is not None]

    def payload(self, edge: Edge) -> Path | None:
        """Return the file of an edge's payload; None if it is not stored."""
        return self._store.payload(edge.payload_hash)

    async def sign_with(self, signing: Signing) -> None:
        """Switch to the keys of a newer Root, sign again (rule 2), and announce a Head under them."""
        async with self._storing:
            self._signing = signing
            self.heads.sign_with(signing)
            self._edges, self.versions = await anyio.to_thread.run_sync(self._sealed_anew)
        await self.announce()

    async def publish(self, era: int, step: int, export: Export) -> Published:
        """Sign and announce a version; return once its Head is published (rules 1 and 2). For a version that is not
        newer than the latest, only sign a new Head, and return the latest. `step`: the learner's, for the Head."""
        self._step, latest = step, self.latest
        if latest is not None and (latest.era, latest.version) >= (era, export.version):
            await self.announce()
            return latest
        async with self._storing:
            published, edges = await anyio.to_thread.run_sync(self._make, era, export)
            for _, _, manifest in edges:
                await self._share(manifest)
            log.info("version stored", era=era, version=published.version)
            self._edges |= {digest: edge for digest, edge, _ in edges}
            self.versions.append(published)
            self._again = None
            await anyio.to_thread.run_sync(self._drop_snapshots)
        await self.announce()
        return published

    async def announce(self) -> None:
        """Sign a Head of the latest version and gossip it."""
        if self.latest is not None:
            await self.heads.announce(self.latest, self._step, self.finished)

    async def run(self) -> None:
        """Serve the stored payloads and renew the Head until cancelled. Start it when the network is ready."""
        await self._offer(list(self._edges.values()))
        while True:
            await self.announce()
            await self.heads.until_due()

    async def rebuild(self) -> None:
        """Rebuild dropped payloads when nodes request them, until cancelled."""
        await self._rebuilder.run(self._offer)

    async def retain(
        self, oldest: tuple[int, int], budget: int, payloads: int, kept: Collection[tuple[int, int]] = ()
    ) -> None:
        """Drop files until the store fits `budget` bytes in all and `payloads` bytes of payloads (or less, rule 4c).
        `oldest`: (era, version) of the oldest version in use. `kept`: numbers of further versions that can be read
        afterwards.

        Payloads are dropped oldest first. Versions and edges outside rule 4 are removed. During a publication this does
        nothing: the files of the new version are in the store before `versions` has it."""
        if not self.versions or self._storing.locked():
            return
        async with self._storing:
            window = self._window(oldest)
            path = await anyio.to_thread.run_sync(self._paths, window, oldest, kept)
            before = await anyio.to_thread.run_sync(self._path_to, window[0].root)
            self._forget(window, path.union(before))
            since, recent = (window[0].era, window[0].version), self._rebuilder.recent()
            spare = recent | {edge.payload_hash for edge in path}
            within = {edge.payload_hash for edge in before}
            for file in await anyio.to_thread.run_sync(self._collect, oldest, since, budget, payloads, spare, within):
                if file.path.parent.name == "payloads":
                    await self._exchange.unshare(file.hash)

    def _window(self, oldest: tuple[int, int]) -> list[Published]:
        """Return the newest `KEPT_VERSIONS` versions, and those back to `oldest`."""
        older = self.versions[:-KEPT_VERSIONS]
        return [one for one in older if (one.era, one.version) >= oldest] + self.versions[-KEPT_VERSIONS:]

    def _forget(self, window: list[Published], path: set[Edge]) -> None:
        """Remove versions and edges outside rule 4 from memory, before their files, so that none is offered."""
        since = (window[0].era, window[0].version)
        ends = {(edge.era, edge.version) for edge in path if edge.base is None}
        older = [one for one in self.versions if (one.era, one.version) in ends and one not in window]
        self.versions = older + window
        self._edges = {
            digest: edge for digest, edge in self._edges.items() if (edge.era, edge.version) >= since or edge in path
        }

    def _collect(
        self,
        oldest: tuple[int, int],
        since: tuple[int, int],
        budget: int,
        payloads: int,
        spare: set[bytes],
        before: set[bytes],
    ) -> list[StoredFile]:
        """Drop the files over the budgets and outside rule 4; return them. `since`: where the window begins. `spare`:
        hashes of payloads that stay; `before`: of those that stay within the budgets. Blocks."""
        latest = (self.versions[-1].era, self.versions[-1].version)
        self._drop_snapshots()
        snapshots = max((file.nbytes for file in self._store.snapshots()), default=0)
        payloads = min(payloads, max(LEAST_PAYLOADS, int(PAYLOAD_SHARE * snapshots)))
        used = {file.hash for file in self._store.payloads() if (file.era, file.version) >= oldest}
        spare = spare | used
        known = {(one.era, one.version) for one in self.versions}
        dropped = self._store.collect(known, 0, kind="payloads/", spare=spare | before)
        dropped += self._store.collect({latest}, payloads, kind="payloads/", spare=spare)
        whole = {(file.era, file.version) for file in self._store.snapshots()}
        dropped += self._store.collect({latest, *whole}, budget, spare=spare)
        self._store.forget_documents(KINDS, since, known, self._edges.keys())
        return dropped

    def _drop_snapshots(self) -> None:
        """Drop all snapshots but those of rule 4a. Blocks."""
        latest = (self.versions[-1].era, self.versions[-1].version)
        self._store.collect({latest, self._again or latest}, 0, kind="snapshots/")

    def _write_whole(self, era: int, version: int, root: bytes) -> Path | None:
        out = self._store.scratch(f"{root.hex()}.whole")
        try:
            weights = self.stored.read(root)
            if weights is None:
                return None
            write_out(weights, out)
        except (WeightsError, FileNotFoundError) as error:
            log.error("version not reconstructed", version=version, reason=str(error))
            return None
        return self._store.put_snapshot(era, version, root, out)

    def _paths(self, window: list[Published], oldest: tuple[int, int], kept: Collection[tuple[int, int]]) -> set[Edge]:
        """Return the edges of the paths that rule 4 keeps. Blocks."""
        used = next((one for one in window if (one.era, one.version) >= oldest), window[-1])
        stored, entrances = self.stored.payloads(), _entrances(self._signed_edges(self._edges))
        path = {self._edges[digest] for digest in entrances}
        before = {edge for edge in path if edge.base is None}
        for root in sorted({edge.root for edge in self._edges.values() if _end(edge) in kept}):
            path.update(path_to(stored, reachable(path, ()), root) or [])
        for full in before:  # by diffs too, where an older full edge is kept: that one alone then leads to both
            older = reachable(path - before, ())
            path.update(path_to([edge for edge in stored if edge.base is not None], older, full.root) or [])
        return path.union(path_to(stored, reachable(path, ()), used.root) or [])

    def _path_to(self, root: bytes) -> list[Edge]:
        """Return the stored edges that lead from nothing to `root`; empty if there is no such path. Blocks."""
        return path_to(self.stored.payloads(), (), root) or []

    def _make(self, era: int, export: Export) -> tuple[Published, list[tuple[bytes, Edge, Manifest]]]:
        """Put the files into the store, then the signed documents. Return the version, and each edge with its
        document's hash and its payload's manifest. Blocks; it changes nothing that the event loop reads."""
        snapshot = self._store.put_snapshot(era, export.version, export.root, self._adopt_file(Path(export.snapshot)))
        opened = Snapshot(snapshot, root=export.root)
        edges = [self._edge(era, export, edge, opened) for edge in export.edges]
        known = self._edges | {digest: edge for digest, edge, _ in edges}
        index = EdgeIndex(era=era, version=export.version, edges=self._index(known)).to_bytes()
        index_hash = self._store.put_document("edgeindex", era, export.version, index)
        version = Version(
            era=era, version=export.version, root=export.root, tensors=opened.tensors, aliases=opened.aliases
        )
        sealed = self._seal("version", version.to_bytes())
        version_hash = self._store.put_document("version", era, export.version, sealed)
        # This record makes the version published: it is written last and read at a restart.
        published = Published(era, export.version, export.root, version_hash, index_hash)
        self._store.put_document("published", era, export.version, published.record())
        return published, edges

    def _sealed_anew(self) -> tuple[dict[bytes, Edge], list[Published]]:
        """Sign the documents of a former policy key again with the present one (rule 2). Return the edges and the
        versions after that. Blocks."""
        if self._signed_today():
            return self._edges, self.versions
        edges, resealed = dict[bytes, Edge](), list[tuple[str, int, int, bytes]]()
        for edge in self._edges.values():
            sealed = self._seal("edge", edge.to_bytes())
            edges[document_hash(sealed)] = edge
            resealed.append(("edge", edge.era, edge.version, sealed))
        old = self.versions[-1]
        stored = self._store.document(old.version_hash) or b""
        version = self._seal("version", verify_envelope(stored, "version", self._signing.run, self._signing.policies))
        index = EdgeIndex(era=old.era, version=old.version, edges=self._index(edges)).to_bytes()
        new = Published(old.era, old.version, old.root, document_hash(version), document_hash(index))
        contents = {"version": version, "edgeindex": index, "published": new.record()}
        resealed += [(kind, old.era, old.version, content) for kind, content in contents.items()]
        gone = {*self._edges, old.version_hash, old.index_hash, document_hash(old.record())}
        self._store.replace_documents(resealed, gone)
        log.info("versions sealed by the new policy key", edges=len(edges), version=old.version)
        return edges, [*self.versions[:-1], new]

    def _seal(self, kind: str, payload: bytes) -> bytes:
        return seal(kind, self._signing.run, payload, self._signing.policy)

    def _edge(self, era: int, export: Export, edge: ExportedEdge, opened: Snapshot) -> tuple[bytes, Edge, Manifest]:
        payload = Path(edge.payload)
        manifest = edge.hashed or chunks.hash_payload(payload)  # rule 5
        stored = self._store.put_payload(era, export.version, manifest.hash, self._adopt_file(payload))
        # If the store already has a file of that name, it keeps it; the chunk hashes are of the learner's file.
        known: Manifest = manifest if stored.samefile(payload) else bare(manifest)
        document = Edge(
            era=era,
            base=edge.base,
            base_root=edge.base_root,
            version=export.version,
            root=export.root,
            codec=frames.NAME,
            payload_hash=manifest.hash,
            length=manifest.length,
            chunk_size=manifest.chunk_size,
            chunk_root=manifest.chunk_root,
            tensor_hashes=b"".join(opened.tensor_hashes()) if edge.base_root is None else b"",
        )
        sealed = self._seal("edge", document.to_bytes())
        return self._store.put_document("edge", era, export.version, sealed), document, known

    def _index(self, edges: dict[bytes, Edge]) -> list[bytes]:
        """Return the hashes of the edges for a follower's update path, if their payloads can be served: the newest full
        edge, the newest edge from its version (the anchor), the links, and the newest `REACH_EDGES`."""
        signed = self._signed_edges(edges)
        return list(dict.fromkeys([*_entrances(signed), *list(signed)[-REACH_EDGES:]]))

    def _signed_edges(self, edges: dict[bytes, Edge]) -> dict[bytes, Edge]:
        """Return the edges whose payloads are stored or can be rebuilt."""
        payloads = {file.hash for file in self._store.payloads()} | self._rebuilder.possible()
        return {digest: edge for digest, edge in edges.items() if edge.payload_hash in payloads}

    def _adopt_file(self, path: Path) -> Path:
        """Link one of the learner's files, or copy it where links are refused: the store moves what this returns, and
        the learner keeps its file."""
        target = self._store.scratch(path.name)
        target.unlink(missing_ok=True)
        link_or_copy(path, target)
        return target

    async def _offer(self, edges: list[Edge]) -> None:
        """Serve the stored payloads of `edges`; a damaged file is logged and skipped."""
        async with self._storing:
            for edge in edges:
                try:
                    await self._share(manifest_of_edge(edge))
                except LocalFault as fault:
                    log.warning("payload not served", version=edge.version, reason=str(fault))

    async def _share(self, manifest: Manifest) -> None:
        """Serve a payload, if it is stored. The caller has acquired `_storing`, so that the file cannot be dropped
        meanwhile."""
        path = self._store.payload(manifest.hash)
        if path is not None:
            await self._exchange.share(manifest, path)

    def _restored_edges(self) -> dict[bytes, Edge]:
        keys = self._signing.policies
        since = next(((one.era, one.version) for one in self.versions[1:]), (0, 0))
        documents = [one for one in self._store.oldest("edge", MOST_EARLIER_EDGES) if (one.era, one.version) < since]
        return {
            stored.hash: Edge.from_bytes(verify_envelope(stored.sealed, "edge", self._signing.run, keys))
            for stored in [*documents, *self._store.documents("edge", since)]
        }

    def _signed_today(self) -> bool:
        """Tell whether the present policy key signed the latest Version, and so all documents signed with it. True if
        there is no version."""
        document = self._store.document(self.versions[-1].version_hash) if self.versions else None
        return document is None or self._signing.by_policy(document, "version")

    def _restored_versions(self) -> list[Published]:
        documents = self._store.newest("published", MOST_RESTORED_VERSIONS)
        first = [one for one in self._store.oldest("published", 1) if one not in documents[:1]]
        return [Published.of(one) for one in [*first, *documents]]

    async def _answer_head(self, peer: str, ask: HeadRequest) -> HeadResponse:
        return document_service.head(ask, self.sealed_head, self._signing.roots)

    async def _answer_documents(self, peer: str, ask: DocumentsRequest) -> DocumentsResponse:
        return document_service.documents(ask, self._store.document)


def _end(edge: Edge) -> tuple[int, int]:
    return edge.era, edge.version


def _entrances(signed: dict[bytes, Edge]) -> list[bytes]:
    """Return the hashes of the edges from which a new or outdated node starts: the newest full edge, the newest from
    its version (the anchor), and the links (rule 4b)."""
    full = [digest for digest, edge in signed.items() if edge.base is None][-1:]
    if not full:
        return []
    anchor = [digest for digest, edge in signed.items() if edge.base_root == signed[full[0]].root][-1:]
    return full + anchor + _links(signed, signed[full[0]])


def _links(signed: dict[bytes, Edge], full: Edge) -> list[bytes]:
    """Return the hashes of the links to the version of `full` (rule 4b); empty: there are none that save bytes."""
    firsts = {edge.base_root for edge in signed.values() if edge.base == 0 and edge.base_root is not None}
    diffs = {edge: digest for digest, edge in signed.items() if edge.base is not None}
    chain = path_to(diffs, firsts, full.root) if firsts else None
    if chain is None or len(chain) > MOST_LINKS or sum(edge.length for edge in chain) >= full.length:
        return []
    return [diffs[edge] for edge in chain]
