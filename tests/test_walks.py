"""Two walks through the program, counted: a step from the learner to the engine, a submission from its request to a
batch. The tables of docs/adr/0011-short-ways.md come from here; the bars are what the walks may cost at most.
"""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.memory_network.transport import MemoryNetwork
from echo2.coordinator.learner.batches.batch_groups import read
from echo2.coordinator.learner.messages import Export, ExportedEdge
from echo2.coordinator.leases.kinds.plain_leases import PlainLeases
from echo2.coordinator.publishing.publisher import Publisher
from echo2.coordinator.publishing.signing_keys import Signing
from echo2.coordinator.submissions.request_handler import RequestHandler
from echo2.coordinator.submissions.submissions import SubmissionService
from echo2.coordinator.verification.submitted_group import UnreadSubmission
from echo2.coordinator.verification.verification import judge
from echo2.engines.process.process import EngineProcess
from echo2.engines.process.versioned import LoadedVersion, VersionedEngine
from echo2.node.versions.acknowledgements import Acknowledger
from echo2.node.versions.payload_fetcher import PayloadFetcher
from echo2.p2p.envelope import Envelope, Verified, document_hash, seal, verify_named
from echo2.p2p.handlers import Handlers
from echo2.p2p.https.client import HttpsClient
from echo2.p2p.https.failover import FailoverNetwork
from echo2.p2p.identity import generate_key, public_bytes
from echo2.p2p.libp2p.threaded_network import ThreadedPeer
from echo2.p2p.libp2p.trio_bridge import TrioThread
from echo2.p2p.limits.origin import LOCAL_ORIGIN
from echo2.p2p.network import Network
from echo2.p2p.swarm.download import Download
from echo2.p2p.swarm.exchange import ChunkExchange
from echo2.p2p.swarm.manifest import hash_payload, leaf_digest, manifest_of
from echo2.p2p.swarm.payload_file import PayloadFile
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Submission
from echo2.protocol.requests import Request
from echo2.protocol.versions import Head
from echo2.runtime.child import Child
from echo2.weights.diff import encode as encode_diff
from echo2.weights.documents import Edge, EdgeIndex, Version
from echo2.weights.journaled import Rolling
from echo2.weights.payload_format import Sink
from echo2.weights.snapshot import Snapshot
from echo2.weights.store import Store
from tests.support.bigram import nudged, random_table, write_table
from tests.support.children import child
from tests.support.clock import run_fake
from tests.support.fake_coordinator import FakeCoordinator, make_node, until
from tests.support.group_world import KEYS, RUN, World, control_of, group, honest_scores
from tests.support.lease_walk import walk_of_lease_request
from tests.support.paths import ROOT
from tests.support.publishing import network_of
from tests.support.swarm import working
from tests.support.walk import Walk, Watch, hashing

DOCUMENTS = tuple(kind.__name__ for kind in (Envelope, Head, Version, EdgeIndex, Edge))
TRANSPORT = ("p2p/libp2p/", "p2p/guard.py")
"""Where bytes are carried: work that runs beside every walk, but for the bridge between the two threads."""
BRIDGE = "p2p/libp2p/trio_bridge.py"


class Step:
    """A step of a small table: a folder of weights at the old version, and the payload and the edge to the new one."""

    def __init__(self, folder: Path) -> None:
        table = random_table(0, 768)
        self.old = write_table(folder / "old.safetensors", table)
        self.new = write_table(folder / "new.safetensors", nudged(table, 1, share=0.3))
        self.payload = encode_diff(self.old, self.new, folder / "payload")
        manifest = manifest_of(self.payload.path)
        edge = Edge(
            era=1, base=1, base_root=self.old.root, version=2, root=self.new.root, codec=self.payload.codec,
            payload_hash=manifest.hash, length=manifest.length, chunk_size=manifest.chunk_size,
            chunk_root=manifest.chunk_root,
        )  # fmt: skip
        self.edge: Verified[Edge] = verify_named(edge.to_bytes(), document_hash(edge.to_bytes()), Edge.from_bytes)
        Rolling.create(folder / "held", self.old)
        self.before = LoadedVersion(era=1, version=1, root=self.old.root, weights=folder / "held")
        self.after = LoadedVersion(era=1, version=2, root=self.new.root, weights=folder / "held")


def steps_of(walk: Walk) -> list[str]:
    """Return the functions that wait for the doer, without those that carry bytes."""
    return [name for name in walk.waiting if name.startswith(BRIDGE) or not name.startswith(TRANSPORT)]


