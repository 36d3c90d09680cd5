"""One real node of a real run, measured from its first lease to its last verdict.

    this process, in a thread: the coordinator's network, group service, publisher and scoring ── scorer process
    `echo2-node join`: main process ── engine process                                    <- measured

1. The node is the program that volunteers run, over libp2p on the loopback. Its CPU is that of both its processes.
2. The coordinator is made of the product's own parts, without a learner: version 0 stays. It gives leases for a round
   of groups; between two rounds it refuses leases, as a paused run does. Tokens count once the scorer accepted them.
3. The groups of a round are scored after the last of them has arrived: otherwise scorer and node would compete for
   memory bandwidth, at the node's expense. Meanwhile the node waits for its verdicts, and that time counts.
4. A round ends when the node has confirmed that it has stored the Receipts of all groups.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from anyio.from_thread import start_blocking_portal

from benchmarks.harness.bench import Candidate, Measured, cpu_of
from echo2.coordinator.database.database import Database
from echo2.coordinator.demo.demo import environment
from echo2.coordinator.environments.task_host import LocalTask
from echo2.coordinator.learner.eras import FIRST_ERA
from echo2.coordinator.learner.messages import Export, ExportedEdge
from echo2.coordinator.leases.absence import Absence
from echo2.coordinator.leases.lease_terms import Progress
from echo2.coordinator.leases.rollout_context import RolloutContext, Sealing
from echo2.coordinator.metrics.history import History
from echo2.coordinator.prompts.prompts import TaskPrompts
from echo2.coordinator.publishing.publisher import Publisher
from echo2.coordinator.publishing.signing_keys import Signing
from echo2.coordinator.run import model_folder, setup
from echo2.coordinator.run.setup import Run
from echo2.coordinator.scorer_weights.scorer_weights import ScorerWeights
from echo2.coordinator.submissions.group_service import GroupService
from echo2.coordinator.submissions.request_handler import RequestContext, RequestHandler
from echo2.coordinator.submissions.run_records import RunRecords
from echo2.coordinator.training.evaluation import EvaluationSet
from echo2.coordinator.training.group_visits import GroupVisits
from echo2.coordinator.training.model_loops import verifier_of
from echo2.coordinator.training.model_processes import restarts
from echo2.coordinator.training.run_services import pure_tasks_of, terms_of
from echo2.coordinator.training.scoring_loop import Scoring
from echo2.coordinator.verdicts.group_dispatch import GroupDispatch
from echo2.coordinator.verification.verification import sampled_tokens
from echo2.engines.process.process import EngineProcess
from echo2.engines.process.supervisor import SupervisedEngine
from echo2.engines.registry import TRANSFORMERS
from echo2.p2p.envelope import ROLES, seal
from echo2.p2p.libp2p.threaded_network import ThreadedPeer
from echo2.p2p.local_addresses import dialable
from echo2.p2p.network import Network
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import LeaseRequest, Submission, VerdictsRequest
from echo2.protocol.leases import VerdictsResponse as VerdictsAnswer
from echo2.protocol.refusals import refusal
from echo2.protocol.requests import Refusal
from echo2.weights.diff import encode_full
from echo2.weights.snapshot import Snapshot
from echo2.weights.store import Store

WITHIN: Final = 500.0
"""Seconds that the node's start, or a round, may take."""
BATCH: Final = 64
"""Groups per batch, so many that all rounds have room within the staleness limit. No batch is drawn."""
_RETRY: Final = 500  # ms until a node without a lease asks again
_END_WITHIN: Final = 20.0  # seconds from the signal until a node is killed
_LOOPBACK: Final = "/ip4/127.0.0.1/tcp/0"


class NodeFault(Exception):
    """The node ended, took more than `WITHIN`, or submitted a group that was refused."""


@contextmanager
def joined(
    model: Path, snapshot: Path, folder: Path, *, task: str, limit: int, group: int, groups: int,
    per_node: int = 1, engines: Sequence[str] = (TRANSFORMERS.name,), gpu: str = "cpu", env: Mapping[str, str] = {},
) -> Iterator[Candidate]:  # fmt: skip
    """Start a coordinator that publishes `snapshot` as version 0 of `model`, and a node. Each call of the candidate is
    a round of `groups` groups. `folder`: for both. `limit`: most new tokens of a rollout. `group`: rollouts per group.
    `per_node`: most leases that the node has at a time. `engines`: those that the run admits, in float32. `gpu`: the
    node's `--gpu`. `env`: added to the node's environment. Raises `NodeFault`."""
    flags: dict[str, dict[str, Any]] = {
        "run": {
            "task": task, "limit": limit, "group_size": group, "batch_groups": BATCH, "heldout": 1,
            "engines": [f"{engine}/float32" for engine in engines],
        },
        "network": {"listen": [_LOOPBACK]},
        "https": {"listen": []},
        "leases": {"per_node": per_node},
    }  # fmt: skip
    config = setup.settings_for(str(model), flags, env={})
    run = setup.init(folder / "run", str(model), config, now=time.time_ns() // 1_000_000)
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(_open(run, snapshot, folder, gpu, env)) as run_groups,
    ):
        yield lambda: portal.call(run_groups, groups)


