"""Choose when a node changes its version. Pure.

To change, a node finishes the groups under way and begins none: its rows empty until the longest group has ended.
Where groups take about as long as a step of the learner, a change for each version leaves rows empty for half of the
time. But a group is learned from until its age is above S, so a node may pass over versions.

Terms
- A node is *behind* by the steps of the learner since the one that made its version: whole versions, and the part of a
  step since the newest came.
- A change *costs* the time for which a row stands empty, in the mean, until the last group has ended. It is measured:
  how long rows are differs, so no plan of the groups under way says it.
- A group that begins now is drawn at the earliest at the age of what the node is behind, and of the steps that a group
  takes, rounded up.

Rules
1. A node changes at once where that loses little:
   a. no group is under way;
   b. the coordinator refused a lease since the version was loaded, so this node makes all that is wanted;
   c. a change costs less than `LEAST_CHANGE_COST` of a step;
   d. from the first newer version to the end of rule 3's time a rollout would not end: few rows would begin anew.
2. It changes at once while it does not know what a change costs, or how long a group or a step takes.
3. Else it changes before it would begin a group that is drawn at an age above half of S. Where groups take so long that
   all are older, it passes over one version, and changes before it would begin a group that is drawn at an age above S.
"""

import itertools
import statistics
from collections import deque
from typing import Final, NamedTuple

LEAST_CHANGE_COST: Final = 0.25
"""Part of a step below which a change costs little."""
REMEMBERED_VERSIONS: Final = 9
"""Versions by whose times a step is measured."""
REMEMBERED_CHANGES: Final = 8
"""Changes by which their cost is measured."""


class WorkFacts(NamedTuple):
    """The work of a node. `is_working`: whether groups are under way. `is_wanted`: whether each lease that was
    requested under the loaded version was given. `group`: seconds that a group takes, in the median; None: none has
    ended. `row`: seconds that one of its rollouts takes. `change`: seconds that a change costs; None: none was
    measured."""

    is_working: bool = False
    is_wanted: bool = False
    group: float | None = None
    row: float = 0.0
    change: float | None = None


def is_due(behind: float, step: float, staleness: int, work: WorkFacts) -> bool:
    """Tell whether a node changes to a newer version now. `behind`: steps. `step`: seconds of a step, above 0.
    `staleness`: S."""
    if not (work.is_working and work.is_wanted) or work.group is None or work.change is None:
        return True
    takes = work.group / step
    most = min(staleness, max(staleness // 2, 2 + takes)) - takes
    loses_little = work.change < LEAST_CHANGE_COST * step or (most - 1) * step < work.row
    return loses_little or behind >= most


class ChangeLoss:
    """Measures what changes cost an engine. Times are of a clock that never goes back, seconds."""

    def __init__(self) -> None:
        self._costs: deque[float] = deque(maxlen=REMEMBERED_CHANGES)
        self._full, self._rows, self._since, self._lost = 0, 0, 0.0, 0.0

    def begin(self, rows: int, now: float) -> None:
        """Note that groups are finished from now on, unless they are already. `rows`: rows that run."""
        if not self._full:
            self._full, self._rows, self._since, self._lost = rows, rows, now, 0.0

    def on_rows(self, rows: int, now: float) -> None:
        """Note how many rows run from now on."""
        if self._full:
            self._lost += (now - self._since) * max(0.0, 1 - self._rows / self._full)
            self._rows, self._since = rows, now

    def end(self, now: float) -> None:
        """Note that no row runs any more."""
        if self._full:
            self.on_rows(0, now)
            self._costs.append(self._lost)
            self._full = 0

    def seconds(self) -> float | None:
        """Return what a change costs, the median of the last ones; None: none was measured."""
        return statistics.median(self._costs) if self._costs else None


class StepPace:
    """The pace of the learner's steps, by the times at which its versions were first announced."""

    def __init__(self) -> None:
        self._announced: deque[tuple[int, int]] = deque(maxlen=REMEMBERED_VERSIONS)
        """Versions with the time of the first Head of each that was heard, ms, in order."""

    def on_head(self, version: int, issued: int) -> None:
        """Note a Head. A version older than the last one means that steps were undone: what was known is forgotten."""
        if self._announced and version < self._announced[-1][0]:
            self._announced.clear()
        if not self._announced or version > self._announced[-1][0]:
            self._announced.append((version, issued))

    def seconds(self) -> float | None:
        """Return the seconds of a step, the median of the last versions; None: not known."""
        times = [
            (late - early) / (1000 * (newer - older))
            for (older, early), (newer, late) in itertools.pairwise(self._announced)
        ]
        return statistics.median(times) or None if times else None

    def behind(self, version: int, now: int) -> float | None:
        """Return by how many steps a node with this version is behind; None: not known. `now`: ms."""
        step = self.seconds()
        if step is None:
            return None
        newest, announced = self._announced[-1]
        return newest - version + max(0, now - announced) / (1000 * step)
