"""Call the learner process from the coordinator's main process, and log deaths of the model processes.

engines.process.supervisor restarts a process that dies: the call under way raises `ChildDied`, the next one goes to a
new process.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec
import structlog

from echo2.coordinator.learner import messages
from echo2.coordinator.metrics.views import FaultView
from echo2.coordinator.verification.scorer import Scorer
from echo2.engines.process.supervisor import Restarts, Supervisor
from echo2.runtime.backoff import Backoff
from echo2.runtime.child import Child, ChildDied, ChildError

RESTART_BACKOFF: Final = Backoff(0.25, 30.0)
"""Seconds before a model process is restarted."""
MEETING_NOTICE_SECONDS: Final = 30.0
"""Seconds after which a learner that waits for the ranks of other hosts says so."""
HEALTHY_AFTER: Final = 60.0
"""Seconds of life after which the backoff starts over."""

log = structlog.get_logger("coordinator")


class DiedComputing(ChildDied):
    """The learner died while it computed a batch, and was not told to end."""


class Learner(Protocol):
    """The calls of coordinator.learner.messages. Each may raise `DiskFull`, and `ChildDied` or `ChildError`, after
    which the next call must be `open`."""

    async def open(self, order: messages.Open) -> messages.Opened: ...

    async def step(self, batch: messages.Batch) -> messages.Stepped:
        """Train on a batch. Raises `DiedComputing` if the batch may have caused the death; a `ChildError` of the kind
        `DEVICE_LOST` if a rank's device did."""

    async def renew(self) -> None:
        """End this process; the next call goes to a new one."""


@dataclass(frozen=True)
class Models:
    """The learner and the scorers of a run, each a process or a stand-in. `faults`: deaths of their processes, for the
    page."""

    learner: Learner
    scorers: Sequence[Scorer]
    faults: list[FaultView] = field(default_factory=list)


def name_of(number: int) -> str:
    """Return the name of a scorer, for people. `number`: its number, from 1."""
    return "scorer" if number == 1 else f"scorer {number}"


def restarts() -> Restarts:
    """Return the restart policy of the model processes."""
    return Restarts(RESTART_BACKOFF, healthy=HEALTHY_AFTER)


def on_death(process: str, tell: Callable[[str], None]) -> Callable[[ChildDied, float], None]:
    """Return a callback that logs a crash of `process`, and passes its description to `tell`."""

    def died(death: ChildDied, pause: float) -> None:
        tell(f"{death}; it is started again")
        log.warning("model process died", process=process, returncode=death.returncode)

    return died


class LearnerChild:
    """The learner as a supervised process, which reports when its ranks have met, and when it begins to compute a
    batch. `child`: the process. `waits_for`: names the ranks of other hosts; "": there are none. `tell`: takes a fault,
    for the page."""

    def __init__(
        self,
        make: Callable[[], Child],
        restarts: Restarts,
        waits_for: str = "",
        tell: Callable[[str], None] = lambda fault: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`make`, `restarts`, `clock`: see `Supervisor`."""
        self.child = Supervisor(
            make, restarts, clock=clock, on_death=on_death("learner", tell), on_event=self._on_message
        )
        self._waits_for, self._tell = waits_for, tell
        self._meeting: asyncio.TimerHandle | None = None
        self._computing: int | None = None

    async def open(self, order: messages.Open) -> messages.Opened:
        """See `Learner`. While ranks of other hosts are missing, it waits for them, and says so every
        `MEETING_NOTICE_SECONDS`."""
        try:
            if self._waits_for:
                self._wait()
            return await self.child.use(lambda process: process.call("open", order, messages.Opened))
        finally:
            self._end_wait()

    async def step(self, batch: messages.Batch) -> messages.Stepped:
        """See `Learner`."""
        self._computing = None
        try:
            return await self.child.use(lambda process: process.call("train", batch, messages.Stepped))
        except ChildDied as death:
            if self._has_begun(batch) and not death.told:
                if lost := _lost_device(death.stderr):
                    raise ChildError(messages.DEVICE_LOST, lost) from death
                raise DiedComputing(death.name, death.returncode, death.stderr) from death
            raise

    async def renew(self) -> None:
        """See `Learner`."""
        await self.child.renew()

    def _wait(self, told: bool = False) -> None:
        self._meeting = asyncio.get_running_loop().call_later(MEETING_NOTICE_SECONDS, self._say, told)

    def _say(self, told: bool) -> None:
        log.warning("the learner waits for ranks", ranks=self._waits_for)
        if not told:
            self._tell(f"the learner waits for {self._waits_for}: start them there (docs/several-gpus.md)")
        self._wait(told=True)

    def _end_wait(self) -> None:
        if self._meeting is not None:
            self._meeting.cancel()
        self._meeting = None

    def _has_begun(self, batch: messages.Batch) -> bool:
        return self._computing == batch.step

    def _on_message(self, method: str, body: bytes) -> None:
        if method == messages.BATCH_BEGUN_METHOD:
            self._computing = msgspec.msgpack.decode(body, type=messages.Begun).step
        if method == messages.RANKS_MET_METHOD:
            self._end_wait()


def _lost_device(stderr: str) -> str:
    """Return what a rank whose device failed has printed at its end; "": none has."""
    mark = f"{messages.DEVICE_LOST}: "
    return next((one.partition(mark)[2] for one in stderr.splitlines() if mark in one), "")
