"""A small coordinator on the in-memory network, honest unless a test replaces one of its methods; and nodes for it.

It signs with real keys, publishes real snapshots through weights, leases groups of a bigram policy, and scores them
with the same policy. A test falsifies a document by replacing the method that makes it.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.memory_network.transport import MemoryNetwork
from benchmarks.plays.direct import generate
from echo2.engines.engine import DTYPES, EngineRows, Job, Sample
from echo2.engines.process.messages import ROWS_NOTICE, Probed
from echo2.engines.process.process import EngineProcess, Play
from echo2.node.config import NodeConfig
from echo2.node.daemon import NodeDaemon
from echo2.node.links.coordinator_client import CoordinatorClient
from echo2.node.owner.device_sensors import DeviceSensors
from echo2.node.owner.owner_probes import Probe
from echo2.node.run_context import RunContext
from echo2.node.versions.base_copies import BaseCopies
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.envelope import decode_unverified, document_hash, seal, verify_envelope
from echo2.p2p.identity import generate_key, peer_id, public_bytes
from echo2.p2p.network import AnyPeer, Network
from echo2.p2p.peer.peer import Peer
from echo2.p2p.swarm.manifest import manifest_of
from echo2.p2p.wire_types import decode, encode  # fmt: skip
from echo2.protocol.authority import Asset, RoleKeys, Root, RunSpec, TaskReference  # fmt: skip
from echo2.protocol.broadcast_messages import Acknowledgement  # fmt: skip
from echo2.protocol.leases import (  # fmt: skip
    Lease,
    LeaseReport,
    LeaseRequest,
    Receipt,
    Received,
    Submission,
    VerdictsRequest,
    VerdictsResponse,
)
from echo2.protocol.market import MarketRequest, MarketResponse, PayeeRequest, PayeeResponse  # fmt: skip
from echo2.protocol.refusals import refusal  # fmt: skip
from echo2.protocol.requests import (  # fmt: skip
    DocumentsRequest,
    DocumentsResponse,
    Hello,
    RankResponse,
    Refusal,
    Request,
    Response,
    Welcome,
)
from echo2.protocol.versions import Head, HeadResponse  # fmt: skip
from echo2.runtime.child import ChildDied, ChildError
from echo2.weights.diff import encode as encode_diff
from echo2.weights.documents import Edge, EdgeIndex, Version
from echo2.weights.errors import WeightsError
from echo2.weights.snapshot import Snapshot
from tests.support.bigram import VOCABULARY, BigramEngine, nudged, random_table, write_table
from tests.support.served import generate_served

T = TypeVar("T")
START = 1_700_000_000_000
"""Wall clock at the beginning of the loop's fake clock, in ms since the Unix epoch."""
HEAD_LIFE = 60_000
SKEW = 600_000
YEAR = 365 * 24 * 3600_000


def wall() -> int:
    """Return milliseconds since the Unix epoch, on the loop's (fake) clock."""
    return START + int((anyio.current_time() - 1_000_000.0) * 1000)


@dataclass
class Keys:
    root: Ed25519PrivateKey = field(default_factory=generate_key)
    policy: Ed25519PrivateKey = field(default_factory=generate_key)
    channel: Ed25519PrivateKey = field(default_factory=generate_key)
    ledger: Ed25519PrivateKey = field(default_factory=generate_key)

    def roles(self) -> dict[str, RoleKeys]:
        names = ("root", "policy", "channel", "ledger")
        return {name: RoleKeys(keys=[public_bytes(getattr(self, name))], threshold=1) for name in names}


