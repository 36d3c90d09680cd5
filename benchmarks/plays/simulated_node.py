"""A node of a simulated run, and the leases and groups that it works on."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from benchmarks.plays.simulated_prompts import LeasedPrompt

OWN: Final = 20
"""Groups over which a node is measured."""


@dataclass(eq=False)
class SimulatedNode:
    """A node. `loaded`, `newest`: the version that it works under and the newest one that it knows.
    `here_since`: ms."""

    key: bytes
    turnaround: float
    ask: int = 0
    active: bool = True
    paid_since: float | None = None
    loaded: int = 0
    newest: int = 0
    here: bool = True
    here_since: int = 0
    waits: bool = False
    running: set[int] = field(default_factory=set)
    measured: deque[float] = field(default_factory=lambda: deque(maxlen=OWN))


class OpenLease(NamedTuple):
    """A lease that has not ended. `sent`: ms. `ahead`: groups on their way when it was given, itself included. `late`:
    from when on it is late (lease_lifetime.py, rule 5), ms; None: never."""

    node: SimulatedNode
    version: int
    sent: int
    prompt: LeasedPrompt
    ahead: int
    late: int | None


class GroupWork(NamedTuple):
    """The work on a lease's group. `began`: seconds. `takes`: seconds."""

    began: float
    takes: float
    prompt: LeasedPrompt

    def share_at(self, seconds: float) -> float:
        """Return the share of the group's tokens that are there, so many seconds after `began`."""
        return min(1.0, seconds / self.takes)
