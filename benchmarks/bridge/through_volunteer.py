"""Play episodes through the program that volunteers run: a coordinator in this process, `echo2-node join` below it.

    this process    coordinator, libp2p on loopback ── environment's process ── verifiers' server
    `echo2-node join`, with its engine's process

Learner and scorer are stand-ins that cost nothing: version 0 stays, and each group is accepted with the
log-probabilities that it came with. The node is vouched for, so that it has as many groups open as a known one.
"""

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from benchmarks.flood.engine import StandInScorer
from benchmarks.harness.bench import Measured, cpu_of
from benchmarks.harness.volunteer import WITHIN, NodeFault, joining_node
from benchmarks.load.bare import until
from echo2.coordinator.daemon import Coordinator
from echo2.coordinator.database.database import Database
from echo2.coordinator.learner.messages import Batch, Export, ExportedEdge, Open, Opened, Stepped
from echo2.coordinator.run import setup
from echo2.coordinator.run.task_processes import environment_at
from echo2.coordinator.training.model_processes import Models
from echo2.coordinator.verification.submitted_group import decode_group
from echo2.engines.engine import Job, SampleScore
from echo2.engines.process.messages import PackedSample, floats
from echo2.p2p.libp2p.threaded_network import ThreadedPeer
from echo2.p2p.network import Network
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Lease
from echo2.tasks.task import Score
from echo2.tasks.turn_ends import token_list
from echo2.weights.diff import encode_full
from echo2.weights.snapshot import Snapshot
from echo2.weights.store import Store

_LOOK: Final = 0.02  # seconds between two looks at the count of groups
_LOOPBACK: Final = "/ip4/127.0.0.1/tcp/0"


class Played(NamedTuple):
    """A finished episode. `prompt`: its tokens. `turns`: tokens of each sampled turn."""

    prompt: list[int]
    turns: list[list[int]]
    reward: float


class FirstVersionLearner:
    """A `coordinator.training.model_processes.Learner` that publishes the model as version 0 and never makes a step."""

    async def open(self, order: Open) -> Opened:
        snapshot = Snapshot(Path(order.model) / "model.safetensors")
        payload = Path(order.folder) / "first.edge"
        payload.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(encode_full, snapshot, payload)
        edge = ExportedEdge(base=None, base_root=None, payload=str(payload))
        first = Export(version=0, root=snapshot.root, snapshot=str(snapshot.path), edges=[edge], seconds=0.0)
        return Opened(step=0, drawn=[], parameters=1, export=first)

    async def step(self, batch: Batch) -> Stepped:
        await asyncio.Event().wait()
        raise AssertionError("a wait without an end has ended")

    async def renew(self) -> None:
        """Do nothing: there is no process to restart."""


class TrustingScorer(StandInScorer):
    """A scorer that finds in each sample the log-probabilities that it came with."""

    async def score(self, job: Job, samples: list[PackedSample]) -> list[SampleScore]:
        values = [floats(one.logprobs) for one in samples]
        return [SampleScore(logprobs=one, margins=np.zeros_like(one)) for one in values]


class Volunteer:
    """A running coordinator and its node. `groups`: so many are measured per round."""

    def __init__(self, database: Database, node: "subprocess.Popen[bytes]") -> None:
        self._database, self._node = database, node
        self._seen = 0

    async def measure(self, groups: int, group: int) -> Measured:
        """Wait until so many more groups of `group` episodes are accepted; return what they cost all processes."""
        cpu, wall, goal = cpu_of(os.getpid()), time.perf_counter(), self._seen + groups
        while (accepted := self._accepted()) < goal:
            refused = self._database.all("SELECT code FROM verdicts WHERE verdict != 'accepted'")
            if refused or self._node.poll() is not None or time.perf_counter() - wall > WITHIN:
                raise NodeFault(f"the node ended with {self._node.poll()}, or a group was refused: {refused[:1]}")
            await asyncio.sleep(_LOOK)
        work, self._seen = (accepted - self._seen) * group, accepted
        return Measured(work, cpu_of(os.getpid()) - cpu, time.perf_counter() - wall)

    def played(self) -> list[Played]:
        """Return the episodes of all groups whose tokens are still stored."""
        rows = self._database.all(
            "SELECT l.document, s.payload, coalesce(s.scores, e.scores) FROM leases l JOIN submissions s"
            " ON s.lease = l.id LEFT JOIN episode_scores e ON e.lease = l.id WHERE s.payload IS NOT NULL"
        )
        episodes = list[Played]()
        for document, payload, packed in rows:
            prompt = list(decode(document, Lease).prompt)
            scores = msgspec.msgpack.decode(packed or b"\x90", type=list[Score | None])
            for rollout, score in zip(decode_group(payload).rollouts, scores, strict=False):
                if score is not None:
                    episodes.append(Played(prompt, _sampled(token_list(rollout.tokens), rollout.turns), score.reward))
        return episodes

    def _accepted(self) -> int:
        return int(self._database.value("SELECT count(*) FROM verdicts WHERE verdict = 'accepted'"))


@asynccontextmanager
async def volunteering(
    model: Path, folder: Path, *, task: str, group: int, limit: int, at_once: int
) -> AsyncIterator[Volunteer]:
    """Run a coordinator for a served task of `model`, and a node with at most `at_once` groups open. `folder`: for
    both. Raises `NodeFault`."""
    flags: dict[str, dict[str, Any]] = {
        "run": {
            "task": task, "kind": "served", "limit": limit, "group_size": group, "batch_groups": 500, "heldout": 1,
            "engines": ["transformers/float32"],
        },
        "environment": {"seconds": 90.0},
        "network": {"listen": [_LOOPBACK], "plan": False, "mdns": False},
        "https": {"listen": []},
        "leases": {"per_node": at_once},
    }  # fmt: skip
    config = setup.settings_for(str(model), flags, env={})
    run = await asyncio.to_thread(setup.init, folder / "run", str(model), config, now=_now())
    host = environment_at(run.task, run.config.environment, print)
    network = ThreadedPeer(run.keys.network, run.config.network.listen)
    await host.open()
    try:
        with Store(run.folder.store) as store, Database.open(run.folder.database) as database:
            models = Models(FirstVersionLearner(), [TrustingScorer(0.0)])
            coordinator = Coordinator(run, Network.of(network), models, store=store, database=database, hosts=[host])
            task_of_run = asyncio.create_task(coordinator.run())
            try:
                await network.ready()
                await until(lambda: task_of_run.done() or coordinator.publisher.latest)
                with joining_node(run.invite(await network.addresses()), folder, "cpu", {}) as node:
                    await _vouched(coordinator, database, node)
                    yield Volunteer(database, node)
            finally:
                task_of_run.cancel()
                with suppress(asyncio.CancelledError):
                    await task_of_run
    finally:
        await host.close()


async def _vouched(coordinator: Coordinator, database: Database, node: "subprocess.Popen[bytes]") -> None:
    await until(lambda: node.poll() is not None or database.value("SELECT count(*) FROM nodes"), WITHIN)
    for (key,) in database.all("SELECT key FROM nodes"):
        coordinator.group_service.accounts.remark(key, "node.vouched", "", _now())


def _sampled(tokens: Sequence[int], turns: Sequence[int]) -> list[list[int]]:
    parts, first = list[list[int]](), 0
    for length in turns:
        parts.append(list(tokens[first : first + length]))
        first += length
    return parts[::2]


def _now() -> int:
    return time.time_ns() // 1_000_000