class FakeCoordinator:
    """An honest coordinator. `published`: Versions by number. `decided`: Receipts by lease. `asked`: requests by
    method. `ended`: leases that it ended before their time. `reports`: those of nodes on their open leases.
    `on_market`, `on_payee`: answer these methods of a node, named by its peer id; None: they are unknown."""

    def __init__(self, folder: Path, *, run: bytes = b"r" * 32, group: int = 2, now: Callable[[], int] = wall) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.run, self.keys, self.now, self.group = folder, run, Keys(), now, group
        self.identity = generate_key()
        self.roots = [self.sealed_root(0, self.keys, self.keys.root)]
        self.documents: dict[bytes, bytes] = {}
        self.snapshots: dict[int, Snapshot] = {}
        self.edges: list[tuple[bytes, Edge, Path]] = []
        self.published: dict[int, Version] = {}
        self.head: bytes | None = None
        self.sequence = 0
        self.era = 1
        self.leases: dict[bytes, Lease] = {}
        self.submitted: dict[bytes, bytes] = {}
        self.decided: dict[bytes, bytes] = {}
        self.confirmed: set[bytes] = set()
        self.acknowledged: list[tuple[bytes, Acknowledgement]] = []
        self.asked: dict[str, int] = {}
        self.ended: set[bytes] = set()
        self.reports: list[LeaseReport] = []
        self.refusals: dict[str, Refusal] = {}
        self.delays: dict[str, float] = {}
        self.finished = False
        self.on_market: Callable[[str, MarketRequest], MarketResponse] | None = None
        self.on_payee: Callable[[str, PayeeRequest], PayeeResponse | Refusal] | None = None
        self.known_nodes: list[bytes] = []
        self.assets: list[tuple[Asset, Path]] = []
        self.add_asset("config.json", b'{"model_type": "bigram"}')
        self.runspec = self.sealed_runspec()
        self.peer: AnyPeer | None = None

    # --- documents ---------------------------------------------------------------------------------------------------

    def sealed_root(self, serial: int, keys: Keys, *signers: Ed25519PrivateKey, expires: int = START + YEAR) -> bytes:
        issued = self.now() + 1 if serial else START  # what was signed in this very millisecond came before it
        root = Root(run=self.run, serial=serial, roles=keys.roles(), expires=expires, issued=issued)
        return seal("root", self.run, encode(root), *signers)

    def sealed_runspec(self, **changes: Any) -> bytes:
        fields: dict[str, Any] = {
            "run": self.run, "name": "a run", "model": "bigram", "assets": [asset for asset, _ in self.assets],
            "eos": 1, "vocabulary": VOCABULARY, "tasks": [TaskReference(name="reverse", version=1)], "staleness": 4,
            "group_size": self.group, "limit": 8, "compute_dtype": "float32", "engines": ["bigram"],
            "sampling": "gumbel-splitmix64/1", "price_mode": "points",
        }  # fmt: skip
        return seal("runspec", self.run, encode(RunSpec(**fields | changes)), self.keys.root)

    def add_asset(self, name: str, data: bytes) -> None:
        path = self.folder / f"asset-{len(self.assets)}"
        path.write_bytes(data)
        self.assets.append((Asset(name=name, manifest=manifest_of(path)), path))

    def invite(self, *addresses: str) -> Invite:
        where = list(addresses) or [f"/memory/0/p2p/{self.peer_id}"]
        return Invite(run=self.run, root_hash=hashlib.sha256(self.roots[0]).digest(), addresses=where)

    @property
    def peer_id(self) -> str:
        return peer_id(public_bytes(self.identity))

    def keep(self, data: bytes) -> bytes:
        digest = document_hash(data)
        self.documents[digest] = data
        return digest

    # --- publishing --------------------------------------------------------------------------------------------------

    async def publish(self, version: int, table_seed: int | None = None, **lies: Any) -> None:
        """Make, sign and announce a version: by a full edge for the first, else by a diff from the version before."""
        previous = self.snapshots[max(self.snapshots)] if self.snapshots else None
        base = max(self.snapshots) if self.snapshots else None
        table = random_table(0) if table_seed is None else random_table(table_seed)
        if previous is not None and table_seed is None:
            from tests.support.bigram import read_table

            table = nudged(read_table(previous), version)
        snapshot = write_table(self.folder / f"{self.era}-{version}.safetensors", table)
        self.snapshots[version] = snapshot
        await self.add_edge(base, version, previous, snapshot)
        self.published[version] = Version(
            era=self.era, version=version, root=snapshot.root, tensors=snapshot.tensors, aliases=snapshot.aliases
        )
        await self.announce(version, **lies)

    async def add_edge(self, base: int | None, version: int, old: Snapshot | None, new: Snapshot) -> None:
        path = self.folder / f"{self.era}-{base}-{version}.edge"
        payload = encode_diff(old, new, path)
        manifest = manifest_of(path)
        edge = Edge(
            era=self.era, base=base, base_root=old.root if old else None, version=version, root=new.root,
            codec=payload.codec, payload_hash=manifest.hash, length=manifest.length, chunk_size=manifest.chunk_size,
            chunk_root=manifest.chunk_root, tensor_hashes=b"" if old else b"".join(new.tensor_hashes()),
        )  # fmt: skip
        digest = self.keep(self.sealed_edge(edge))
        self.edges.append((digest, edge, path))
        if self.peer is not None:
            await self.peer.share(manifest, path)

    def sealed_edge(self, edge: Edge) -> bytes:
        return seal("edge", self.run, edge.to_bytes(), self.keys.policy)

    def sealed_version(self, version: Version) -> bytes:
        return seal("version", self.run, version.to_bytes(), self.keys.policy)

    async def announce(self, number: int | None = None, /, **lies: Any) -> None:
        """Sign a Head for a version (default: the newest) and gossip it."""
        number = max(self.published) if number is None else number
        self.head = self.sealed_head(number, **lies)
        if self.peer is not None:
            await self.peer.publish(f"echo2/{self.run.hex()}/head", self.head)

    def sealed_head(self, number: int, /, *, key: Ed25519PrivateKey | None = None, **changes: Any) -> bytes:
        self.sequence += 1
        index = EdgeIndex(era=self.era, version=number, edges=[digest for digest, _, _ in self.edges]).to_bytes()
        fields: dict[str, Any] = {
            "era": self.era, "version": number, "version_hash": self.keep(self.sealed_version(self.published[number])),
            "index_hash": self.keep(index), "step": number, "sequence": self.sequence,
            "addresses": [f"/memory/0/p2p/{self.peer_id}"], "root_serial": 0, "issued": self.now(),
            "expires": self.now() + HEAD_LIFE, "finished": self.finished,
        }  # fmt: skip
        return seal("head", self.run, encode(Head(**fields | changes)), key or self.keys.channel)

    # --- serving -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def serving(self, network: MemoryNetwork) -> AsyncIterator[Peer]:
        """Serve on the network until the block ends."""
        peer = Peer(network.transport(self.peer_id), seed=0)
        async with self.serving_as(peer):
            yield peer

    @asynccontextmanager
    async def serving_as(self, peer: AnyPeer) -> AsyncIterator[None]:
        """Serve as this peer, of any network, until the block ends."""
        self.peer = peer
        for method in ("hello", "lease", "submit", "verdicts", "acknowledge", "market", "payee", "rank"):
            peer.serve(method, self._handler(method), limit=1 << 20)
        peer.serve("head", self.answer_head, limit=4096)
        peer.serve("documents", self.answer_documents, limit=4096)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.run)
            await peer.ready()
            for asset, path in self.assets:
                await peer.share(asset.manifest, path)
            for _, _, path in self.edges:
                await peer.share(manifest_of(path), path)
            tasks.start_soon(self._renew)
            try:
                yield
            finally:
                self.peer = None
                tasks.cancel_scope.cancel()

    async def _renew(self) -> None:
        while True:
            await anyio.sleep(HEAD_LIFE / 3000)
            if self.head is not None and self.published:
                await self.announce()

    def _handler(self, method: str) -> Callable[[str, bytes], Any]:
        async def handle(peer: str, data: bytes) -> bytes:
            self.asked[method] = self.asked.get(method, 0) + 1
            sealed = decode_unverified(data)
            node = sealed.signatures[0].key
            request = decode(verify_envelope(data, "request", self.run, {node}), Request)
            if request.leases is not None:
                self.reports.append(request.leases)
            ended = [] if request.leases is None else [one for one in request.leases.waiting if one in self.ended]
            if method != "hello" and abs(request.expires - self.now()) > SKEW:
                return encode(Response(refusal=refusal("clock", off=request.expires - self.now(), most=SKEW)))
            refused = self.refusals.get(method)
            answer = refused or getattr(self, method)(node, request.body)
            asked = None if "verdicts" in self.refusals else request.verdicts
            verdicts = None if asked is None else self.answer_verdicts(asked)
            if refused is None and method in self.delays:
                await anyio.sleep(self.delays[method])
            if isinstance(answer, Refusal):
                return encode(Response(refusal=answer, verdicts=verdicts, ended=ended))
            return encode(Response(body=answer, verdicts=verdicts, ended=ended))

        return handle

    async def answer_head(self, peer: str, data: bytes) -> bytes:
        return encode(HeadResponse(head=self.head))

    async def answer_documents(self, peer: str, data: bytes) -> bytes:
        hashes = decode(data, DocumentsRequest).hashes
        return encode(DocumentsResponse(documents=[self.documents.get(wanted) for wanted in hashes]))

    def hello(self, node: bytes, body: bytes) -> bytes | Refusal:
        self.known_nodes.append(decode(body, Hello).record)
        return encode(
            Welcome(roots=self.roots, runspec=self.runspec, head=self.head, peers=self.known_nodes[-8:], now=self.now())
        )

    def lease(self, node: bytes, body: bytes) -> bytes | Refusal:
        ask = decode(body, LeaseRequest)
        newest = max(self.published)
        if self.finished:
            return Refusal(code="finished", sentence="The run is finished: no more leases.")
        if ask.version < newest - 4:
            return Refusal(code="stale-version", sentence=f"hold version {newest}", retry_after=1000)
        lease = self.make_lease(node, ask)
        self.leases[lease.id] = lease
        return self.sealed_lease(lease)

    def make_lease(self, node: bytes, ask: LeaseRequest, /, **changes: Any) -> Lease:
        fields: dict[str, Any] = {
            "id": os.urandom(16), "node": node, "nonce": ask.nonce, "task": "reverse", "task_version": 1,
            "index": len(self.leases), "prompt": [2, 3, 4], "seeds": [os.urandom(16) for _ in range(self.group)],
            "limit": 8, "era": ask.era, "version": ask.version, "root": ask.root, "sent": self.now(),
            "expires": self.now() + 60_000,
        }  # fmt: skip
        return Lease(**fields | changes)

    def sealed_lease(self, lease: Lease) -> bytes:
        return seal("lease", self.run, encode(lease), self.keys.channel)

    def submit(self, node: bytes, body: bytes) -> bytes | Refusal:
        submission = decode(body, Submission)
        lease = self.leases.get(submission.lease)
        if lease is None:
            return Refusal(code="unknown-lease", sentence="There is no such lease.")
        if self.submitted.setdefault(lease.id, body) != body:
            return Refusal(code="other-bytes", sentence="Other bytes were submitted for this lease before.")
        return self.sealed_received(lease, body)

    def sealed_received(self, lease: Lease, body: bytes) -> bytes:
        received = Received(lease=lease.id, submission_hash=document_hash(body), at=self.now())
        return seal("received", self.run, encode(received), self.keys.ledger)

    def verdicts(self, node: bytes, body: bytes) -> bytes | Refusal:
        return b""

    def answer_verdicts(self, ask: VerdictsRequest) -> VerdictsResponse:
        self.confirmed.update(ask.confirmed)
        for lease in ask.leases:
            if lease in self.submitted and lease not in self.decided:
                self.decided[lease] = self.judge(self.leases[lease], self.submitted[lease])
        unknown = [lease for lease in ask.leases if lease not in self.submitted]
        return VerdictsResponse(receipts=[self.decided.get(lease) for lease in ask.leases], unknown=unknown)

    def acknowledge(self, node: bytes, body: bytes) -> bytes | Refusal:
        self.acknowledged.append((node, decode(body, Acknowledgement)))
        return b""

    def market(self, node: bytes, body: bytes) -> bytes | Refusal:
        if self.on_market is None:
            return refusal("unknown-method", method="market")
        return encode(self.on_market(peer_id(node), decode(body, MarketRequest)))

    def payee(self, node: bytes, body: bytes) -> bytes | Refusal:
        if self.on_payee is None:
            return refusal("unknown-method", method="payee")
        answer = self.on_payee(peer_id(node), decode(body, PayeeRequest))
        return answer if isinstance(answer, Refusal) else encode(answer)

    def rank(self, node: bytes, body: bytes) -> bytes:
        return encode(RankResponse(rank=1 if self.decided else None, nodes=len(self.known_nodes)))

    def judge(self, lease: Lease, body: bytes) -> bytes:
        """Generate the group again under the lease's version, and return a Receipt: seeded sampling has one right
        answer."""
        engine = BigramEngine()
        engine.load(self.folder, self.snapshots[lease.version].path)
        job = Job(
            prompt=lease.prompt, seeds=lease.seeds, limit=lease.limit, eos=1, task=lease.task,
            task_version=lease.task_version, split="train", index=lease.index,
        )  # fmt: skip
        right = [sample.tokens for sample in generate(engine, job)]
        submission = decode(body, Submission)
        good = [rollout.tokens for rollout in submission.rollouts] == right and submission.root == lease.root
        return self.sealed_receipt(lease, body, "accepted" if good else "refused")

    def sealed_receipt(self, lease: Lease, body: bytes, verdict: str, **changes: Any) -> bytes:
        fields: dict[str, Any] = {
            "run": self.run, "node": lease.node, "lease": lease.id, "era": lease.era, "version": lease.version,
            "submission_hash": document_hash(body), "verdict": verdict,
            "code": "ok" if verdict == "accepted" else "seeded-choice",
            "reason": "", "trainable": True, "weight": 1000, "entry": len(self.decided), "entry_hash": bytes(32),
            "at": self.now(),
        }  # fmt: skip
        return seal("receipt", self.run, encode(Receipt(**fields | changes)), self.keys.ledger)


