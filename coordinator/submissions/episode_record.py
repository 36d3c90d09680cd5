"""The record of the last episodes of each task's environment: which failed, and why.

Rules
1. An episode counts once its tokens are known to be the policy's: a single one is scored after T1 and T2, one of
   several turns is noted when its group is accepted (`decided`). So nobody can pause a run with tokens that he made up.
2. An episode that was lost with its process, which another one ended, is shown under the reason `LOST_REASON` and is no
   result: it neither failed nor succeeded. Else tokens that a stranger made up could pause a run by way of others.
"""

from collections import Counter, OrderedDict, defaultdict, deque

KEPT_EPISODES = 2_000
"""Episodes."""
MOST_REASONS = 50
"""Number of reasons with a count of their own."""
LOST_REASON = "its process ended with another episode, and it could not be taken up again"
MOST_WAITING = 1_024
"""Undecided groups with failed episodes whose reasons are remembered."""


class EpisodeRecords:
    """The records of a run's tasks, by name."""

    def __init__(self) -> None:
        self._records: defaultdict[str, EpisodeRecord] = defaultdict(EpisodeRecord)

    def of(self, task: str) -> "EpisodeRecord":
        return self._records[task]

    def reasons(self) -> dict[str, int]:
        """Count the failed episodes of all tasks by reason."""
        together: Counter[str] = Counter()
        for record in self._records.values():
            together.update(record.reasons)
        return dict(together)


class EpisodeRecord:
    """The last episodes of a task. `failed`: whether each of them failed, at most `KEPT_EPISODES`. `reasons`: why,
    counted since the process started; lost ones too (rule 2)."""

    def __init__(self) -> None:
        self.failed: deque[bool] = deque(maxlen=KEPT_EPISODES)
        self.reasons: Counter[str] = Counter()
        self._waiting: OrderedDict[bytes, list[str]] = OrderedDict()
        """By lease: why episodes of its group failed."""

    @property
    def reason(self) -> str:
        """The most frequent reason of a failure; empty: there is none."""
        return next((reason for reason, _ in self.reasons.most_common(2) if reason != LOST_REASON), "")

    def note(self, reason: str) -> None:
        """Note an episode. `reason`: why it failed; empty: it did not. Beyond `MOST_REASONS` reasons, others are
        counted as "other"."""
        self.failed.append(bool(reason))
        if reason:
            self.reasons[reason if reason in self.reasons or len(self.reasons) < MOST_REASONS else "other"] += 1

    def note_undecided(self, lease: bytes, reason: str) -> None:
        """Remember that an episode of a group has failed, or is `LOST_REASON`, until the group is decided."""
        self._waiting.setdefault(lease, []).append(reason)
        while len(self._waiting) > MOST_WAITING:
            self._waiting.popitem(last=False)

    def note_episodes(self, lease: bytes, episodes: int) -> None:
        """Note the episodes of a group whose tokens are the policy's."""
        failed = self._waiting.pop(lease, [])
        for reason in [*failed, *[""] * (episodes - len(failed))]:
            if reason == LOST_REASON:
                self.reasons[LOST_REASON] += 1
            else:
                self.note(reason)
