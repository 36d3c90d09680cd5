"""The two model processes as main sees them: the calls that each answers, and what the death of one may say.

A process that dies is treated as engines.supervisor says: the call under way raises `ChildDied`, and the next one finds
a new process.
"""

from collections.abc import Callable
from typing import Final, Protocol

import msgspec
import structlog

from coordinator.learner import messages
from engines.supervisor import Restarts, Supervisor
from runtime.backoff import Backoff
from runtime.child import Child, ChildDied

PAUSES: Final = Backoff(0.25, 30.0)
"""Seconds before a model process is started again."""
HEALTHY_AFTER: Final = 60.0
"""Seconds of life after which a crash counts as the first again."""

log = structlog.get_logger("coordinator")


class DiedComputing(ChildDied):
    """The learner is gone while it computed a batch, and nobody had told it to end."""


class Learner(Protocol):
    """coordinator.learner.messages, asynchronously. Every call may raise `ChildDied` and `ChildError`, after which
    `open` comes first, and `DiskFull`."""

    async def open(self, order: messages.Open) -> messages.Opened: ...

    async def step(self, batch: messages.Batch) -> messages.Stepped:
        """Raises `DiedComputing` where the death may be the batch's."""

    async def renew(self) -> None:
        """Let this process go; the next call finds a new one."""


def restarts() -> Restarts:
    """Return how the model processes are started again."""
    return Restarts(PAUSES, healthy=HEALTHY_AFTER)


def on_death(process: str, tell: Callable[[str], None]) -> Callable[[ChildDied, float], None]:
    """Return what logs a crash of `process`, and tells of it."""

    def died(death: ChildDied, pause: float) -> None:
        tell(str(death))
        log.warning("a model process died", process=process, returncode=death.returncode)

    return died


class LearnerChild:
    """The learner in a process of its own. It says when it begins to compute a batch."""

    def __init__(self, child: Supervisor[Child]) -> None:
        self.child = child
        self._computing: int | None = None
        child.on_event = self._heard

    async def open(self, order: messages.Open) -> messages.Opened:
        """See `Learner`."""
        return await self.child.use(lambda process: process.call("open", order, messages.Opened))

    async def step(self, batch: messages.Batch) -> messages.Stepped:
        """See `Learner`."""
        self._computing = None
        try:
            return await self.child.use(lambda process: process.call("step", batch, messages.Stepped))
        except ChildDied as death:
            if self._begun(batch) and not death.told:
                raise DiedComputing(death.name, death.returncode, death.stderr) from death
            raise

    async def renew(self) -> None:
        """See `Learner`."""
        await self.child.renew()

    def _begun(self, batch: messages.Batch) -> bool:
        return self._computing == batch.step

    def _heard(self, method: str, body: bytes) -> None:
        if method == messages.BEGUN:
            self._computing = msgspec.msgpack.decode(body, type=messages.Begun).step
