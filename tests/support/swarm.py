"""A whole network in one process: the real coordinator and real nodes, on the in-memory transport under a fake clock.

Only the model is small: a bigram table (tests.support.bigram) is the policy, and its learner nudges the table. Keys,
documents, diffs, leases, seeded sampling, re-scoring, verdicts, ledger and buffer are those of the product.
"""

import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import numpy as np

from benchmarks.memory_network.transport import Link, MemoryNetwork
from benchmarks.plays import direct
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.daemon import Coordinator
from echo2.coordinator.database.database import Database
from echo2.coordinator.environments.task_host import TaskHost
from echo2.coordinator.learner.batches.batch_groups import TrainBatch, batch_metrics, cut_answers, read
from echo2.coordinator.learner.eras import FIRST_ERA, KnownVersion, covers, first_version
from echo2.coordinator.learner.messages import Batch, Export, ExportedEdge, Open, Opened, Stepped
from echo2.coordinator.run import setup
from echo2.coordinator.run.setup import Run
from echo2.coordinator.settings.config import GuardKind
from echo2.coordinator.training.model_processes import Models
from echo2.engines.engine import EngineError, Job, Loaded, Sample, SampleScore
from echo2.engines.process.messages import PackedSample
from echo2.engines.process.process import Play
from echo2.node.rollouts.outbox import Outbox
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.identity import write_key
from echo2.p2p.network import Network
from echo2.p2p.peer.peer import Peer
from echo2.runtime.child import ChildDied, ChildError
from echo2.runtime.errors import DiskFull
from echo2.tasks.tokenizer import char_tokenizer
from echo2.weights.diff import encode, encode_full
from echo2.weights.errors import WeightsError
from echo2.weights.snapshot import Snapshot
from echo2.weights.store import Store
from tests.support.bigram import BigramEngine, nudged, random_table, read_table, write_table
from tests.support.fake_coordinator import Node, make_node, until
from tests.support.served import generate_served

VOCABULARY = 64


def wall() -> float:
    """Return the fake loop's clock as seconds since the epoch."""
    return anyio.current_time()