class Measuring(RequestHandler):
    """A request handler that gives one node as many leases as `open` allows, `leases.per_node` of them at a time, and
    measures the node's cost."""

    def __init__(
        self,
        run: Run,
        group_service: GroupService,
        publisher: Publisher,
        history: History,
        absence: Absence,
        clock: Callable[[], int],
    ) -> None:
        """See `RequestHandler`. `delivered` is set with the last submission of a round, `settled` with its last
        confirmation."""
        super().__init__(run, group_service, publisher, history, absence, clock)
        self._database = group_service.database
        self._allowed = 0
        self.cpu: Callable[[], float] = lambda: 0.0
        """Returns the CPU seconds of the node so far."""
        self._began, self._ended = (0.0, 0.0), (0.0, 0.0)
        self._tokens = 0
        self.delivered, self.settled = asyncio.Event(), asyncio.Event()

    def open(self, groups: int) -> None:
        """Begin a round: allow `groups` more leases."""
        self._allowed += groups
        self._tokens = 0
        self.settled.clear()

    def on_connection_end(self) -> Measured:
        """Return the accepted tokens since `open`, and their cost. Raises `NodeFault`."""
        refused = self._database.all("SELECT code FROM verdicts WHERE verdict != 'accepted'")
        if refused:
            raise NodeFault(f"a group of the node was refused: {refused[0][0]}")
        cpu, wall = (ended - began for ended, began in zip(self._ended, self._began, strict=True))
        return Measured(self._tokens, cpu, wall)

    def lease(self, asked: RequestContext, ask: LeaseRequest) -> bytes | Refusal:
        """See `RequestHandler`."""
        given = self._count("leases")
        if given >= self._allowed:
            return refusal("paused", retry_after=_RETRY)
        if given == self._count("leases WHERE state = 'decided'"):
            self._began = self.cpu(), time.perf_counter()
        return super().lease(asked, msgspec.structs.replace(ask, at_once=1))

    def submit(self, asked: RequestContext, data: bytes) -> bytes | Refusal:
        """See `RequestHandler`."""
        known = self._count("submissions")
        answer = super().submit(asked, data)
        if self._count("submissions") > known:
            self._tokens += sum(map(sampled_tokens, decode(data, Submission).rollouts))
        if self._count("submissions") == self._allowed:
            self.delivered.set()
        return answer

    def verdicts(self, asked: RequestContext, ask: VerdictsRequest) -> VerdictsAnswer:
        """See `RequestHandler`."""
        answer = super().verdicts(asked, ask)
        if ask.confirmed and self._count("verdicts WHERE confirmed") == self._allowed:
            self._ended = self.cpu(), time.perf_counter()
            self.settled.set()
        return answer

    def _count(self, what: str) -> int:
        return int(self._database.value(f"SELECT count(*) FROM {what}"))


RunGroups = Callable[[int], Coroutine[None, None, Measured]]


@asynccontextmanager
async def _open(run: Run, snapshot: Path, folder: Path, gpu: str, env: Mapping[str, str]) -> AsyncIterator[RunGroups]:
    """Start the coordinator and the node; yield the function that runs a round."""
    dtype = run.config.run.compute_dtype
    scorer = SupervisedEngine(lambda: EngineProcess(name="scorer"), restarts(), device="cpu", dtype=dtype)
    network = ThreadedPeer(run.keys.network, run.config.network.listen)
    with (
        Store(run.folder.store) as store,
        Database.open(run.folder.database) as database,
        closing(History(run.folder.history)) as history,
    ):
        group_service = _group_service(run, database)
        publisher = _publisher(run, store, network)
        absence = Absence(group_service.leases, time.monotonic)
        control = Measuring(run, group_service, publisher, history, absence, _now)
        scoring = _scoring(run, scorer, group_service, publisher, history, control.delivered)
        control.serve(network.handlers, network.origin)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(network.run())]
            await network.ready()
            await _publish(run, snapshot, group_service, publisher, network)
            tasks += [group.create_task(publisher.run()), group.create_task(scoring.run())]
            try:
                with joining_node(run.invite(await network.addresses()), folder, gpu, env) as process:
                    control.cpu = partial(cpu_of, process.pid)
                    yield partial(_run_groups, control, process)
            finally:
                for task in tasks:
                    task.cancel()
                await scorer.stop()


