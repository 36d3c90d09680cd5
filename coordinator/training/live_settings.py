"""Change settings while the coordinator runs: coordinator.toml first, then the parts that have them.

Rules
1. Settings marked as live (settings/config_section.py, `LIVE`) count in a running coordinator. All others are written
   and count from the next start. Both are refused as a whole where one value is wrong, or the run's tasks or this
   machine's memory do not allow it.
2. The settings in force are those that a start would read: a flag and a variable override the file here too.
3. The file is durable first, then the rows of the history are (metrics/setting_changes.py), then the operator hears of
   it. A kill between them is mended by the next start.
4. Settings of the learner count from the first step after the next version, others from the next draw, lease or
   evaluation on. In a finished run those of the run and the learner wait for the next start.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from echo2.coordinator.environments.task_host import TaskFacts
from echo2.coordinator.metrics import setting_changes
from echo2.coordinator.run import setup
from echo2.coordinator.run.learner_checks import check_memory
from echo2.coordinator.run.setup import Run
from echo2.coordinator.settings import config_edits
from echo2.coordinator.settings.config import CoordinatorConfig
from echo2.coordinator.settings.config_edits import LIVE_KEYS, NEXT_START, Edit
from echo2.coordinator.submissions.group_service import GroupService
from echo2.coordinator.training.model_loops import Learning
from echo2.coordinator.training.run_services import terms_of
from echo2.runtime.errors import LocalFault

log = structlog.get_logger("coordinator")


class LiveSettings:
    """The settings of a running coordinator. `others`: parts outside the loops, each called with the settings before
    and those from now on."""

    def __init__(
        self, run: Run, tasks: Sequence[TaskFacts], group_service: GroupService, learning: Learning,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._run, self._tasks, self._group_service, self._learning = run, tasks, group_service, learning
        self._clock, self._database = clock, group_service.database
        self.others: list[Callable[[CoordinatorConfig, CoordinatorConfig], None]] = []

    def start(self) -> None:
        """Note what has changed since the last start."""
        self._note({})

    async def change(self, assigned: Sequence[str], removed: Sequence[str]) -> list[str]:
        """Change settings as words "section.key=value", and remove keys from the file; return what became of each.
        Raises `SettingsFault`, `LocalFault`."""
        edit = config_edits.prepare(self._run.folder.config, assigned, removed, flags=self._run.flags)
        said = self._carry_out(edit)
        await self._group_service.durable()
        return said

    def finish(self) -> int:
        """End the run after the step that publishes what was learned, also after a restart; return that step. Raises
        `LocalFault`, also where the run ends and a restart would go on."""
        last = self._learning.training.finish()
        ends = f"the run ends with step {last}, but a restart would go on"
        try:
            edit = config_edits.prepare(self._run.folder.config, [f"run.steps={max(1, last)}"], flags=self._run.flags)
            self._carry_out(edit)
        except LocalFault as fault:
            raise LocalFault(f"{ends}: {fault}") from fault
        steps, source = edit.in_force.run.steps, edit.overridden.get("run.steps")
        if source is not None and (steps is None or steps > last):
            raise LocalFault(f"{ends}: run.steps is {steps} there, from {source}; remove it before the next start")
        return last

    def _carry_out(self, edit: Edit) -> list[str]:
        before, after = self._run.config, self._with_live(edit.in_force)
        check_memory(edit.in_force.run)
        setup.check_all_sizes(replace(self._run, config=edit.in_force), self._tasks)
        edit.write()
        old, new = config_edits.texts(before), config_edits.texts(after)
        changed = {key: self._first_step(key) for key in new if new[key] != old[key]}
        self._run.config = after
        self._group_service.take(terms_of(self._run))
        self._learning.take(before, after)
        for take in self.others:
            take(before, after)
        self._note(changed)
        for key in changed:
            log.warning("setting changed", key=key, old=old[key], new=new[key], step=changed[key])
        return edit._replace(before=before).sentences(self._when)

    def _with_live(self, settings: CoordinatorConfig) -> CoordinatorConfig:
        after = config_edits.with_live(self._run.config, settings)
        if self._is_finished():
            after = after.model_copy(update={"run": self._run.config.run, "learner": self._run.config.learner})
        return after

    def _is_finished(self) -> bool:
        at = self._group_service.progress
        return at is not None and at.finished

    def _first_step(self, key: str) -> int | None:
        """Return the first step for which a key's change counts; None: once the learner has opened."""
        at, training = self._group_service.progress, self._learning.training
        if key.startswith("learner."):
            return training.tuned_step()
        return None if at is None else at.steps_made + (2 if training.is_stepping else 1)

    def _when(self, key: str) -> str:
        if key not in LIVE_KEYS:
            return NEXT_START
        if self._is_finished() and key.startswith(("run.", "learner.")):
            return f"{NEXT_START}: the run is finished"
        if not key.startswith(("run.", "learner.")):
            return "it counts at once"
        step = self._first_step(key)
        if step is None:
            return "it counts from the first step after the learner has opened"
        paused = " once the run goes on" if self._learning.training.watch.pause is not None else ""
        return f"it counts from step {step}{paused}"

    def _note(self, steps: dict[str, int | None]) -> None:
        settings = config_edits.texts(self._run.config)
        setting_changes.note_settings(self._database, int(self._clock() * 1000), settings, steps)
