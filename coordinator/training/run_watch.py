"""Watch over a run: set aside the batches at which the learner fails, pause and resume the run, and store both.

Rules
1. Groups set aside are in run.sqlite (table `set_aside`), and so is the pause (fact `supervision`): a restart changes
   neither.
2. `GroupService.paused` follows the pause, which stops leases. `changed` wakes the training loop when a pause
   ends.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog

from echo2.coordinator.metrics.trouble_views import PauseView, SetAsideView, TroubleView
from echo2.coordinator.submissions.group_service import GroupService
from echo2.coordinator.training.batch_faults import BatchFaults
from echo2.coordinator.training.pauses import Pause, Pauses, PauseState, Window, window_of_episodes, window_of_groups
from echo2.coordinator.training.run_guard import Alarm
from echo2.coordinator.training.wait_reason import Wait, sentence

FACT: Final = "supervision"
SHOWN_BATCHES: Final = 20
"""Set-aside batches that the page shows."""
MOST_REASON: Final = 200
"""Stored characters of a reason."""
MOST_REASONS: Final = 50
"""Number of reasons with a count of their own."""

log = structlog.get_logger("coordinator")


class Watch:
    """The pauses and set-aside batches of a run. `clock`: seconds since the Unix epoch. `changed`: called when a pause
    has ended. `on_resume`: called with each pause that has ended by its time or by the operator."""

    def __init__(
        self,
        group_service: GroupService,
        clock: Callable[[], float],
        changed: Callable[[], None],
        on_resume: Callable[[Pause], None] = lambda ended: None,
    ) -> None:
        self._group_service = group_service
        self._clock = clock
        self._changed = changed
        self._tasks = group_service.tasks
        stored = group_service.database.fact(FACT)
        self._pauses = Pauses(msgspec.json.decode(stored, type=PauseState) if stored else None)
        self._batches = BatchFaults()
        self._wait = Wait()
        self._on_resume = on_resume
        self._reasons: Counter[str] = Counter()
        self._aside: list[SetAsideView] = []
        for reason, at, groups in group_service.buffer.batches_aside():
            self._count(SetAsideView(at=at, groups=groups, reason=reason))
        self._follow()

    @property
    def pause(self) -> Pause | None:
        """The present pause; None while the run is not paused."""
        return self._pauses.pause

    def look(self) -> None:
        """End a pause whose time has passed, and check the groups decided last. Call it about once per second."""
        before, ended = self.pause, self._pauses.look(self._now())
        if ended is not None:
            self._note_end(ended, "its time is over")
            self._on_resume(ended)
        elif before != self.pause:
            self._save()
        if self.pause is not None:
            return  # groups received during a pause were leased before it: their missing rewards are no new trouble
        if self._pauses.check_results([self._window(task) for task in self._tasks], self._now()):
            self._clear()
            self._note_beginning()

    def _window(self, task: str) -> Window:
        """Return the last results of a task: of its environment's episodes, else of its groups."""
        episodes, named = self._group_service.episodes.of(task), task if len(self._tasks) > 1 else ""
        if episodes.failed:
            return window_of_episodes(episodes.failed, episodes.reason, named)
        return window_of_groups(self._group_service.recent_verdicts.missing[task], named)

    def _clear(self) -> None:
        """Begin all windows anew."""
        self._group_service.recent_verdicts.codes.clear()
        for task in self._tasks:
            self._group_service.recent_verdicts.missing[task].clear()
            self._group_service.episodes.of(task).failed.clear()

    def stop(self, why: str = "") -> None:
        """Pause the run for the operator. A second pause without a reason keeps the first reason."""
        current = self._pauses.pause
        given = current.why if current is not None and current.kind == "operator" else "by its operator"
        self._pauses.stop(why or given, self._now())
        self._note_beginning()

    def resume(self) -> bool:
        """Resume the run for the operator; return whether it was paused."""
        ended = self._pauses.resume()
        if ended is None:
            return False
        self._note_end(ended, "the operator resumed the run")
        self._on_resume(ended)
        return True

    def alarm(self, alarm: Alarm, remedy: str) -> None:
        """Pause the run for an alarm of the guard."""
        before = self.pause
        self._pauses.alarm(alarm, remedy, self._now())
        self._note_beginning(before)

    def end_alarm(self, why: str) -> None:
        """End a pause of the guard: its cause is gone."""
        if self.pause is not None and self.pause.is_alarm:
            ended = self._pauses.resume()
            assert ended is not None
            self._note_end(ended, why)

    def on_opening(self, era: int, step: int) -> None:
        """Record that a learner was opened at `step` of `era`: era in a later era steps are counted anew."""
        self._batches.on_opening(era, step)

    def cannot_work(self, reason: str) -> None:
        """Record that the learner failed for a fault of the machine: no batch is charged for it."""
        self._batches.excuse()
        log.error("the learner cannot work", reason=reason)
        before = self.pause
        self._pauses.cannot_work(reason[:MOST_REASON], self._now())
        self._note_beginning(before)

    def on_step(self, step: int) -> None:
        """Record a step of the learner."""
        if self._batches.on_step(step):
            self._pauses.on_step()
            self._save()

    def on_failure(self, batch: Sequence[bytes], reason: str) -> None:
        """Record that the learner failed at a batch with an error."""
        log.error("the learner failed at a batch", groups=len(batch), reason=reason)
        if self._batches.on_failure(batch):
            self._set_aside(batch, reason)

    def on_death(self, batch: Sequence[bytes], reason: str) -> None:
        """Record that the learner died while it computed a batch, without being told to end."""
        log.warning("the learner died while it computed a batch", groups=len(batch), reason=reason)
        if self._batches.on_death(batch):
            self._set_aside(batch, f"the death of the learner, three times in a row: {reason}")

    def waits(self) -> None:
        """Record that there is no batch for the learner; once that has lasted, log the reason."""
        now = self._now()
        if self.pause is not None or not self._wait.due(now):
            return
        words = sentence(self._group_service.shortage(now))
        if self._wait.say(words, now):
            log.warning("the learner waits for groups", hours=round(self._wait.seconds(now) / 3600, 1), what=words)

    def end_wait(self) -> None:
        """Record that the learner waits for no batch."""
        self._wait.end_wait()

    def on_draw(self) -> None:
        """Record that a batch was drawn."""
        self.end_wait()
        self._group_service.asked.clear()

    async def durable(self) -> None:
        """Return once the pause and the groups set aside are committed."""
        await self._group_service.durable()

    def view(self) -> TroubleView:
        """Return the troubles for the page."""
        pause = self.pause
        return TroubleView(
            paused=None if pause is None else PauseView(**msgspec.structs.asdict(pause)),
            set_aside=self._aside[-SHOWN_BATCHES:],
            reasons=dict(self._reasons),
            waiting=self._wait.words,
            episodes=self._group_service.episodes.reasons(),
        )

    def _set_aside(self, batch: Sequence[bytes], reason: str) -> None:
        reason, now, before = reason[:MOST_REASON], self._now(), self.pause
        with self._group_service.database.transaction():
            self._group_service.buffer.set_aside(batch, reason, now)
            self._pauses.set_aside(reason, now)
            self._save()
        self._count(SetAsideView(at=now, groups=len(batch), reason=reason))
        log.error("groups set aside", groups=[lease.hex() for lease in batch], reason=reason)
        self._note_beginning(before)

    def _count(self, aside: SetAsideView) -> None:
        known = aside.reason in self._reasons or len(self._reasons) < MOST_REASONS
        self._reasons[aside.reason if known else "other reasons"] += aside.groups
        self._aside = [*self._aside[-SHOWN_BATCHES + 1 :], aside]

    def _note_beginning(self, before: Pause | None = None) -> None:
        pause = self.pause
        if pause is not None and pause != before:
            log.error("the run is paused", why=pause.why, until=pause.until)
        self._follow()
        self._save()

    def _note_end(self, ended: Pause, why: str) -> None:
        log.info("the run goes on", paused_seconds=round((self._now() - ended.since) / 1000), because=why)
        self._clear()
        self._wait.end_wait()
        self._follow()
        self._save()
        self._changed()

    def _follow(self) -> None:
        self._group_service.paused = self.pause is not None

    def _save(self) -> None:
        stored, now = self._group_service.database.fact(FACT), msgspec.json.encode(self._pauses.standing)
        if stored != now and (stored is not None or self._pauses.standing != PauseState()):
            self._group_service.database.set_fact(FACT, now)

    def _now(self) -> int:
        return int(self._clock() * 1000)