async def _run_groups(control: Measuring, node: "subprocess.Popen[bytes]", groups: int) -> Measured:
    control.open(groups)
    until = time.monotonic() + WITHIN
    while not control.settled.is_set():
        if node.poll() is not None or time.monotonic() > until:
            raise NodeFault(f"the node ended with {node.poll()}, or made no progress")
        await asyncio.sleep(0.2)
    return control.on_connection_end()


@contextmanager
def joining_node(invite: str, folder: Path, gpu: str, env: Mapping[str, str]) -> "Iterator[subprocess.Popen[bytes]]":
    """Run `echo2-node join` with a volunteer's settings until the block ends; its log is folder/node.log."""
    argv = [sys.executable, "-m", "echo2.node.cli", "join", invite, "--gpu", gpu, "--home", str(folder / "node")]
    with (folder / "node.log").open("wb") as log:
        process = subprocess.Popen(
            [*argv, "--listen", _LOOPBACK], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env={**environment(os.environ, folder), **env}, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    except NodeFault as fault:
        last = (folder / "node.log").read_text(errors="replace").splitlines()[-5:]
        raise NodeFault("\n".join([str(fault), *last])) from fault
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_END_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()  # its engine ends when the pipe closes


def _group_service(run: Run, database: Database) -> GroupService:
    text = model_folder.tokenizer(run.folder.model, run.runspec.ends)
    keys = {"policy": run.keys.policy, "channel": run.keys.channel, "ledger": run.keys.ledger}
    task = pure_tasks_of(run)[0]
    prompts, tasks = TaskPrompts(task, text, seed=0), {(task.name, task.version): task}
    context = RolloutContext(run.runspec, terms_of(run), prompts, tasks, text)
    sealing = Sealing(lambda kind, payload: seal(kind, run.id, payload, keys[ROLES[kind]]))
    records = RunRecords(database, run.runspec.price_mode, os.urandom)
    return GroupService(records, context, sealing, os.urandom)


def _publisher(run: Run, store: Store, network: ThreadedPeer) -> Publisher:
    async def addresses() -> list[str]:
        return dialable(await network.addresses(), run.peer_id)

    signing = Signing(run.id, run.keys.policy, run.keys.channel, run.root.serial)
    return Publisher(
        signing,
        store,
        Network.of(network),
        head_file=run.folder.path / "head",
        addresses=addresses,
        clock=time.time,
    )


def _scoring(
    run: Run,
    scorer: SupervisedEngine,
    group_service: GroupService,
    publisher: Publisher,
    history: History,
    arrived: asyncio.Event,
) -> Scoring:
    """Return the scoring loop. It first evaluates version 0 briefly, which warms the scorer up. `arrived`: see
    `Measuring.delivered` (rule 3)."""
    text = model_folder.tokenizer(run.folder.model, run.runspec.ends)
    weights = ScorerWeights(
        scorer, publisher, model=run.folder.model, folder=run.folder.scorer, oldest=lambda: (FIRST_ERA, 0)
    )
    host = LocalTask(pure_tasks_of(run)[0], text)
    verifier = verifier_of(run, scorer, group_service, publisher, weights)
    dispatch = GroupDispatch(group_service, time.time, arrived.set)
    return Scoring(
        scorer=scorer, group_service=group_service, publisher=publisher,
        history=history, evaluation_sets=[EvaluationSet(host, text.eos, run.runspec.limit, run.config.run.heldout)],
        visits=GroupVisits(scorer, group_service, weights, verifier, time.time, asyncio.Event(), dispatch),
        evaluate_every=1, clock=time.time, arrived=arrived,
    )  # fmt: skip


async def _publish(
    run: Run, snapshot: Path, group_service: GroupService, publisher: Publisher, network: ThreadedPeer
) -> None:
    """Publish version 0 with a full edge, as from the learner's first export."""
    opened, payload = Snapshot(snapshot), snapshot.with_suffix(".edge")
    encode_full(opened, payload)
    edge = ExportedEdge(base=None, base_root=None, payload=str(payload))
    for asset in run.runspec.assets:
        await network.share(asset.manifest, run.folder.model / asset.name)
    group_service.leases.publish(FIRST_ERA, 0, opened.root, _now())
    group_service.progress = Progress(era=FIRST_ERA, step=0, version=0, root=opened.root)
    await publisher.publish(
        FIRST_ERA, 0, Export(version=0, root=opened.root, snapshot=str(snapshot), edges=[edge], seconds=0.0)
    )


def _now() -> int:
    return time.time_ns() // 1_000_000