class InProcessEngine(EngineProcess):
    """An `EngineProcess` without a process, over `BigramEngine`; it may be started again. `seconds`: duration of a
    group on the loop's clock. `places`: groups that it generates at once. `starting`: duration of a start. `crashes`:
    number of the next generations that end in a crash. `short`: whether there is no memory for any group. `deadly`:
    prompts at which it crashes. `log`: calls, in order. The tokens so far of a group grow evenly over its time."""

    def __init__(
        self, *, seconds: float = 1.0, gpu: str = "bigram/float32/cpu", places: int = 1, starting: float = 0.0
    ) -> None:
        super().__init__()
        self.short = False
        self._starting_seconds, self._killed = starting, asyncio.Event()
        self.seconds, self.crashes, self._class = seconds, 0, gpu
        self.deadly: list[list[int]] = []
        self.places, self._places = places, asyncio.Semaphore(places)
        self._under_way: list[int] = []
        self.engine: BigramEngine | None = None
        self.log: list[str] = []
        self.generated = 0

    async def start(self) -> None:
        if self._starting_seconds:
            await anyio.sleep(self._starting_seconds)
        self.engine, self.probed, self.loaded = BigramEngine(), None, None
        self._killed = asyncio.Event()

    def kill(self) -> None:
        """Crash at once, whatever is being generated."""
        self.engine = None
        self._killed.set()

    async def call(
        self, method: str, body: Any, type_: type[T], *, timeout: float | None = None, withdraw: bool = False
    ) -> T:
        engine = self._running()
        self.log.append(f"start {body.dtype}" if method == "probe" else method)
        answer: Any = None
        if method == "probe":
            answer = Probed(
                kind="cpu", name="a table", why="it is a test", engine_class=self._class, dtypes=list(DTYPES),
            )  # fmt: skip
            return answer  # type: ignore[no-any-return]
        if method == "duty":
            return answer  # type: ignore[no-any-return]
        if method == "generate":
            answer = await self._generated(engine, body.job)
            return answer  # type: ignore[no-any-return]
        try:
            answer = body.run(engine)
        except WeightsError as error:
            raise ChildError(type(error).__name__, str(error)) from error
        return answer  # type: ignore[no-any-return]

    async def stop(self, grace: float = 5.0) -> int:
        self.log.append("stop")
        self.engine = None
        return 0

    def die(self) -> None:
        """End as a process that is killed."""
        self.engine = None

    async def _generated(self, engine: BigramEngine, job: Job) -> list[Sample]:
        if self.loaded is None:
            raise ChildError("EngineError", "no weights are loaded: call load first")
        if self.short:
            raise ChildError("NoMemory", "out of memory: no rollout of this length fits")
        self._under_way.append(len(job.seeds))
        self._tell()
        try:
            async with self._places:
                if self.engine is engine:
                    await self._generating(engine, job)
                return generate(self._same(engine), job)
        finally:
            self._under_way.remove(len(job.seeds))
            self._tell()

    async def generate_served(self, job: Job, play: Play) -> list[Sample]:
        engine = self._running()
        self.log.append("generate_served")
        self._under_way.append(len(job.seeds))
        self._tell()
        try:
            async with self._places:
                await self._generating(engine, job)
                return await generate_served(engine.twin(), job, play, check=lambda: self._same(engine))
        finally:
            self._under_way.remove(len(job.seeds))
            self._tell()

    def _tell(self) -> None:
        """Tell of the rows, as if all groups were of the size of the largest one under way."""
        size = max(self._under_way, default=1)
        waiting = size * max(0, len(self._under_way) - self.places)
        rows = EngineRows(running=sum(self._under_way) - waiting, waiting=waiting, limit=size * self.places)
        self._on_message(ROWS_NOTICE, msgspec.msgpack.encode(rows))

    async def _generating(self, engine: BigramEngine, job: Job) -> None:
        with anyio.move_on_after(self.seconds):
            await self._killed.wait()
        if self.crashes or job.prompt in self.deadly:
            self.crashes = max(0, self.crashes - 1)
            self.engine = None
        self._same(engine)
        self.generated += 1

    def _same(self, engine: BigramEngine) -> BigramEngine:
        if self.engine is not engine:
            raise ChildDied("engine", -9, "killed")
        return engine

    def _running(self) -> BigramEngine:
        if self.engine is None:
            raise ChildDied("engine", -9, "the engine does not run")
        return self.engine


