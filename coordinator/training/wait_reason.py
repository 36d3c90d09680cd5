"""State in a sentence why there is no batch for the learner. Pure; times in milliseconds.

Rules
1. During the first `SILENT_MS` of a wait there is no sentence. After that it is on the page; after `LONG_WAIT_MS`, and
   then once per `LONG_WAIT_MS`, it is a warning in the log.
2. The sentence names the bottleneck: no lease requests, refused lease requests, groups on nodes, groups at the scorer,
   groups whose rewards are all equal, or refused groups.
"""

from collections.abc import Mapping
from typing import Final

from echo2.coordinator.verdicts.shortage import Shortage

SILENT_MS: Final = 60_000
LONG_WAIT_MS: Final = 3_600_000
GROUP_COUNT_MS: Final = 10_000
"""Time between two counts of the groups."""


def sentence(short: Shortage) -> str:
    """Return the reason of the wait, for the page and the log."""
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
        parts.append(f"refused of the last {short.decided} groups: {_format_counts(short.refused)}")
    return "; ".join(parts)


def _groups(count: int) -> str:
    return "1 group waits" if count == 1 else f"{count} groups wait"


def _asks(asked: Mapping[str, int]) -> str:
    refused = {code: count for code, count in asked.items() if code}
    if not asked:
        return "no node has asked for a lease"
    if refused:
        return f"nodes that ask for a lease get none: {_format_counts(refused)}"
    return "no lease is out: those that were given have expired"


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {code}" for code, count in sorted(counts.items(), key=lambda one: (-one[1], one[0])))


class Wait:
    """The present wait of the learner. `words`: its reason for the page; empty if there is none."""

    def __init__(self) -> None:
        self.words = ""
        self._since: int | None = None
        self._looked = self._warned = 0

    def end_wait(self) -> None:
        """End the wait: there is a batch."""
        self.words, self._since = "", None

    def due(self, now: int) -> bool:
        """Record that the learner waits; return whether the reason should be determined now."""
        if self._since is None:
            self._since = self._warned = now
        return now - self._since >= SILENT_MS and (not self.words or now - self._looked >= GROUP_COUNT_MS)

    def say(self, what: str, now: int) -> bool:
        """Store the sentence; return whether to log it as a warning."""
        self.words, self._looked = what, now
        if now - self._warned < LONG_WAIT_MS:
            return False
        self._warned = now
        return True

    def seconds(self, now: int) -> float:
        """Return how long the wait has lasted."""
        return 0.0 if self._since is None else (now - self._since) / 1000