def model_folder(folder: Path, ends: float = 0.0, other_ends: Sequence[int] = ()) -> Path:
    """Write a model folder with the files of one from a hub, and a bigram table for weights. `ends`: nats by which the
    end of a turn is likelier than in a random table. `other_ends`: further end tokens."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(
        json.dumps({"model_type": "bigram", "vocab_size": VOCABULARY, "eos_token_id": 1})
    )
    if other_ends:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, *other_ends]}))
    char_tokenizer().save(str(folder / "tokenizer.json"))
    table = random_table(0, VOCABULARY)
    table[:, 1] += ends
    write_table(folder / "model.safetensors", table)
    return folder


class Kept(NamedTuple):
    """A checkpoint. `before`: the version published before its export."""

    era: int
    step: int
    drawn: list[bytes]
    export: Export
    before: KnownVersion | None

    @property
    def record(self) -> KnownVersion:
        return KnownVersion(self.export.version, self.export.root)


class BigramLearner:
    """A coordinator.training.model_processes.Learner without a process. Its checkpoints are in this object, which
    outlives coordinators.

    `crashes`: how many of the next steps die half-way. `seconds`: the duration of a step. `kept`: the newest
    checkpoints, the newest last.
    """

    def __init__(self, folder: Path, *, seconds: float = 0.5) -> None:
        self._folder, self.seconds = folder, seconds
        self.crashes = 0
        self.obeyed, self.rate = 0, 1.0
        self.batches: list[Batch] = []
        self.kept: list[Kept] = []
        self._database = Path()
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def step_number(self) -> int:
        return self.kept[-1].step if self.kept else 0

    @property
    def drawn(self) -> list[bytes]:
        return self.kept[-1].drawn if self.kept else []

    def stand(self, step: int, drawn: list[bytes]) -> None:
        """Set the learner to `step` of the first era, whose snapshot is in the folder and published."""
        snapshot = Snapshot(self._folder / f"v{step}.safetensors")
        export = Export(version=step, root=snapshot.root, snapshot=str(snapshot.path), edges=[], seconds=0.0)
        self.kept = [Kept(FIRST_ERA, step, drawn, export, None)]

    def lose(self) -> None:
        """Lose every checkpoint and every file of the folder."""
        self.kept.clear()
        shutil.rmtree(self._folder)
        self._folder.mkdir()

    async def open(self, order: Open) -> Opened:
        self._database, self._ends = Path(order.database), order.ends
        again = order.republish
        if again is not None and again.id == self.obeyed:
            again = None
        last = KnownVersion(order.published_version, order.published_root) if order.published else None
        at = self.kept[-1] if self.kept else None
        undone = ""
        if at is None and last is None:
            at = Kept(order.era, 0, [], self._first(0, Path(order.model) / "model.safetensors", None), None)
            self.kept.append(at)
        elif at is None or again is not None or not covers(last, at.record, at.before) or at.era < order.least_era:
            version = first_version([last, at and at.record, at and at.before])
            start = Path(at.export.snapshot if at else order.published)
            if again is not None:
                start, self.obeyed, self.rate = Path(again.snapshot), again.id, self.rate * again.factor
            export = self._first(version, start, Path(order.published))
            at, undone = Kept(order.next_era, version, [], export, last), "steps were undone"
            self.kept.append(at)
        pending = at.export if last is None or at.export.version > last.version else None
        return Opened(
            era=at.era, step=at.step, drawn=at.drawn, parameters=VOCABULARY**2, export=pending, undone=undone,
            rate=self.rate,
        )  # fmt: skip

    async def step(self, batch: Batch) -> Stepped:
        await anyio.sleep(self.seconds)
        if self.crashes:
            self.crashes -= 1
            raise ChildDied("learner", -9, "killed")
        assert batch.step == self.step_number + 1
        ids = batch.groups
        assert not set(ids) & set(self.drawn), "a group is drawn twice"
        drawn = TrainBatch(step=batch.step, groups=read(self._database, ids))
        metrics = batch_metrics(drawn) | {"cut_answers": cut_answers(drawn, self._ends)}
        self.batches.append(batch)
        at, export = self.kept[-1], self._write(batch.step)
        self.kept = [at, Kept(at.era, batch.step, at.drawn + ids, export, at.record)]
        return Stepped(step=batch.step, metrics={"loss": 0.0, **metrics}, seconds=self.seconds, export=export)

    def _first(self, version: int, weights: Path, published: Path | None) -> Export:
        """Export the first version of an era: `weights` whole, and as a diff from `published`."""
        target, full = self._folder / f"v{version}.safetensors", self._folder / f"v{version}-full.edge"
        shutil.copyfile(weights, target)
        snapshot, edges = Snapshot(target), list[ExportedEdge]()
        encode_full(snapshot, full)
        if published is not None:
            old, diff = Snapshot(published), self._folder / f"v{version}.edge"
            encode(old, snapshot, diff)
            edges.append(ExportedEdge(base=version - 1, base_root=old.root, payload=str(diff)))
        edges.append(ExportedEdge(base=None, base_root=None, payload=str(full)))
        return Export(version=version, root=snapshot.root, snapshot=str(target), edges=edges, seconds=0.0)

    def _write(self, version: int) -> Export:
        old = Snapshot(self._folder / f"v{version - 1}.safetensors")
        new = write_table(self._folder / f"v{version}.safetensors", nudged(read_table(old), version))
        payload = self._folder / f"v{version}.edge"
        encode(old, new, payload)
        edge = ExportedEdge(base=version - 1, base_root=old.root, payload=str(payload))
        return Export(version=version, root=new.root, snapshot=str(new.path), edges=[edge], seconds=0.0)


class BigramScorer:
    """A coordinator.training.model_processes.Scorer without a process. `poisoned`: indices of prompts
    at which it fails."""

    def __init__(self, *, seconds: float = 0.01) -> None:
        self.engine, self.seconds = BigramEngine(), seconds
        self.poisoned: set[int] = set()
        self.renewed = 0
        self._loaded: Loaded | None = None

    @property
    def loaded(self) -> Loaded | None:
        return self._loaded

    async def load(self, model: Path, weights: Path) -> Loaded:
        return self._moved(lambda: self.engine.load(model, weights))

    async def step_by(self, payload: Path, root: bytes, keep: int) -> Loaded:
        return self._moved(lambda: self.engine.step_by(payload, root, keep))

    async def step_to(self, root: bytes) -> Loaded:
        return self._moved(lambda: self.engine.step_to(root))

    async def score(self, job: Job, samples: list[PackedSample]) -> list[SampleScore]:
        await anyio.sleep(self.seconds)
        if job.index in self.poisoned:
            raise ChildError("EngineError", "this prompt breaks it")
        return self.engine.score(job, [one.sample() for one in samples])

    async def generate_all(self, jobs: Sequence[Job]) -> list[list[Sample]]:
        return direct.generate_all(self.engine, jobs)

    async def generate_served(self, job: Job, play: Play) -> list[Sample]:
        return await generate_served(self.engine.twin(), job, play)

    async def renew(self) -> None:
        self.renewed += 1
        self.forget()

    def forget(self) -> None:
        """Lose the loaded version, as a process does that dies."""
        self._loaded = None

    def _moved(self, call: Callable[[], Loaded]) -> Loaded:
        """Convert errors as the pipe does: all but a full disk become `ChildError`, and the loaded version is then
        unknown."""
        self._loaded = None
        try:
            self._loaded = call()
        except DiskFull:
            raise
        except (EngineError, WeightsError, FileNotFoundError) as error:
            raise ChildError(type(error).__name__, str(error)) from error
        return self._loaded


@dataclass
class Swarm:
    """One run and its peers. `host`: of a task that is not pure, or the hosts of several. `coordinator`: None while it
    is down. `store`: that of the coordinator, the newest one."""

    folder: Path
    network: MemoryNetwork
    learner: BigramLearner
    scorer: BigramScorer
    host: TaskHost | Sequence[TaskHost] | None = None
    coordinator: Coordinator | None = None
    store: Store | None = None
    nodes: list[Node] = field(default_factory=list)

    @property
    def run(self) -> Run:
        return setup.load_run(self.folder / "run", now=int(wall() * 1000), env={})

    def invite(self) -> Invite:
        return Invite.from_text(self.run.invite([f"/memory/{self.run.peer_id}"]))

    def on_disk(self, node: Node) -> Path:
        """Return a node's home, with the files from which commands read its run and its key."""
        write_key(node.home / "node.key", node.daemon.context.key)
        (node.home / "invite").write_text(self.invite().to_text())
        return node.home

    @asynccontextmanager
    async def coordinating(self) -> AsyncIterator[Coordinator]:
        """Run the coordinator during the block; the next one continues from its files."""
        run = self.run
        network = Network.of(Peer(self.network.transport(run.peer_id), seed=0))
        async with AsyncExitStack() as stack:
            self.store = store = stack.enter_context(Store(run.folder.store))
            database = stack.enter_context(Database.open(run.folder.database))
            coordinator = Coordinator(
                run, network, Models(self.learner, [self.scorer]), store=store, database=database,
                hosts=_hosts(self.host), parties=self.network.parties,
                clock=wall, entropy=np.random.default_rng(int(wall())).bytes,
            )  # fmt: skip
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(coordinator.run)
                await until(lambda: coordinator.publisher.sealed_head)
                self.coordinator = coordinator
                yield coordinator
                self.coordinator = None
                tasks.cancel_scope.cancel()

    def node(self, name: str, **config: Any) -> Node:
        node = make_node(self.network, self.folder / name, self.invite(), local=lambda: int(wall() * 1000), **config)
        self.nodes.append(node)
        return node


