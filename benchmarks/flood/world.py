"""A whole run in one process: the product's coordinator, the in-memory network, a fake clock, stand-in models.

Rules
1. Only sleep takes time here: generating, scoring and a step are slept. So a run repeats exactly, and shows what an
   attack takes of room, order and leases. The CPU cost of attacks is measured apart (benchmarks/flood/cost.py).
2. Honest nodes hear of a version at once, and work on one group at a time.
3. There is no attack for the first `Setting.before` seconds (0 in a fresh run). Then the attack is prepared and begins,
   and steps are counted for `Setting.seconds`.
"""

import asyncio
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import anyio
import numpy as np
import structlog
from anyio.abc import TaskGroup

from benchmarks.attacks.flood_keys import Connection
from benchmarks.attacks.light_node import Terms, terms_of
from benchmarks.attacks.place import AttackPlace
from benchmarks.flood.engine import StandInLearner, StandInScorer, honest
from benchmarks.load.folder import make_run
from benchmarks.memory_network.transport import MemoryNetwork
from echo2.coordinator.daemon import Coordinator
from echo2.coordinator.database.database import Database
from echo2.coordinator.run.setup import Run
from echo2.coordinator.training.model_processes import Models
from echo2.coordinator.verification.scorer import Scorer
from echo2.p2p.limits.origin import Origin
from echo2.p2p.network import Network
from echo2.p2p.peer.peer import Peer
from echo2.protocol.leases import Lease, Submission
from echo2.weights.store import Store
from tests.support.clock import FakeClockLoop, run_fake

T = TypeVar("T")
_MEMORY: Final = Path("/dev/shm")


@dataclass(frozen=True)
class Setting:
    """One run. `nodes`: seconds per group of each honest node. `step`: seconds of a step of the learner. `scoring`:
    seconds in which an honest group is scored. `before`, `seconds`: rule 3. `tokens`: most sampled tokens of a rollout.
    `tick`, `look`: seconds between two ticks of the coordinator, and between two looks of its planner. `sections`:
    settings of the coordinator, each (section, name, value)."""

    nodes: tuple[float, ...] = (4.0, 5.0, 6.0, 7.0, 8.0, 10.0)
    step: float = 3.0
    scoring: float = 0.4
    before: float = 120.0
    seconds: float = 450.0
    group_size: int = 4
    tokens: int = 40
    batch_groups: int = 4
    staleness: int = 4
    seed: int = 1
    tick: float = 1.0
    look: float = 0.25
    sections: tuple[tuple[str, str, Any], ...] = ()


class Attack(Protocol):
    """An attack: given the world, it is prepared, and then runs until it is cancelled."""

    async def prepare(self, world: AttackPlace) -> None: ...

    async def run(self, world: AttackPlace) -> None: ...

    def said(self, world: AttackPlace) -> dict[str, float]:
        """Return the attack's summary for the report: figures by name."""


class Outcome(NamedTuple):
    """Result of a run. `at`: when each step of the learner ended, seconds since the counted time began. `accepted`:
    groups of honest nodes in the counted time. `said`: see `Attack.said`. `cpu`: seconds of the simulation."""

    at: tuple[float, ...]
    accepted: int
    said: dict[str, float]
    cpu: float

    @property
    def steps(self) -> int:
        """The steps of the counted time."""
        return len(self.at)

    def steps_within(self, begin: float, end: float) -> int:
        """Count the steps between two times, seconds."""
        return sum(begin <= one < end for one in self.at)


