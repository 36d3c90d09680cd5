"""Kill a coordinator or its learner at random moments, start it again, and compare each step with those of a run that
was never killed.

Rules
1. Both runs begin from copies of one folder, whose run.sqlite has all groups. While nothing runs the store stands
   still, as nobody generates.
2. Of four kills three come after some steps, at any moment until the next one is made; the fourth comes twice: there,
   and again while the next learner makes journalled steps again. Never more often in a row: a replay that died twice is
   given up by rule (coordinator/learner/checkpoints/replay.py).
3. The coordinator's process is killed, or the learner's, in alternation. The lives have different shares of the time
   for full checkpoints, so that many steps are behind the newest one.
4. A step that the main process has heard of is durable: none is made again after it was heard of.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from benchmarks.batch import fill
from benchmarks.resume.coordinator_life import Mark
from echo2.coordinator.database.database import Database
from echo2.coordinator.learner.checkpoints import journal
from echo2.coordinator.learner.messages import WarmUp
from echo2.coordinator.run import setup
from echo2.coordinator.run.model_folder import TINY_MODEL
from echo2.tasks.tokenizer import CHAR_SIZE

BATCH: Final = 4
MOST_STEPS: Final = 4
"""Most steps that a life makes before it is killed."""
SHARES: Final = (0.05, 1e-6, 1e-6)
PATIENCE: Final = 180.0
_SHARE_VARIABLE: Final = "ECHO2_COORD_LEARNER_CHECKPOINT_SHARE"


class Step(NamedTuple):
    """A step that was made."""

    groups: list[bytes]
    loss: str
    root: bytes


class Kill(NamedTuple):
    """A kill and the first step after it. `victim`: coordinator or learner. `moment`: in words. `replay`: whether a
    second one came in the replay. `behind`: steps in the journal at the restart. `next`: the number of the step.
    `batch`, `bits`: whether its groups, and its loss and root, are those of the run that was never killed. `durable`:
    rule 4."""

    victim: str
    moment: str
    replay: bool
    behind: int
    next: int
    batch: bool
    bits: bool
    durable: bool


def make_run(folder: Path, steps: int) -> None:
    """Make a run of a tiny model, with groups for `steps` steps."""
    flags: dict[str, dict[str, Any]] = {
        "run": {
            "task": "reverse", "group_size": 4, "batch_groups": BATCH, "limit": 12, "heldout": 2, "steps": steps,
            "evaluate_every": 10_000, "staleness": steps + 1,
        },
        "https": {"listen": []},
        "learner": {"warmup_steps": 2, "learning_rate": 1e-3},
    }  # fmt: skip
    config = setup.settings_for(TINY_MODEL, flags, env={})
    warm_up = WarmUp(folder="", task="", task_version=0, steps=20, noise=0.3, batch=32)
    run = setup.init(folder, TINY_MODEL, config, now=time.time_ns() // 1_000_000, warm_up=warm_up)
    with Database.open(run.folder.database) as database:
        fill(database, 8, groups=BATCH * steps, samples=4, words=CHAR_SIZE)


class Life:
    """A coordinator's process over a run folder. `record`: its marks, of all lives."""

    def __init__(self, home: Path, record: Path, share: float) -> None:
        self._record, self._seen = record, len(_marks(record))
        argv = [sys.executable, "-m", "benchmarks.resume.coordinator_life", str(home), str(record)]
        self.process = subprocess.Popen(
            argv, env={**os.environ, _SHARE_VARIABLE: str(share)}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    def marks(self) -> list[Mark]:
        """Return the marks of this life."""
        return _marks(self._record)[self._seen :]

    def until(self, *events: str, times: int = 1, after: int = 0) -> Mark:
        """Wait for the `times`-th mark of one of these events behind the first `after` marks. Raises RuntimeError where
        the process has ended, and TimeoutError."""
        ends = time.monotonic() + PATIENCE
        while True:
            found = [mark for mark in self.marks()[after:] if mark.event in events]
            if len(found) >= times:
                return found[times - 1]
            if self.process.poll() is not None:
                _, errors = self.process.communicate()
                raise RuntimeError(f"the coordinator has ended: {errors.decode(errors='replace')[-2000:]}")
            if time.monotonic() > ends:
                raise TimeoutError(f"no {' or '.join(events)} in {PATIENCE:g} s")
            time.sleep(0.002)

    def learner(self) -> int:
        """Return the process id of the learner that is there."""
        return next(mark.pid for mark in reversed(self.marks()) if mark.event == "opening")

    def kill(self) -> None:
        """Send SIGKILL to the coordinator, wait for it, and for its learner, which ends with its pipe."""
        learner = next((mark.pid for mark in reversed(self.marks()) if mark.event == "opening"), 0)
        self.process.kill()
        self.process.communicate()
        while learner and _runs(learner):
            time.sleep(0.01)


def reference(home: Path, record: Path) -> dict[int, Step]:
    """Make all steps without a kill; return them by number."""
    life = Life(home, record, 1.0)
    _, errors = life.process.communicate(timeout=600)
    if life.process.returncode:
        raise RuntimeError(errors.decode(errors="replace")[-2000:])
    return {mark.step: Step(mark.groups, mark.loss, mark.root) for mark in life.marks() if mark.event == "stepped"}


class Killer:
    """Kills the lives of a run. `steps`: of the run that was never killed. `chance`: of the moments."""

    def __init__(self, home: Path, record: Path, steps: dict[int, Step], chance: random.Random) -> None:
        self._home, self._record, self._steps, self._chance = home, record, steps, chance
        self._lives, self._after, self._stepping = 0, 0, 0.2
        self.life = self._born()

    def kills(self, count: int) -> Iterator[Kill]:
        """Yield each kill, once the first step after it is made."""
        for number in range(count):
            twice, victim = number % 4 == 3, ("coordinator", "learner")[(number + number // 4) % 2]
            made = self._chance.randrange(2 if twice else 1, MOST_STEPS + 1)
            self.life.until("stepped", times=made, after=self._after)
            time.sleep(self._chance.uniform(0, self._stepping))
            self._kill(victim)
            yield self._next(victim, f"after {made} steps", twice and self._kill_replay(victim))

    def _kill_replay(self, victim: str) -> bool:
        """Kill while journalled steps are made again; tell whether it came before their end."""
        self.life.until("replaying", "opened", after=self._after)
        time.sleep(self._chance.uniform(0, self._stepping))
        after, life = self._after, self.life
        self._kill(victim)
        return not any(mark.event == "opened" for mark in life.marks()[after:])

    def _next(self, victim: str, moment: str, replay: bool) -> Kill:
        heard = max((mark.step for mark in _marks(self._record) if mark.event == "stepped"), default=0)
        journalled = journal_steps(self._home)
        self.life.until("opening", after=self._after)
        opened = self.life.until("opened", after=self._after)
        began = time.monotonic()
        first = self.life.until("stepped", after=self._after)
        self._stepping = time.monotonic() - began
        same = self._steps[first.step]
        return Kill(
            victim, moment, replay, journalled, first.step, first.groups == same.groups,
            (first.loss, first.root) == (same.loss, same.root), opened.step >= heard and opened.era == 1,
        )  # fmt: skip

    def _kill(self, victim: str) -> None:
        if victim == "learner":
            self._after, learner = len(self.life.marks()), self.life.learner()
            os.kill(learner, signal.SIGKILL)
        else:
            self.life.kill()
            self._after, self.life = 0, self._born()

    def _born(self) -> Life:
        self._lives += 1
        return Life(self._home, self._record, SHARES[self._lives % len(SHARES)])


def journal_steps(home: Path) -> int:
    """Return how many entries the learner's journal has."""
    return len(list((home / "learner" / journal.FOLDER).glob("entry-*")))


def _marks(record: Path) -> list[Mark]:
    lines = record.read_bytes().split(b"\n")[:-1] if record.exists() else []
    return [msgspec.json.decode(text_line, type=Mark) for text_line in lines]


def _runs(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
