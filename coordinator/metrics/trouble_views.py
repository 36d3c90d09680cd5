"""Define what the public state says of a run in trouble: its pauses, the batches that failed, and the guard's rules."""

from typing import Literal

import msgspec


class PauseView(msgspec.Struct, frozen=True, kw_only=True):
    """A pause of the run. `kind`: operator, batches, task-score or learner; by the guard: that of a `GuardRow`.
    `until`: when it ends by itself; None: the operator must resume the run. `remedy`: what the operator may type;
    empty: `echo2-coord resume`."""

    kind: str
    why: str
    since: int
    until: int | None
    remedy: str = ""


class RollbackView(msgspec.Struct, frozen=True, kw_only=True):
    """A version that was published again. `era`, `version`: era and version of the one that came again; `new_era`,
    `new_version`: new era and new version as which. `automatic`: not ordered by the operator. `rate`: factor of
    learner.learning_rate since then."""

    at: int
    era: int
    version: int
    new_era: int
    new_version: int
    why: str
    automatic: bool
    rate: float


GuardMood = Literal["unknown", "ok", "warning", "paused"]


class GuardRow(msgspec.Struct, frozen=True, kw_only=True):
    """A way in which the run may die, `title`. `now`: what the guard last read; empty: nothing yet. `holds`: count of
    steps or evaluations in which its rule has held. `pause_after`: number of them that pauses the run; None: it only
    warns. `remedy`: what the operator may do."""

    kind: str
    title: str
    now: str
    mood: GuardMood
    holds: int
    pause_after: int | None
    remedy: str


class GuardView(msgspec.Struct, frozen=True, kw_only=True):
    """The guard of the run (training/run_guard.py). `best_era`, `best_version`: best era and best version by held-out
    results; None: there is none yet. `left`: share of the best that the last exam had, per task; a task is missing
    while its rule is off. `rollbacks`: the last ones. `rate`: factor of learner.learning_rate. `ordered`: the version
    that is about to be published again. `rows`: the rules."""

    best_era: int | None = None
    best_version: int | None = None
    left: dict[str, float] = {}
    rollbacks: list[RollbackView] = []
    rate: float = 1.0
    ordered: int | None = None
    rows: list[GuardRow] = []


class SetAsideView(msgspec.Struct, frozen=True, kw_only=True):
    """A batch at which the learner failed: its groups are paid and never trained on."""

    at: int
    groups: int
    reason: str


class TroubleView(msgspec.Struct, frozen=True, kw_only=True):
    """The learner's troubles. `set_aside`: the last batches at which it failed. `reasons`: groups set aside per reason,
    since the run began. `waiting`: why the learner waits; empty: it does not wait, or not for long. `episodes`: failed
    episodes of the environment per reason, since the coordinator's start."""

    paused: PauseView | None = None
    set_aside: list[SetAsideView] = []
    reasons: dict[str, int] = {}
    waiting: str = ""
    episodes: dict[str, int] = {}
