"""A whole coordinator with a real learner in this process, a stand-in volunteer, and a scorer that accepts all groups.

Model, learner, buffer, publisher, store, leases and verdicts are the real ones, on the in-memory network and a fake
clock.
"""

import itertools
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import numpy as np

from benchmarks.memory_network.transport import MemoryNetwork
from echo2.coordinator.daemon import Coordinator
from echo2.coordinator.database.database import Database
from echo2.coordinator.learner.call_handlers import LearnerHandlers
from echo2.coordinator.learner.messages import Batch, Open, Opened, Stepped
from echo2.coordinator.run import setup
from echo2.coordinator.run.setup import Run
from echo2.coordinator.training.model_processes import Learner, Models
from echo2.engines.engine import Job, Loaded, Sample, SampleScore
from echo2.engines.process.messages import PackedSample
from echo2.p2p.envelope import decode_unverified
from echo2.p2p.network import Network
from echo2.p2p.peer.peer import Peer
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.leases import Lease, LeaseRequest, Rollout, Segment, Submission
from echo2.runtime.child import ChildError
from echo2.weights.store import Store
from tests.support.fake_coordinator import until

NODE = b"N" * 32


def wall() -> float:
    """Return the loop's clock, fake or not, as seconds since the epoch."""
    return 1_000_000 + anyio.current_time()


class OwnLearner:
    """A `Learner` in this process: a real session, without the pipe."""

    def __init__(self) -> None:
        self.handlers = LearnerHandlers()
        self.asked: list[bytes] = []
        """Ids of the groups of all steps, in order."""

    async def open(self, order: Open) -> Opened:
        return self.handlers.open(msgspec.msgpack.decode(msgspec.msgpack.encode(order), type=Open))

    async def step(self, batch: Batch, *more: Any) -> Stepped:
        await anyio.sleep(0.5)
        try:
            stepped = self.handlers.step(msgspec.msgpack.decode(msgspec.msgpack.encode(batch), type=Batch))
        except ValueError as error:
            raise ChildError(type(error).__name__, str(error)) from error
        self.asked += batch.groups
        return stepped

    async def renew(self) -> None:
        self.handlers = LearnerHandlers()


class Believer:
    """A `Scorer` that confirms the claims of every group."""

    loaded: Loaded | None = Loaded(root=bytes(32), parameters=0, nbytes=0)

    async def load(self, model: Path, weights: Path) -> Loaded:
        return self._at(b"")

    async def step_by(self, payload: Path, root: bytes, keep: int) -> Loaded:
        return self._at(root)

    async def step_to(self, root: bytes) -> Loaded:
        return self._at(root)

    def _at(self, root: bytes) -> Loaded:
        raise NotImplementedError("its weights are never asked for")

    async def score(self, job: Job, samples: list[PackedSample]) -> list[SampleScore]:
        claimed = [one.sample().logprobs for one in samples]
        return [SampleScore(logprobs=list(one), margins=[0.0] * len(one)) for one in claimed]

    async def generate_all(self, jobs: Sequence[Job]) -> list[list[Sample]]:
        return [[Sample(tokens=[1], turns=[1], logprobs=[-0.5]) for _ in job.seeds] for job in jobs]

    async def renew(self) -> None:
        pass


def make_run(
    folder: Path, model: Path, *, learner: dict[str, Any] | None = None, now: int = 1_000_000_000, **run: Any
) -> Run:
    """Make a run of a tiny model. `learner`, `run`: settings of these sections. `now`: ms."""
    settings = {"task": "reverse", "group_size": 4, "batch_groups": 2, "limit": 6, "heldout": 2, "evaluate_every": 100}
    flags = {"run": settings | run, "https": {"listen": []}, "learner": {"warmup_steps": 2} | (learner or {})}
    config = setup.settings_for(str(model), flags, env={})
    return setup.init(folder, str(model), config, now=now)


@asynccontextmanager
async def coordinating(run: Run, learner: Learner | None = None, *, opens: bool = True) -> AsyncIterator[Coordinator]:
    """Run the coordinator and one volunteer during the block; the next call continues from their files.
    `opens`: wait until the learner is open."""
    run = setup.load_run(run.folder.path, now=int(wall() * 1000), env={})
    network = Network.of(Peer(MemoryNetwork(0).transport(run.peer_id), seed=0))
    with Store(run.folder.store) as store, Database.open(run.folder.database) as database:
        coordinator = Coordinator(
            run, network, Models(learner or OwnLearner(), [Believer()]), store=store, database=database, clock=wall,
            entropy=np.random.default_rng(int(wall() * 1000)).bytes,
        )  # fmt: skip
        _believe(coordinator)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(coordinator.run)
            await until(lambda: coordinator.publisher.sealed_head and (coordinator.group_service.progress or not opens))
            tasks.start_soon(_volunteer, coordinator)
            yield coordinator
            tasks.cancel_scope.cancel()


def _believe(coordinator: Coordinator) -> None:
    async def hold(*_: object) -> bool:
        return True

    coordinator.learning.scoring.visits.weights.hold = hold  # type: ignore[method-assign]


async def _volunteer(coordinator: Coordinator) -> None:
    """Request leases of the newest version, and submit a group of random answers for each, until cancelled."""
    nonces = (number.to_bytes(16, "big") for number in itertools.count(int(wall() * 1000)))
    chance = np.random.default_rng(0)
    while True:
        latest, now = coordinator.publisher.latest, int(wall() * 1000)
        assert latest is not None
        engine = f"{coordinator.group_service.terms.engines[0]}/cpu"
        ask = LeaseRequest(nonce=next(nonces), era=latest.era, version=latest.version, root=latest.root, engine=engine)
        answer = coordinator.group_service.lease(NODE, ask, now)
        if isinstance(answer, bytes):
            lease = decode(decode_unverified(answer).payload, Lease)
            coordinator.group_service.submissions.submit(NODE, encode(made_up(lease, chance)), now + 1)
            coordinator.learning.arrived.set()
        await anyio.sleep(0.1)


def made_up(lease: Lease, chance: np.random.Generator) -> Submission:
    """Return a group for a lease: random answers with a valid end, so that rewards differ."""
    segments = [Segment(version=lease.version, root=lease.root, first=0)]
    rollouts = []
    for _ in lease.seeds:
        tokens = [*(int(token) for token in chance.integers(4, 12, lease.limit - 1)), 1]
        logprobs = struct.pack(f"<{len(tokens)}f", *[-2.0] * len(tokens))
        rollouts.append(Rollout(tokens=tokens, turns=[len(tokens)], logprobs=logprobs, segments=segments))
    return Submission(lease=lease.id, era=lease.era, version=lease.version, root=lease.root, rollouts=rollouts)