def _hosts(host: TaskHost | Sequence[TaskHost] | None) -> Sequence[TaskHost] | None:
    if host is None:
        return None
    return host if isinstance(host, Sequence) else [host]


@asynccontextmanager
async def working(*nodes: Node) -> AsyncIterator[None]:
    """Run these daemons until the block ends."""
    async with anyio.create_task_group() as tasks:
        for node in nodes:
            tasks.start_soon(node.daemon.run)
        yield
        tasks.cancel_scope.cancel()


LEARNS_NOTHING: tuple[GuardKind, ...] = ("cut", "too-hard", "floor", "no-signal", "same-answer")
"""What the guard sees in a run of random answers, which it would pause."""


def make_swarm(
    folder: Path,
    seed: int = 0,
    *,
    link: Link | None = None,
    network: Mapping[str, Any] | None = None,
    host: TaskHost | Sequence[TaskHost] | None = None,
    ends: float = 0.0,
    other_ends: Sequence[int] = (),
    model: Path | None = None,
    environment: Mapping[str, Any] | None = None,
    ledger: Mapping[str, Any] | None = None,
    leases: Mapping[str, Any] | None = None,
    market: Mapping[str, Any] | None = None,
    guard: Mapping[str, Any] | None = None,
    **run: Any,
) -> Swarm:
    """Create a run that is ready to start. `link`: between any two peers. `network`, `environment`, `ledger`, `leases`,
    `market`, `guard`, `run`: settings of its sections. `host`: of a task that is not in the nodes' build, or those of
    several. `model`: its folder, with a bigram table for weights; None: one is written, with `ends` and `other_ends`
    (see `model_folder`). There are no canaries, whose answers a test's scorer would be asked for, and no audits."""
    model = model or model_folder(folder / "bigram", ends, other_ends)
    settings = {"task": "reverse", "group_size": 2, "batch_groups": 2, "limit": 6, "heldout": 4, "evaluate_every": 5}
    flags = {
        "run": settings | {"engines": ("bigram",)} | run,
        "https": {"listen": []},
        "network": dict(network or {}),
        "environment": dict(environment or {}),
        "ledger": dict(ledger or {}),
        "leases": {"minimum_seconds": 20.0, "maximum_seconds": 60.0, "canaries": 0.0, "audits": 0.0}
        | dict(leases or {}),
        "market": dict(market or {}),
        "guard": {"warn_only": LEARNS_NOTHING} | dict(guard or {}),
        "payout": {"rail": "csv"} if market else {},
    }
    config = setup.settings_for(str(model), flags, env={})
    hosts = _hosts(host)
    facts = {} if hosts is None else {one.facts.name: one.facts for one in hosts}
    hosted: dict[str, Any] = {}
    if facts:
        hosted = {"inspect": lambda place, *_: (facts[place.name], list[int]()), "check_task": lambda task: None}
    setup.init(folder / "run", str(model), config, now=1_000_000_000, **hosted)
    learner = BigramLearner(folder / "learner")
    return Swarm(folder, MemoryNetwork(seed, link=link), learner, BigramScorer(), host)


