"""Choose when a node changes its version. Pure.

To change, a node finishes the groups under way and begins none meanwhile: its rows empty until the longest has ended.
Where groups last about as long as a step of the learner, a change for each version leaves the rows empty for more than
half of the time. But a group counts if its age is at most S when it is drawn: so a node passes over versions, and
changes when age asks for it.

Rules
1. A node that is `lag` versions behind begins groups as long as `lag` is below half of S.
2. It changes once a group that begins now would be too old by the time that this node's groups take: a group that ends
   within the step after version n is drawn with the next batch, at the age n + 1 less its version.
3. It changes at once where a change costs little: groups that last less than `SHORT_GROUP` of a step, no group under
   way, and a time that is not known yet.
"""

import itertools
import statistics
from collections import deque
from typing import Final

SHORT_GROUP: Final = 1 / 8
REMEMBERED_VERSIONS: Final = 8


def is_due(lag: int, since: float, staleness: int, group_steps: float | None) -> bool:
    """Tell whether a node whose groups are under way changes its version now. `lag`: versions from the loaded one to
    the newest one that is here. `since`: steps of the learner for which that has been the newest. `staleness`: S.
    `group_steps`: steps that a group takes, from its lease to its submission; None: not known."""
    if group_steps is None or group_steps < SHORT_GROUP:
        return True
    return 2 * lag >= staleness or lag + since + group_steps >= staleness


class StepTime:
    """The seconds of a step of the learner, by the times at which its versions were first signed."""

    def __init__(self) -> None:
        self._signed: deque[tuple[int, int]] = deque(maxlen=REMEMBERED_VERSIONS)
        """Numbers of versions with the time of their first Head, ms, in order."""

    def on_head(self, version: int, issued: int) -> None:
        """Note a Head. An older version than the last one means that the run was rolled back: what was known is
        dropped."""
        if self._signed and version < self._signed[-1][0]:
            self._signed.clear()
        if not self._signed or version > self._signed[-1][0]:
            self._signed.append((version, issued))

    def seconds(self) -> float | None:
        """Return the median of the last intervals, per step; None: fewer than two versions were heard of."""
        steps = [
            (later[1] - earlier[1]) / (1000 * (later[0] - earlier[0]))
            for earlier, later in itertools.pairwise(self._signed)
        ]
        return max(0.0, statistics.median(steps)) if steps else None

    def since(self, now: int) -> float:
        """Return for how many seconds the newest version has been the newest. `now`: ms."""
        return max(0.0, (now - self._signed[-1][1]) / 1000) if self._signed else 0.0
