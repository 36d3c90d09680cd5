"""One life of a coordinator with its learner process: `python -m benchmarks.resume.coordinator_life HOME RECORD`.

There are no nodes. run.sqlite has the learner's groups beforehand, so the store does not change between two lives.
RECORD gets a line of JSON (a Mark) for each event, in order.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import structlog

from benchmarks.flood.engine import StandInScorer
from benchmarks.load.bare import Nobody
from echo2.coordinator.daemon import Coordinator
from echo2.coordinator.database.database import Database
from echo2.coordinator.learner.messages import Batch, Open, Opened, Stepped
from echo2.coordinator.learner.ranks.launch import learner_process
from echo2.coordinator.run import setup
from echo2.coordinator.training.model_processes import LearnerChild, Models, restarts
from echo2.p2p.network import Network
from echo2.weights.store import Store


class Mark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event. `event`: opening, replaying (journalled steps are made again), opened, asked or stepped. `pid`: of the
    learner, in `opening`. `era`, `step`: where it is. `groups`, `loss`, `root`: of a step that was made; loss with all
    its bits."""

    event: str
    pid: int = 0
    era: int = 0
    step: int = 0
    groups: list[bytes] = []
    loss: str = ""
    root: bytes = b""


class RecordingLearner:
    """A learner process whose calls are recorded. `tell`: gets each event."""

    def __init__(self, child: LearnerChild, tell: Callable[[Mark], None]) -> None:
        self._child, self._tell = child, tell

    async def open(self, order: Open) -> Opened:
        process = await self._child.child.running()
        self._tell(Mark(event="opening", pid=process.pid))
        opened = await self._child.open(order)
        self._tell(Mark(event="opened", era=opened.era, step=opened.step))
        return opened

    async def step(self, batch: Batch) -> Stepped:
        self._tell(Mark(event="asked", step=batch.step))
        stepped = await self._child.step(batch)
        root = stepped.export.root if stepped.export else b""
        loss = stepped.metrics["loss"].hex()
        self._tell(Mark(event="stepped", step=stepped.step, groups=batch.groups, loss=loss, root=root))
        return stepped

    async def renew(self) -> None:
        await self._child.renew()


async def live(home: Path, tell: Callable[[Mark], None]) -> None:
    """Train until the run's last step."""
    run = setup.load_run(home, now=time.time_ns() // 1_000_000)
    # No pause before the next start: a benchmark that kills waits for nothing else.
    learner = LearnerChild(learner_process, restarts(), clock=lambda: 1e6 * time.monotonic())
    async with AsyncExitStack() as stack:
        store = stack.enter_context(Store(run.folder.store))
        database = stack.enter_context(Database.open(run.folder.database))
        stack.push_async_callback(learner.child.stop)
        models = Models(RecordingLearner(learner, tell), [StandInScorer(0.0)])
        coordinator = Coordinator(run, Network.of(Nobody(run.peer_id)), models, store=store, database=database)
        life = asyncio.create_task(coordinator.run())
        end = asyncio.create_task(coordinator.learning.training.finished.wait())
        done, _ = await asyncio.wait((life, end), return_when=asyncio.FIRST_COMPLETED)
        if life in done:
            life.result()
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)


def main() -> None:
    home, record = map(Path, sys.argv[1:])
    with record.open("ab", buffering=0) as file:

        def tell(mark: Mark) -> None:
            file.write(msgspec.json.encode(mark) + b"\n")

        def heard(logger: object, method: str, event: structlog.typing.EventDict) -> str:
            if "will be made again" in str(event.get("line")):
                tell(Mark(event="replaying"))
            raise structlog.DropEvent

        structlog.configure(processors=[heard])
        asyncio.run(live(home, tell))


if __name__ == "__main__":
    main()
