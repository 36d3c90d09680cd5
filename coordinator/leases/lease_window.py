"""Bound the groups that are on their way to the learner, so that each is young when it is drawn. Times in milliseconds.

Terms
- A group is *on its way* from its lease until it is drawn: leased, waiting for its verdict, or in the buffer.
- The *window* W is the most groups on their way, in batches of the learner.
- T: the median of the learner's last steps.
- A batch is *complete* at the verdict of the group that fills it. It *waits* for the learner from then until the
  learner can begin it; the learner waits for it otherwise, and the wait is negative.

Rules
1. A lease is given while fewer than W batches are on their way. The room of its version (lease_table.py, rule 2) is the
   bound above. Before the first draw W is S + 1.
2. Each draw shows which window would have been enough. It is the groups that were on their way when the lease of the
   group was given that completed the batch, itself included, in batches;
   a. less the steps for which the batch waited;
   b. where the learner waited, and the steps for which it did. If a draw falls in as long a time before the lease, and
      a batch at least: a draw makes room for a batch at once, so the lease could only have been given before that draw.
3. W is the largest of these windows over the last `REMEMBERED_DRAWS` draws; and `WINDOW_MARGIN_BATCHES`; and the steps
   for which the learner waited at these draws: a node that asks late, or has groups to finish, leaves room that was
   enough unused. While the learner waits for longer than a step, W also grows by each further step: leases whose groups
   never come would else fill the window until they expire, and no draw would tell it. From 1 to S + 1.
4. While a version is newer than that of the request and may not yet have reached all nodes, W is one less: the batch
   that the newer version will bring is left to it.
5. After the first draw no lease is given while a whole batch waits for its verdicts: the scorer is behind, and one more
   would only wait. Groups whose environment scores them now do not count: they wait for nobody, however long it takes.
6. A lease that is late is not counted: its node may be gone (lease_lifetime.py, rule 5).
7. The last draws and steps are a fact in run.sqlite, so a restart changes nothing. A draw after a pause, an absence, or
   an opening of the learner shows nothing.

Consequences. A window that is too large leaves a batch waiting, so the next draws show a smaller one; one that is too
small lets the learner wait, so they show a larger one. Nothing that the window itself causes counts as need: neither
the time that a group waits nor the rate that a fleet is allowed. So there is no state in which it stays wrong, also
where no draw comes any more (rule 3).

Source: derived for this project, docs/adr/0065-window-of-leases.md. Beside TCP Vegas (Brakmo, 1994) and BBR (Cardwell,
2016), whose windows also follow the least delay, and neither a queue nor a loss.
"""

import math
import statistics
from typing import Final, NamedTuple

import msgspec

from echo2.coordinator.leases.lease_terms import InFlight

REMEMBERED_DRAWS: Final = 16
WINDOW_MARGIN_BATCHES: Final = 0.25
"""Batches beyond what was enough: a quarter of a step, in which the next draw may differ from the last ones."""
REMEMBERED_STEPS: Final = 16
LEAST_DRAWS: Final = 4


class CompletedBatch(NamedTuple):
    """The batch of a draw. `ahead`: groups on their way when the lease was given that completed it, itself included.
    `leased`: when that was. `at`: when the batch was complete."""

    ahead: int
    leased: int
    at: int


class LastDraws(msgspec.Struct):
    """The measurements of the window, oldest first. `windows`: those that would have been enough, in batches.
    `waits`: steps for which the learner waited at each of these draws. `steps`: milliseconds that the learner took.
    `draws`: when batches were drawn."""

    windows: list[float] = []
    waits: list[float] = []
    steps: list[float] = []
    draws: list[int] = []


class LeaseWindow:
    """The window of one run. No I/O."""

    def __init__(self, staleness: int, batch: int, last: LastDraws | None = None) -> None:
        """`staleness`: S. `batch`: groups per step. `last`: measurements of an earlier process."""
        self._most, self.batch = float(staleness + 1), batch
        self.last = last or LastDraws()
        self._free_since: int | None = None
        self._began: int | None = None
        self._waits_since: int | None = None
        """Since when the learner waits for its next batch; None: it does not, or is not known to."""

    @property
    def batches(self) -> float:
        """W as the last draws show it, in batches (rule 3)."""
        windows = self.last.windows
        return (
            min(self._most, max(1.0, max(windows) + WINDOW_MARGIN_BATCHES + sum(self.last.waits)))
            if windows
            else self._most
        )

    def batches_at(self, now: int) -> float:
        """W with what it grows by while the learner waits, in batches (rule 3)."""
        return min(self._most, self.batches + max(0.0, self._steps_waited(now) - 1.0))

    @property
    def step(self) -> float | None:
        """T, in milliseconds; None: no step is measured."""
        return statistics.median(self.last.steps) if self.last.steps else None

    @property
    def learner_waits(self) -> bool:
        """Whether the learner is known to wait for its next batch."""
        return self._waits_since is not None

    def idle_at(self, now: int) -> float | None:
        """Return the share of the learner's time for which it waited at the last draws, and waits now; None: fewer than
        `LEAST_DRAWS` are measured."""
        draws, waited = len(self.last.waits), sum(self.last.waits) + self._steps_waited(now)
        return waited / (waited + draws) if draws >= LEAST_DRAWS else None

    def _steps_waited(self, now: int) -> float:
        """Return for how many steps the learner has waited for its next batch."""
        since, step = self._waits_since, self.step
        return max(0.0, (now - since) / step) if since is not None and step else 0.0

    def groups(self, now: int, *, behind: bool) -> int:
        """Return the most groups on their way. `behind`: a newer version is still on its way to nodes (rule 4)."""
        return math.ceil((self.batches_at(now) - behind) * self.batch)

    def room(self, load: InFlight, buffered: int, now: int, *, behind: bool) -> int:
        """Return how many more groups may be on their way (rules 1, 4 and 5)."""
        left = self.groups(now, behind=behind) - load.on_their_way(buffered)
        is_scorer_behind = self.last.windows and load.waiting_for_verdicts >= self.batch
        return min(0, left) if is_scorer_behind else left

    def draw(self, batch: CompletedBatch | None, now: int) -> None:
        """Note that the learner begins a step. `batch`: None if nothing is known of the lease that completed it."""
        free, step, self._began, self._free_since, self._waits_since = self._free_since, self.step, now, None, None
        if batch is not None and free is not None and step and now >= free:
            late = max(-self._most, min(self._most, (batch.at - free) / step))  # a clock may have been set
            missed = sum(batch.leased + free - batch.at < drawn <= batch.leased for drawn in self.last.draws)
            self.last.windows.append(batch.ahead / self.batch + max(late, missed or late))
            self.last.waits.append(max(0.0, late))
            del self.last.windows[:-REMEMBERED_DRAWS], self.last.waits[:-REMEMBERED_DRAWS]
        self.last.draws.append(now)
        del self.last.draws[:-REMEMBERED_DRAWS]

    def end_step(self, now: int) -> bool:
        """Note that the learner has ended its step, and can begin another; return whether its time is a measurement."""
        began, self._began, self._free_since = self._began, None, now
        if began is None or now < began:
            return False
        self.last.steps.append(float(now - began))
        del self.last.steps[:-REMEMBERED_STEPS]
        return True

    def wait(self, now: int) -> None:
        """Note that the learner could not draw its next batch (rule 3). Call as often as it tries."""
        if self._waits_since is None or now < self._waits_since:
            self._waits_since = now

    def stop(self) -> None:
        """Note that the learner lost its step, or was paused, absent or opened (rule 7)."""
        self._began = self._free_since = self._waits_since = None
