"""The groups decided last: their codes, and how many of their rollouts lack a reward; in memory only."""

from collections import defaultdict, deque
from typing import Final

from echo2.coordinator.accounts.decided import Decided

RECENT_VERDICTS: Final = 200
"""Decided groups that are remembered."""


class RecentVerdicts:
    """The last groups since the process started. `codes`: codes of their verdicts. `missing`: the share, by task, of
    rollouts without a finite reward in each group; 1 where the group is not learned from for it."""

    def __init__(self) -> None:
        self.codes: deque[str] = deque(maxlen=RECENT_VERDICTS)
        self.missing: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT_VERDICTS))

    def on_decided(self, end: Decided) -> None:
        """Remember a group."""
        if end.is_group:
            self.codes.append(end.code)
            self.missing[end.lease.task].append(_missing_share(end))


def _missing_share(end: Decided) -> float:
    if end.accepted is None or end.code not in ("ok", "task-score"):
        return 0.0
    return 1.0 if end.code == "task-score" else 1 - len(end.accepted.rewards) / len(end.accepted.lengths)