def passed(walk: Walk) -> list[str]:
    """Return the types of the objects on the way, each once."""
    return list(dict.fromkeys(kind for name in steps_of(walk) if (kind := walk.functions[name])))


def bytes_by(*functions: Any) -> set[str]:
    """Return the modules of these functions and classes."""
    return {function.__module__ for function in functions}


async def test_a_payload_is_hashed_once_on_its_way_from_the_learner_to_the_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, key, peers = Step(tmp_path), generate_key(), _Peers()
    with hashing(monkeypatch) as nbytes, Store(tmp_path / "store") as store:
        edge_payload = encode_diff(step.old, step.new, tmp_path / "v2.edge")
        known = hash_payload(edge_payload.path, edge_payload.hash)
        assert set(nbytes) == bytes_by(Sink, hash_payload)
        assert nbytes[Sink.__module__] == edge_payload.length, "the whole, as it is written"
        assert nbytes[hash_payload.__module__] <= 1.1 * edge_payload.length, "its chunks, and the tree over them"
        nbytes.clear()
        edge = ExportedEdge(base=1, base_root=step.old.root, payload=str(edge_payload.path), hashed=known)
        export = Export(version=2, root=step.new.root, snapshot=str(step.new.path), edges=[edge], seconds=0.0)
        signing = Signing(run=bytes(32), policy=key, channel=key, root_serial=1)
        publisher = Publisher(
            signing, store, network_of(peers), head_file=tmp_path / "head", addresses=peers.addresses,
            clock=lambda: 0.0,
        )  # fmt: skip
        await publisher.publish(1, 2, export)
    assert [payload.read(0) is not None for payload in peers.offered] == [True]
    assert sum(nbytes.values()) < 0.2 * edge_payload.length, "documents, and the tree over the chunks' digests"


class _Peers:
    """Stand in for a network: open each payload as for peers, of whom none asks."""

    def __init__(self) -> None:
        self.offered: list[PayloadFile] = []

    async def share(self, manifest: Any, path: Path) -> None:
        self.offered.append(PayloadFile.open(manifest, path))

    async def unshare(self, payload_hash: bytes) -> None:
        """Forget it."""

    async def publish(self, topic: str, data: bytes) -> None:
        """Tell no peer."""

    async def addresses(self) -> list[str]:
        return []

    fetch = follow = traffic = subscribe = None


class ToyProcess(EngineProcess):
    """An engine's process without torch."""

    def __init__(self) -> None:
        super().__init__(module="tests.support.toy_engine")


