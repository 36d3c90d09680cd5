"""Decide when a run is paused, and for how long. Pure; times in milliseconds since the Unix epoch.

Rules
1. While a run is paused no lease is issued and no batch is begun. Submissions are still accepted, verified and paid.
2. A run is paused in three cases: three batches in a row were set aside; of one of its tasks more than 5 % of the
   rollouts of the last 200 decided groups have no finite reward, or more than 5 % of the last 2,000 episodes of its
   environment failed; or the learner failed for a fault of the machine twice in a row. A group that is not learned from
   for want of rewards counts whole.
3. Such a pause ends by itself after 10 minutes. The same trouble again, without a success between, doubles the time, up
   to 2 hours. A success is a new step, or of each task a whole window in which at most 5 % lack a reward. If
   the clock is set back to before a pause began, the pause starts over.
4. The operator's pause ends by `resume` alone, which ends any other pause too: the next batch is tried at once.
5. Of two pauses the one that ends later applies.
6. An alarm of the guard (run_guard.py) pauses the run until `resume` or a rollback.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from echo2.coordinator.submissions.episode_record import KEPT_EPISODES
from echo2.coordinator.training import run_guard
from echo2.runtime.backoff import Backoff

Kind = str
"""operator, batches, task-score, learner, or a kind of the guard (run_guard.py)."""

FIRST_PAUSE_MS: Final = 600_000
LONGEST_PAUSE_MS: Final = 7_200_000
_PAUSE_BACKOFF: Final = Backoff(FIRST_PAUSE_MS, LONGEST_PAUSE_MS)
MOST_BATCHES: Final = 3
MOST_IDLE: Final = 2
PAUSE_WINDOW_GROUPS: Final = 200
"""Decided groups that rule 2 counts."""
MOST_UNSCORED: Final = PAUSE_WINDOW_GROUPS * 5 // 100
"""Groups without rewards, or the sum of shares of groups."""
MOST_FAILED: Final = KEPT_EPISODES * 5 // 100
"""Failed ones of the last `KEPT` episodes."""


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A pause of the run. `until`: when it ends by itself; None: by `resume` alone. `remedy`: what the operator may do;
    empty: `resume`."""

    kind: Kind
    why: str
    since: int
    until: int | None = None
    remedy: str = ""

    @property
    def is_alarm(self) -> bool:
        """Whether the guard paused the run (rule 6)."""
        return self.kind in run_guard.KINDS


class Window(NamedTuple):
    """The last results of a task. `too_many`: of them lack a reward. `whole`: they are as many as rule 2 counts. `why`:
    the sentence of a pause."""

    too_many: bool
    whole: bool
    why: str


class PauseState(msgspec.Struct, kw_only=True):
    """The durable state of the pauses. `times`: troubles in a row per kind, without a success between."""

    pause: Pause | None = None
    times: dict[Kind, int] = {}


def window_of_groups(missing: Sequence[float], task: str = "") -> Window:
    """Return the window of the groups decided last. `missing`: the share of each one's rollouts without a finite
    reward. `task`: its name, where the run has several."""
    bad, subject = math.fsum(missing), f"task {task}" if task else "the task"
    share = f"{100 * bad / max(1, len(missing)):.1f} % of the rollouts of the last {len(missing)} groups"
    why = f"{subject} gave no finite reward for {share}: fix the task's score"
    return Window(bad > MOST_UNSCORED, len(missing) >= PAUSE_WINDOW_GROUPS, why)


def window_of_episodes(failed: Sequence[bool], reason: str, task: str = "") -> Window:
    """Return the window of an environment's last episodes. `failed`: whether it failed, per episode. `reason`: the most
    frequent one. `task`: the same as in `window_of_groups`."""
    subject = f"the environment of task {task}" if task else "the environment"
    why = f"{subject} failed in {sum(failed)} of the last {len(failed)} episodes, most often: {reason}"
    return Window(sum(failed) > MOST_FAILED, len(failed) >= KEPT_EPISODES, why)


def wait(times: int) -> int:
    """Return the length of the `times`-th pause in a row (rule 3)."""
    return int(_PAUSE_BACKOFF.delay(times))


class Pauses:
    """The state of all pauses of a run."""

    def __init__(self, standing: PauseState | None = None) -> None:
        self.standing = standing or PauseState()

    @property
    def pause(self) -> Pause | None:
        """The present pause; None while the run is not paused."""
        return self.standing.pause

    def set_aside(self, reason: str, now: int) -> None:
        """Record that a batch was set aside for `reason`; pause after `MOST_BATCHES` in a row."""
        times = self._again("batches")
        if times >= MOST_BATCHES:
            why = f"the learner failed at {times} batches in a row, the last time by {reason}"
            self._begin("batches", why, now, times - MOST_BATCHES + 1)

    def cannot_work(self, reason: str, now: int) -> None:
        """Record that the learner failed for a fault of the machine; pause after `MOST_IDLE` in a row."""
        times = self._again("learner")
        if times >= MOST_IDLE:
            self._begin("learner", f"the learner cannot work: {reason}", now, times - MOST_IDLE + 1)

    def check_results(self, windows: Sequence[Window], now: int) -> bool:
        """Check the last results of each task; return whether they pause the run. The caller then clears them."""
        whys = [window.why for window in windows if window.too_many]
        if whys:
            self._begin("task-score", f"{'; '.join(whys)} (the log names the groups)", now, self._again("task-score"))
            return True
        if windows and all(window.whole for window in windows):
            self.standing.times.pop("task-score", None)
        return False

    def on_step(self) -> None:
        """Record a step beyond all earlier ones: it is a success (rule 3)."""
        self.standing.times.pop("batches", None)
        self.standing.times.pop("learner", None)

    def stop(self, why: str, now: int) -> None:
        """Pause the run for the operator."""
        self.standing.pause = Pause(kind="operator", why=why, since=now)

    def alarm(self, alarm: run_guard.Alarm, remedy: str, now: int) -> None:
        """Pause the run for an alarm of the guard, unless it is paused until `resume` already (rule 5)."""
        if self.standing.pause is None or self.standing.pause.until is not None:
            self.standing.pause = Pause(kind=alarm.kind, why=alarm.why, since=now, remedy=remedy)

    def resume(self) -> Pause | None:
        """End the pause for the operator; return it, or None if the run was not paused."""
        ended, self.standing.pause = self.standing.pause, None
        return ended

    def look(self, now: int) -> Pause | None:
        """End a pause whose time has passed, and return it. A pause that began after `now`, because the clock was set
        back, starts over."""
        pause = self.standing.pause
        if pause is None or pause.until is None:
            return None
        if now < pause.since:
            lasts = pause.until - pause.since
            self.standing.pause = msgspec.structs.replace(pause, since=now, until=now + lasts)
            return None
        return self.resume() if now >= pause.until else None

    def _again(self, kind: Kind) -> int:
        self.standing.times[kind] = self.standing.times.get(kind, 0) + 1
        return self.standing.times[kind]

    def _begin(self, kind: Kind, why: str, now: int, times: int) -> None:
        until, current = now + wait(times), self.standing.pause
        if current is None or (current.until is not None and current.until < until):
            self.standing.pause = Pause(kind=kind, why=why, since=now, until=until)