def whole(swarm: Swarm, *, late: int = 0) -> None:
    """Check that Receipts, ledger and submissions agree, while the coordinator runs. `late`: most groups refused as too
    late."""
    coordinator = swarm.coordinator
    assert coordinator is not None
    database = coordinator.group_service.database
    Ledger(database).verify()
    verdicts = dict(database.all("SELECT lease, receipt FROM verdicts"))
    for node in swarm.nodes:
        context = node.daemon.context
        outbox = Outbox(context.folder / "outbox.sqlite", node=context.node, limit=1)  # its own is closed once it ended
        with contextlib.closing(outbox):
            receipts = {row.lease: row.receipt for row in outbox.rows() if row.receipt is not None}
        assert {lease: verdicts.get(lease) for lease in receipts} == receipts
    refused = coordinator.view_builder.build().refused
    assert refused.keys() <= {"late"}
    assert refused.get("late", 0) <= late
    drawn = swarm.learner.drawn
    assert len(set(drawn)) == len(drawn) == swarm.learner.step_number * 2


def step(coordinator: Coordinator) -> int:
    """Return the number of the last step, at no cost: waits call it 20 times per second."""
    return coordinator.group_service.progress.step if coordinator.group_service.progress else 0


def finished(coordinator: Coordinator) -> bool:
    """Tell whether the page shows a finished run. The page, which costs milliseconds, is built near the end alone."""
    return coordinator.learning.scoring.is_settled() and coordinator.view_builder.build().phase == "finished"


def accepted(node: Node) -> int:
    """Return the number of groups for which this node has an accepting receipt."""
    return node.daemon.outbox.counts().get("accepted", 0)
