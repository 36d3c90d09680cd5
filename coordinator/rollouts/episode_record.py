"""The record of an environment's last episodes: which failed, and why."""

from collections import Counter, deque

KEPT = 2_000
"""Episodes."""
MOST_REASONS = 50
"""Number of reasons with a count of their own."""


class EpisodeRecord:
    """`failed`: whether each of the last episodes failed, at most `KEPT`. `reasons`: why, counted since the process
    started."""

    def __init__(self) -> None:
        self.failed: deque[bool] = deque(maxlen=KEPT)
        self.reasons: Counter[str] = Counter()

    @property
    def reason(self) -> str:
        """The most frequent reason; empty: there is none."""
        return next((reason for reason, _ in self.reasons.most_common(1)), "")

    def note(self, reason: str) -> None:
        """Note an episode. `reason`: why it failed; empty: it did not. Beyond `MOST_REASONS` reasons, others are
        counted as "other"."""
        self.failed.append(bool(reason))
        if reason:
            self.reasons[reason if reason in self.reasons or len(self.reasons) < MOST_REASONS else "other"] += 1