@dataclass
class Node:
    """A daemon on the in-memory network, and its parts."""

    daemon: NodeDaemon
    engine: InProcessEngine
    peer_id: str
    home: Path

    @property
    def coordinator_client(self) -> CoordinatorClient:
        return self.daemon.connectivity.coordinator_client

    def holds(self, version: int) -> bool:
        """Tell whether the engine has loaded this version."""
        current = self.daemon.engine.current
        return current is not None and current.version == version


def make_node(
    network: MemoryNetwork,
    home: Path,
    invite: Invite,
    *,
    key: Ed25519PrivateKey | None = None,
    engine: InProcessEngine | None = None,
    make: Callable[[], InProcessEngine] | None = None,
    once: bool = False,
    local: Callable[[], int] = wall,
    at: str | None = None,
    owner: Sequence[Probe] = (),
    sensors: DeviceSensors | None = None,
    copies: BaseCopies | None = None,
    **config: Any,
) -> Node:
    """Make a node with its own key and folder; run it with `node.daemon.run()`. `make`: returns a new engine process,
    for a node with several; without it, `engine` is each of them. `at`: its name in the network, where another daemon
    with its key is there already. `owner`, `sensors`, `copies`: see `NodeDaemon`."""
    key, engine = key or generate_key(), engine or InProcessEngine()
    own = peer_id(public_bytes(key))
    peer = Peer(network.transport(at or own), seed=1)
    settings = NodeConfig(home=home, **config)
    home.mkdir(parents=True, exist_ok=True)
    context = RunContext.open(home, invite, key, local=local, seed=7)
    daemon = NodeDaemon(
        settings, context, Network.of(peer), make or (lambda: engine), once=once, owner=owner, sensors=sensors,
        copies=copies,
    )  # fmt: skip
    return Node(daemon, engine, own, home)


async def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait on the loop's clock until `condition` is true; fail after `seconds`."""
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 (what is waited for has no event)
            await anyio.sleep(0.05)