class World(AttackPlace):
    """The simulated environment of one run, while it goes on."""

    tasks: TaskGroup

    def __init__(
        self,
        setting: Setting,
        run: Run,
        network: MemoryNetwork,
        coordinator: Coordinator,
        learner: StandInLearner,
    ) -> None:
        super().__init__(setting.seed, first=1)
        self.setting, self.run, self.network = setting, run, network
        self.coordinator, self.learner = coordinator, learner
        self._peers = 0

    def now(self) -> int:
        """See `AttackPlace`."""
        return int(anyio.current_time() * 1000)

    def terms(self) -> Terms:
        """See `AttackPlace`."""
        latest = self.coordinator.publisher.latest
        assert latest is not None
        return terms_of(self.run, latest.version, latest.root, self.setting.tokens)

    async def connect(self, party: str = "") -> Connection:
        """See `AttackPlace`."""
        self._peers += 1
        name = f"peer-{self._peers}"
        peer = Peer(self.network.transport(name), seed=self._peers)
        self.network.origins[name] = Origin(name, party or name)
        self.tasks.start_soon(peer.run)
        await peer.ready()
        return Connection(peer, await peer.dial([f"/memory/coordinator/p2p/{self.run.peer_id}"]))

    def hang_up(self, connection: Connection) -> None:
        """End a connection, and the attacker's peer with it."""
        name = connection.network.peer_id
        self.network.kill(name)
        self.network.origins.pop(name, None)

    def put_forward(self, seconds: float) -> None:
        """Put the fake clock forward, as on a machine that was suspended."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, FakeClockLoop)
        loop.advance(seconds)

    async def group(self, lease: Lease) -> Submission:
        """See `AttackPlace`."""
        return honest(lease)

    def rows(self, query: str, *parameters: Any) -> Sequence[tuple[Any, ...]]:
        """See `AttackPlace`."""
        return self.coordinator.group_service.database.all(query, parameters)


def went(setting: Setting, attack: Attack | None = None) -> Outcome:
    """Run a setting to its end, with an attack or calm."""
    started = time.process_time()

    async def main(world: World) -> Outcome:
        for seconds in setting.nodes:
            world.tasks.start_soon(world.volunteer, seconds)
        await anyio.sleep(setting.before)
        if attack is not None:
            await attack.prepare(world)
        before, began = _accepted(world), anyio.current_time()
        if attack is not None:
            world.tasks.start_soon(attack.run, world)
        await anyio.sleep(setting.seconds)
        at = tuple(one - began for one in world.learner.steps if one >= began)
        said = {} if attack is None else attack.said(world)
        return Outcome(at, _accepted(world) - before, said, time.process_time() - started)

    return running(setting, main)


def running(setting: Setting, main: Callable[[World], Awaitable[T]], scorer: Scorer | None = None) -> T:
    """Run `main` in a new world on a fake clock. `scorer`: replaces the stand-in."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

    async def within() -> T:
        async with _world(setting, scorer) as world:
            return await main(world)

    outcome: T = run_fake(within)
    return outcome


def _accepted(world: World) -> int:
    keys: Sequence[bytes] = [key.public for key in world.honest]
    marks = ", ".join("?" * len(keys))
    query = f"SELECT count(*) FROM verdicts WHERE verdict = 'accepted' AND node IN ({marks})"
    return int(world.value(query, *keys))


@asynccontextmanager
async def _world(setting: Setting, scorer: Scorer | None) -> AsyncIterator[World]:
    sections: dict[str, dict[str, Any]] = {
        "run": {
            "group_size": setting.group_size,
            "limit": setting.tokens,
            "batch_groups": setting.batch_groups,
            "staleness": setting.staleness,
            "evaluate_every": 1_000_000,
        },
        "network": {"plan": False, "mdns": False},
    }
    for section, name, value in setting.sections:
        sections.setdefault(section, {})[name] = value
    memory = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="echo2-flood-", dir=memory) as folder:
        run = make_run(Path(folder) / "run", now=int(anyio.current_time() * 1000), **sections)
        network = MemoryNetwork(setting.seed)
        learner = StandInLearner(setting.step)
        tokens = 6 + setting.group_size * setting.tokens
        with Store(run.folder.store) as store, Database.open(run.folder.database) as database:
            coordinator = Coordinator(
                run,
                Network.of(Peer(network.transport(run.peer_id), seed=0)),
                Models(learner, [scorer or StandInScorer(setting.scoring / tokens)]),
                store=store,
                database=database,
                parties=network.parties,
                clock=anyio.current_time,
                entropy=np.random.default_rng(setting.seed).bytes,
            )
            coordinator.absence.ran = anyio.current_time  # real running time does not follow this clock
            coordinator.tick_seconds, coordinator.feeding.look_seconds = setting.tick, setting.look
            world = World(setting, run, network, coordinator, learner)
            async with anyio.create_task_group() as world.tasks:
                world.tasks.start_soon(coordinator.run)
                while coordinator.publisher.sealed_head is None or coordinator.group_service.progress is None:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
                yield world
                world.tasks.cancel_scope.cancel()
