"""A whole coordinator in this process, without a network: a benchmark calls its handlers as a network would. Where the
settings name HTTPS, it serves that.

The scorer is the stub behind its real pipe. The learner is an object in this process, which makes a step when told to.
A benchmark prepares its requests before a measurement and reads the answers after it, so that the CPU time in between
is the coordinator's.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.attacks.light_node import Terms, terms_of
from benchmarks.load.stub_learner import StubLearner
from echo2.coordinator.command_line.serving import with_https
from echo2.coordinator.daemon import Coordinator
from echo2.coordinator.database.database import Database
from echo2.coordinator.learner.messages import Batch, Open, Opened, Stepped
from echo2.coordinator.run.setup import Run
from echo2.coordinator.training.model_processes import Models, restarts
from echo2.coordinator.verification.scorer import Scorer
from echo2.engines.process.process import EngineProcess
from echo2.engines.process.supervisor import SupervisedEngine
from echo2.p2p.errors import Unreachable
from echo2.p2p.handlers import Handlers
from echo2.p2p.limits.origin import LOCAL_ORIGIN, Origin
from echo2.p2p.multiaddr import Route
from echo2.p2p.network import FetchReport, GossipHandler, Traffic
from echo2.p2p.payload_manifest import Manifest
from echo2.runtime.checkout import checkout_command
from echo2.weights.store import Store


class Nobody:
    """A network without any other peer: implements every protocol of `p2p.network.Network`."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self.handlers = Handlers()

    @property
    def peer_id(self) -> str:
        return self._peer

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def ready(self) -> None:
        return None

    async def addresses(self) -> list[str]:
        return [f"/ip4/127.0.0.1/tcp/4310/p2p/{self._peer}"]

    async def peers(self) -> list[str]:
        return []

    async def routes(self) -> dict[str, Route]:
        return {}

    async def dial(self, addresses: Sequence[str]) -> str:
        raise Unreachable("nobody is here")

    async def reserve(self, addresses: Sequence[str]) -> None:
        return None

    async def release(self, relay: str) -> None:
        return None

    async def request(self, peer: str, method: str, payload: bytes, *, timeout: float) -> bytes:
        raise Unreachable("nobody is here")

    def origin(self, peer: str) -> Origin:
        return LOCAL_ORIGIN

    async def publish(self, topic: str, data: bytes) -> None:
        return None

    def subscribe(self, topic: str, handler: GossipHandler) -> None:
        return None

    async def share(self, manifest: Manifest, path: Path) -> None:
        return None

    async def unshare(self, payload_hash: bytes) -> None:
        return None

    async def fetch(self, manifest: Manifest, path: Path, *, fallback: str | None = None) -> FetchReport:
        raise Unreachable("nobody is here")

    async def follow(self, parents: Sequence[str], children: Sequence[str] = ()) -> None:
        return None

    async def limit(self, uplink: float | None, downlink: float | None) -> None:
        return None

    async def traffic(self) -> Traffic:
        return Traffic(received=0, sent=0, received_by_peer={})


class HeldLearner:
    """`coordinator.training.model_processes.Learner` in this process. A step is made once `let` is set, and clears
    `let`. `spent`: CPU seconds of its steps, which are not the coordinator's."""

    def __init__(self) -> None:
        self._stub = StubLearner()
        self.let = asyncio.Event()
        self.spent = 0.0

    async def open(self, order: Open) -> Opened:
        return self._stub.open(order)

    async def step(self, batch: Batch) -> Stepped:
        await self.let.wait()
        self.let.clear()
        stepped, seconds = await asyncio.to_thread(self._timed, batch)
        self.spent += seconds
        return stepped

    async def renew(self) -> None:
        """Do nothing: there is no process to restart."""
        return None

    def _timed(self, batch: Batch) -> tuple[Stepped, float]:
        began = time.thread_time()
        return self._stub.step(batch), time.thread_time() - began


class Bare:
    """A running coordinator with its handlers. `started`: CPU seconds, and seconds by the clock, until its first Head
    was signed."""

    def __init__(
        self, run: Run, coordinator: Coordinator, network: Nobody, learner: HeldLearner, database: Database
    ) -> None:
        self.run, self.coordinator, self.learner, self.database = run, coordinator, learner, database
        self.handlers = {name: method.handler for name, method in network.handlers.methods.items()}
        self.started = (0.0, 0.0)

    async def ask(self, method: str, data: bytes) -> bytes:
        """Send a sealed request to its handler; return the encoded Response."""
        return await self.handlers[method]("12D3KooWBench", data)

    def terms(self, tokens: int = 4) -> Terms:
        """Return the facts that a light node needs about the newest version."""
        latest = self.coordinator.publisher.latest
        assert latest is not None
        return terms_of(self.run, latest.version, latest.root, tokens)


async def until(condition: Callable[[], Any], seconds: float = 120.0) -> None:
    """Wait until a condition holds. Raises `TimeoutError`."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (no event tells of it)
            await asyncio.sleep(0.002)


@asynccontextmanager
async def bare(run: Run, clock: Callable[[], float] = time.time, scorers: Sequence[Scorer] = ()) -> AsyncIterator[Bare]:
    """Run a coordinator over the run folder. `clock`: seconds since the Unix epoch. `scorers`: they replace the
    stub."""
    stub = SupervisedEngine(
        lambda: EngineProcess(name="scorer", command=checkout_command("benchmarks.load.stub_scorer")), restarts()
    )
    learner, network = HeldLearner(), Nobody(run.peer_id)
    cpu, wall = time.process_time(), time.perf_counter()
    with Store(run.folder.store) as store, Database.open(run.folder.database) as database:
        coordinator = Coordinator(
            run,
            with_https(network, run),
            Models(learner, scorers or [stub]),
            store=store,
            database=database,
            clock=clock,
        )
        task = asyncio.create_task(coordinator.run())
        try:
            bare_coordinator = Bare(run, coordinator, network, learner, database)
            while coordinator.publisher.sealed_head is None or coordinator.group_service.progress is None:
                if task.done():
                    await task
                await asyncio.sleep(0.002)
            bare_coordinator.started = (time.process_time() - cpu, time.perf_counter() - wall)
            yield bare_coordinator
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await stub.stop()