@pytest.mark.slow
async def test_a_payload_comes_and_reaches_the_engine_by_a_short_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over libp2p, with HTTPS beside it; the engine in its process. At 439044d 11 functions waited for a download."""
    step = Step(tmp_path)
    with Watch() as watch, Store(tmp_path / "store") as store:
        async with connected(step.payload.path) as network:
            payloads = PayloadFetcher(
                network.exchange, network.rpc, network.links, store, Acknowledger(_nobody), coordinator=lambda: None
            )
            with hashing(monkeypatch) as nbytes, watch.walk(Download.run) as fetch:
                path = await payloads.get(step.edge)
        engine = VersionedEngine(ToyProcess, device="cpu", engine="toy", seed=0)
        engine.model, engine.current = tmp_path, step.before
        async with engine.exclusive():
            with watch.walk(Child.call) as call:
                await engine.advance(path, step.after)
        await engine.stop()
    assert engine.current == step.after
    assert len(steps_of(fetch)) <= 7, (steps_of(fetch), fetch.waiting)
    watching = [name for name in steps_of(fetch) if name.endswith("_wait_while_progressing")]
    assert len(steps_of(fetch)) - len(watching) <= 5, steps_of(fetch)
    assert passed(fetch) == [
        PayloadFetcher.__name__,
        FailoverNetwork.__name__,
        TrioThread.__name__,
        ChunkExchange.__name__,
    ]
    assert passed(call) == [VersionedEngine.__name__, ToyProcess.__name__], call.waiting
    assert not set(DOCUMENTS) & {*fetch.decoded, *call.decoded}
    length = step.edge.value.length
    assert set(nbytes) == bytes_by(leaf_digest), "bytes are hashed as their chunks come, and not again"
    assert length <= nbytes[leaf_digest.__module__] <= 1.2 * length, "the chunks, and their proofs"


@asynccontextmanager
async def connected(payload: Path) -> AsyncIterator[Network]:
    """A node's network that is connected with a process that offers a payload."""
    argv = [sys.executable, "-m", "tests.support.offering", str(payload)]
    with child(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as offering:
        addresses = json.loads(await asyncio.to_thread(offering.stdout.readline))
        network = FailoverNetwork(ThreadedPeer(generate_key(), []), HttpsClient("node", bytes(32))).network
        running = asyncio.create_task(network.host.run())
        await network.host.ready()
        await network.links.dial(addresses)
        yield network
        running.cancel()
        await asyncio.wait([running])


async def _nobody(make: Any) -> None:
    """Tell nobody."""


def test_of_a_payload_that_is_applied_only_the_new_weights_are_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Step(tmp_path)
    with hashing(monkeypatch) as nbytes:
        Rolling(step.before.weights).apply(step.payload.path, step.after.root)
    assert nbytes[Snapshot.__module__] - step.new.nbytes < 1000, "the content root"
    assert set(nbytes) == bytes_by(Snapshot, Rolling), "and the journal of the step"


@pytest.mark.slow
def test_a_step_costs_a_node_one_decode_of_each_document(tmp_path: Path) -> None:
    """Of the sixth version: its Head, its Version, its index, and the one Edge that the index before did not name."""
    walks: list[Walk] = []

    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, tmp_path / "node", coordinator.invite())
            async with working(node):
                await until(lambda: node.daemon.engine.current)
                node.daemon.run_state.pause(None)  # no leases
                await anyio.sleep(10)
                node.daemon.engine.wake()  # but versions
                for version in range(1, 7):
                    with watch.walk() as walk:
                        await coordinator.publish(version)
                        await until(lambda number=version: node.daemon.engine.current.version == number)
                walks.append(walk)

    with Watch() as watch:
        run_fake(main)
    counts = Counter(name for name in walks[0].decoded if name in DOCUMENTS)
    assert counts == dict.fromkeys(DOCUMENTS, 1) | {Envelope.__name__: 3}


def test_a_lease_request_reaches_its_signed_lease_by_a_short_way(tmp_path: Path) -> None:
    """At c47ecf3a 8 functions of 2 rooms led there, by a branch for each kind of lease."""
    walk = walk_of_lease_request(tmp_path)
    assert (len(walk.path) <= 10, len(walk.rooms) <= 2, walk.returns) == (True, True, 0), walk.path
    assert PlainLeases.offer.__qualname__ in {name.partition(":")[2] for name in walk.path}


async def test_a_submission_is_decoded_once_as_it_comes_and_once_as_it_is_drawn(tmp_path: Path) -> None:
    """From its request to the ledger, and to the batch. At 439044d it was decoded four times, and three objects passed
    it on."""
    node, world, handlers = Ed25519PrivateKey.generate(), World(tmp_path, batch_groups=1), Handlers()
    control_of(world, RequestHandler).serve(handlers, lambda peer: LOCAL_ORIGIN)
    lease = world.lease(public_bytes(node))
    request = Request(
        recipient=public_bytes(KEYS["channel"]), method="submit", id=bytes(16), expires=world.now + 1000,
        body=encode(group(lease)),
    )  # fmt: skip
    sealed, group_service = seal("request", RUN, encode(request), node), world.group_service
    with Watch() as watch:
        with watch.walk(SubmissionService.submit) as receipt:
            await handlers.methods["submit"].handler("peer", sealed)
        with watch.walk() as scoring:
            undecided = group_service.visit(group_service.waiting()[0]).take()
        assert undecided is not None
        verdict = judge(undecided.submission.rollouts, honest_scores(undecided.submission))
        with watch.walk() as deciding:
            group_service.decide(undecided, verdict, world.now)
        with watch.walk() as drawing:
            drawn = group_service.draw(world.now)
            groups = read(tmp_path / "run.sqlite", [one.id for one in drawn or []])
    world.close()
    assert [one.id for one in groups] == [lease.id]
    assert passed(receipt) == [RequestHandler.__name__], receipt.waiting
    assert len(receipt.waiting) <= 4, receipt.waiting
    walks = (receipt, scoring, deciding, drawing)
    whole = [[name for name in walk.decoded if name.endswith(Submission.__name__)] for walk in walks]
    assert whole == [[UnreadSubmission.__name__], [], [], [Submission.__name__]]
    assert receipt.decoded.count(Envelope.__name__) == 1
