"""Says in words what the learner waits for when there is no batch for it. Pure; times in milliseconds.

Rules
1. A wait is silent for `SILENT`. After that the sentence is on the page; after `LONG`, and then once per `LONG`, in the
   log as a warning.
2. The sentence names the step that is short: leases nobody asks for or gets, groups on nodes, groups at the scorer,
   groups that are there and do not count.
"""

from collections.abc import Mapping
from typing import Final

from coordinator.rollouts.shortage import Shortage

SILENT: Final = 60_000
LONG: Final = 3_600_000
LOOK: Final = 10_000
"""From one look at the facts to the next."""


def sentence(short: Shortage) -> str:
    """Say what the learner waits for."""
    parts = [f"{short.ready} of {short.batch} groups of the next batch are ready"]
    if short.flat:
        parts.append(f"{short.flat} more have all rewards equal, which refill leaves out")
    if short.undecided:
        parts.append(f"{_groups(short.undecided)} for the scorer")
    if short.running:
        parts.append(f"nodes work on {short.running}")
    if not short.undecided and not short.running:
        parts.append(_asks(short.asked))
    if short.refused:
        parts.append(f"refused of the last {short.decided} groups: {_counted(short.refused)}")
    return "; ".join(parts)


def _groups(count: int) -> str:
    return "1 group waits" if count == 1 else f"{count} groups wait"


def _asks(asked: Mapping[str, int]) -> str:
    refused = {code: count for code, count in asked.items() if code}
    if not asked:
        return "no node has asked for a lease"
    if refused:
        return f"nodes that ask for a lease get none: {_counted(refused)}"
    return "no lease is out: those that were given have expired"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {code}" for code, count in sorted(counts.items(), key=lambda one: (-one[1], one[0])))


class Wait:
    """One wait after another. `words`: for the page; empty while there is nothing to say."""

    def __init__(self) -> None:
        self.words = ""
        self._since: int | None = None
        self._looked = self._warned = 0

    def ended(self) -> None:
        """There is a batch."""
        self.words, self._since = "", None

    def due(self, now: int) -> bool:
        """Note that the learner waits; whether the facts are to be looked at now."""
        if self._since is None:
            self._since = self._warned = now
        return now - self._since >= SILENT and (not self.words or now - self._looked >= LOOK)

    def say(self, what: str, now: int) -> bool:
        """Take the sentence; whether it is a warning for the log."""
        self.words, self._looked = what, now
        if now - self._warned < LONG:
            return False
        self._warned = now
        return True

    def seconds(self, now: int) -> float:
        """How long it has lasted."""
        return 0.0 if self._since is None else (now - self._since) / 1000
