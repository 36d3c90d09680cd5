"""Drive the learner: open it, step it with one batch of the buffer at a time, and publish its exports.

Rules
1. Whenever a learner process starts, the buffer is rebuilt from its durable draws before anything is drawn.
2. An export in its checkpoint or journal that is not published yet is published before the next step.
3. A batch lost to a crash or an error is drawn again, with the same groups: it was drawn in memory only. run_watch.py
   decides when its groups are set aside instead, and when the run is paused.
4. The learner exports after the steps at which a version is due (publish_period.py), and after the last one of the
   run. A step after which the weights are still those of the published version publishes none: it counts as a step made
   (page, log, history, last step of the run), and neither versions nor ages count it, so that groups of the published
   version, which are of these very weights, grow no older by it.
5. A version that is ordered to be published again (guarding.py) is, between two steps or during a pause: the learner is
   opened with the order, in a new era.
6. A rank of another host that cannot obey ends no coordinator, even at the first start: its host can be mended
   meanwhile. The log and the page say what it needs.
7. Other settings of the learner count from the first step after the next version (`tune`), which is made at once: so
   no entry of the learner's journal mixes settings. If the learner is opened before, they count from there.
8. The learner is idle from the end of a step (with its export) to the next batch; idle time counts from its first
   batch.
"""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from echo2.coordinator.accounts import run_logs
from echo2.coordinator.learner.age import age
from echo2.coordinator.learner.eras import FIRST_ERA, next_era
from echo2.coordinator.learner.messages import RANK_FAULT, Batch, Export, Hyper, Open, Republish, Stepped
from echo2.coordinator.leases.lease_terms import Progress
from echo2.coordinator.metrics import run_metrics
from echo2.coordinator.metrics.history import History
from echo2.coordinator.metrics.views import StepPoint, VersionRow
from echo2.coordinator.publishing.published import Published
from echo2.coordinator.publishing.publisher import Publisher
from echo2.coordinator.settings import objective_choices
from echo2.coordinator.settings.named_home import with_home
from echo2.coordinator.submissions.group_service import GroupService
from echo2.coordinator.training.guarding import Guarding
from echo2.coordinator.training.model_processes import DiedComputing, Learner
from echo2.coordinator.training.publish_period import PeriodTerms, PublishPeriod
from echo2.coordinator.training.run_watch import Watch
from echo2.coordinator.training.wait_reason import GROUP_COUNT_MS
from echo2.coordinator.verdicts.replay_buffer import DrawnGroup
from echo2.runtime.child import ChildDied, ChildError
from echo2.runtime.errors import LocalFault
from echo2.runtime.quantiles import moving_average
from echo2.tasks.turn_ends import Ends

_OF_THE_MACHINE = ("DatabaseFault", "Corrupt", "InUse", "NoDevice", "DeviceLost", "TooLittleMemory")
"""Kinds of the learner's errors that no batch causes."""

_OTHER_HOSTS: Final = (
    "Ranks on other hosts need the same program, and model/ and learner/ of this run under the same whole path"
    " (docs/several-gpus.md); the learner is started again"
)

PUBLISH_PERIOD_FACT: Final = "publish_period"
"""Fact of run.sqlite: the period that `auto` has come to."""

log = structlog.get_logger("coordinator")


@dataclass(frozen=True)
class TrainingConfig:
    """The learner's settings. `steps`: steps after which the run is finished; None: endless. `ends`: tokens that end a
    turn. `checkpoint_share`, `run`: see `Open`. `hosts`: that have ranks of the learner."""

    model: Path
    folder: Path
    database: Path
    device: str
    threads: int
    hyper: Hyper
    steps: int | None
    ends: Ends = ()
    checkpoint_share: float = 1.0
    run: str = ""
    hosts: int = 1


@dataclass
class Utilisation:
    """The learner's wall time, in seconds: at work, and waiting for groups (rule 8)."""

    busy: float = 0.0
    waiting: float = 0.0
    step_seconds: float | None = None

    @property
    def idle(self) -> float | None:
        """The idle share of the wall time; None before the first batch."""
        total = self.busy + self.waiting
        return self.waiting / total if total else None

    def on_work(self, seconds: float) -> None:
        """Add a step of `seconds`."""
        self.busy += seconds
        self.step_seconds = moving_average(self.step_seconds, seconds)

    def add_wait(self, seconds: float) -> None:
        """Add a wait of `seconds`; below 0 the clock was set back, and it is none."""
        self.waiting += max(0.0, seconds)


@dataclass
class Training:
    """The loop of the learner. `parameters`: the policy's number of parameters; 0 until the learner has been opened.
    `watch`: decides on the learner's failures. `finished`: set after the last step."""

    course: TrainingConfig
    learner: Learner
    group_service: GroupService
    publisher: Publisher
    history: History
    clock: Callable[[], float]
    work: asyncio.Event
    """Set whenever a group may have come into the buffer."""
    moved: asyncio.Event
    """Set by this loop when a version is published or the run is finished."""
    watch: Watch
    guarding: Guarding
    period: PublishPeriod
    opened: Callable[[int], None] = lambda step: None
    """Called with the number of the next step as the learner is open."""
    utilisation: Utilisation = field(default_factory=Utilisation)
    parameters: int = 0
    last_step: int | None = None
    """The step after which the run is finished; None: endless."""
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    covered: deque[list[bytes]] = field(default_factory=deque)
    """Groups drawn by the last steps that a full checkpoint covers; older groups are too stale to be drawn."""
    covered_step: int = 0
    """The step of that checkpoint: the journal behind it needs its groups' tokens."""
    """Called once leases may be requested for a version, and when the run is finished."""
    _uncovered: list[bytes] = field(default_factory=list)
    _drawing_since: float | None = None
    _era: int = FIRST_ERA
    _computed: list[bytes] | None = None
    """The groups of the batch that the learner computes; None between two batches."""
    _exports: bool = True
    """Whether that batch ends with an export."""
    is_stepping: bool = False
    """Whether a step is under way, from its draw until its version is published."""
    _has_settings: bool = False
    """Whether that step's settings are chosen, and whether it exports."""
    _tuned: Hyper | None = None
    """Settings that the learner is to take (rule 7)."""
    _undurable: list[list[bytes]] = field(default_factory=list)
    """Batches drawn since the last durable checkpoint or entry of the learner's journal."""
    _again: deque[list[bytes]] = field(default_factory=deque)
    """Batches to be drawn again (rule 3)."""

    def __post_init__(self) -> None:
        self.covered = deque(maxlen=self.group_service.terms.staleness + 2)
        self.last_step, self.hyper = self.course.steps, self.course.hyper

    async def run(self) -> None:
        """Train until the last step or cancelled. A learner that dies or fails is opened again (rule 1)."""
        while not self.finished.is_set():
            try:
                await self._open()
                await self._learn()
            except (ChildDied, ChildError) as fault:
                self._drawing_since = None
                await self._on_failure(fault)
        log.info(
            "training finished",
            steps=self._at().steps_made,
            take_it=with_home("echo2-coord policy export FOLDER --version best", self.course.database.parent),
        )

    def finish(self) -> int:
        """End the run after the step that publishes what was learned; return that step. It is the present one where
        nothing is unpublished and no step has begun. Raises `LocalFault`."""
        earliest = self._earliest_end()
        self.last_step = earliest if self.last_step is None else min(self.last_step, earliest)
        self.work.set()
        return self.last_step

    def end_after(self, steps: int | None) -> None:
        """End the run after `steps` steps, or as soon as `finish` would; None: endless."""
        earliest = 0 if self.group_service.progress is None else self._earliest_end()
        self.last_step = None if steps is None else max(steps, earliest)
        self.work.set()

    def _earliest_end(self) -> int:
        at, latest = self.group_service.progress, self.publisher.latest
        if at is None or latest is None:
            raise LocalFault("the learner has not started yet: try again in a minute")
        published = at.step == latest.version and not self.is_stepping
        return at.steps_made + (0 if published else 2 if self._has_settings else 1)

    def tune(self, hyper: Hyper) -> None:
        """Let the learner have these settings from `tuned_step` on (rule 7)."""
        self._tuned = hyper

    def tuned_step(self) -> int | None:
        """Return the first step for which other settings of the learner count; None: once it has opened."""
        at = self.group_service.progress
        if at is None or self.guarding.ordered:
            return None
        if self._has_settings:
            return at.steps_made + (2 if self._exports else 3)
        return at.steps_made + (2 if self._undurable else 1)

    async def _on_failure(self, fault: ChildDied | ChildError) -> None:
        batch, self._computed = self._computed, None
        match fault:
            case DiedComputing() if batch is not None:
                self.watch.on_death(batch, str(fault))
            case ChildError() if batch is not None and fault.kind not in _OF_THE_MACHINE:
                self.watch.on_failure(batch, str(fault))
            case ChildError() if self.course.hosts > 1 and fault.kind == RANK_FAULT:
                self.watch.cannot_work(f"{fault}. {_OTHER_HOSTS}")
            case ChildError() if self.parameters:
                self.watch.cannot_work(str(fault))
            case ChildError():
                raise fault  # the learner was never opened since the start: the daemon ends, and the operator sees why
        if isinstance(fault, ChildError):
            await self.learner.renew()
        if batch is None:
            await self._pause()

    async def _open(self) -> None:
        self.group_service.leases.window.stop()  # the learner begins no step meanwhile: a draw behind it shows nothing
        self._take_tuned()
        order = await self.guarding.republish()
        try:
            await self._open_with(order)
        except ChildError as fault:
            if order is not None and fault.kind not in _OF_THE_MACHINE:
                self.guarding.drop_order(str(fault))
            raise

    async def _open_with(self, order: Republish | None) -> None:
        latest, last = self.publisher.latest, self.group_service.leases.last_era()
        later = next_era(last, self.clock())  # run.sqlite may have an era that the store has lost
        least = run_logs.least_era(self.group_service.database)
        opened = await self.learner.open(
            Open(
                model=str(self.course.model),
                folder=str(self.course.folder),
                database=str(self.course.database),
                device=self.course.device,
                hyper=self.hyper,
                published=str(self._published_file(latest)) if latest else "",
                published_version=latest.version if latest else 0,
                published_root=latest.root if latest else bytes(32),
                era=latest.era if latest else later if last or least else FIRST_ERA,
                next_era=later,
                least_era=least,
                staleness=self.group_service.terms.staleness,
                threads=self.course.threads,
                ends=self.course.ends,
                limit=self.group_service.terms.limit,
                republish=order,
                checkpoint_share=self.course.checkpoint_share,
                run=self.course.run,
            )
        )
        self.parameters, self._era = opened.parameters, opened.era
        if opened.undone:
            log.warning("a new era begins", era=opened.era, step=opened.step, reason=opened.undone)
        if opened.export:
            await self._publish(opened.export, opened.step + opened.unchanged)
        published = self.publisher.latest
        if published is None:
            raise RuntimeError("the learner opened without a version, and none is published")
        self.group_service.leases.publish(published.era, published.version, published.root, int(self.clock() * 1000))
        self._stand(opened.step, published, rebuild=opened.drawn, unchanged=opened.unchanged)
        self.covered.append(opened.drawn)
        self._uncovered, self.covered_step = [], opened.step
        covered = set(opened.drawn)
        self._again = deque(batch for batch in [*self._undurable, *self._again] if covered.isdisjoint(batch))
        self._undurable = []
        self.watch.on_opening(published.era, self._at().steps_made)
        self.opened(self._at().steps_made + 1)
        self.guarding.complete_order(published, opened.rate)
        log.info(
            "the learner is open",
            step=opened.step,
            version=published.version,
            drawn=len(opened.drawn),
            objective=objective_choices.describe_loss(self.hyper),
            learning_rate=float(f"{opened.learning_rate:.6g}"),
        )

    async def _learn(self) -> None:
        """Make steps until the last one, or until a version is to be published again (rule 5)."""
        while not self._is_finished():
            try:
                batch = await self._next_batch()
                if batch is not None:
                    await self._step(batch)
            finally:
                self.is_stepping = self._has_settings = False
            if batch is None and not self._is_finished():
                return
        self.watch.end_wait()
        self._stand(self._at().step, self._latest(), finished=True, unchanged=self._at().unchanged)
        # No more leases are issued; nodes learn it from the Head, submit their groups, and stop.
        self.publisher.finished = True
        await self.publisher.announce()
        self.finished.set()

    async def _next_batch(self) -> list[DrawnGroup] | None:
        """Return the next batch once there is one; None: a version is to be published again."""
        while True:
            self.work.clear()
            await self._pause()
            if self.guarding.ordered or self._is_finished():
                return None
            batch = self._draw_batch()
            if batch is not None:
                self.is_stepping = True
                await self.group_service.durable()
                self.watch.on_draw()
                return batch
            self.watch.waits()
            self.guarding.on_wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GROUP_COUNT_MS / 1000):
                    await self.work.wait()

    def _draw_batch(self) -> list[DrawnGroup] | None:
        """Draw the next batch; None while there is none. Lost batches come first if they may be drawn (rule 3)."""
        now = int(self.clock() * 1000)
        while self._again:
            batch = self.group_service.draw(now, self._again.popleft())
            if batch is not None:
                return batch
        return self.group_service.draw(now)

    async def _pause(self) -> None:
        """Wait while the run is paused, and no version is to be published again."""
        while self.watch.pause is not None and not self.guarding.ordered and not self._is_finished():
            self.group_service.leases.window.stop()
            self.work.clear()
            await self.work.wait()

    async def _step(self, groups: list[DrawnGroup]) -> None:
        at, began = self._at(), self.clock()
        if self._drawing_since is not None:
            self.utilisation.add_wait(began - self._drawing_since)
        log.info("step begun", step=at.steps_made + 1, groups=len(groups))
        if not self._undurable:
            self._take_tuned()
        self._has_settings = True
        self._computed = leases = [group.id for group in groups]
        self._undurable.append(leases)
        published, step = self._latest().version, at.step + 1
        last = self.last_step is not None and at.steps_made + 1 >= self.last_step
        self._exports = last or self._tuned is not None or self.period.is_due(step, published)
        batch = Batch(step=step, groups=leases, published=published, export=self._exports, hyper=self.hyper)
        stepped = await self.learner.step(batch)
        self._computed = None
        await self._take_step(stepped, groups, at)
        self._drawing_since = self.clock()
        if self.group_service.leases.end_step(int(self._drawing_since * 1000)):
            self.utilisation.on_work(self._drawing_since - began)

    def _take_tuned(self) -> None:
        self.hyper, self._tuned = self._tuned or self.hyper, None

    async def _take_step(self, stepped: Stepped, groups: list[DrawnGroup], before: Progress) -> None:
        """Take the answer to a batch: record the step, publish its export. `before`: the progress before it."""
        steps_made, unchanged = stepped.step + stepped.unchanged, stepped.unchanged > before.unchanged
        self.watch.on_step(steps_made)
        exporting = stepped.export.seconds if stepped.export else 0.0
        log.info("step made", step=steps_made, seconds=stepped.seconds, export_seconds=exporting)
        self._record(stepped, groups, before)
        self.guarding.on_step(self._era, steps_made, stepped.metrics)
        self._uncovered += [group.id for group in groups]
        if (stepped.export or unchanged) and stepped.checkpointed:
            self.covered.append(self._uncovered)
            self._uncovered, self.covered_step = [], stepped.step
        if stepped.export or unchanged:
            self._undurable = []
        if stepped.export:
            await self._publish(stepped.export, steps_made)
        elif unchanged:
            log.info(
                "no version", step=steps_made, reason=f"no published weight changed since version {before.version}"
            )
        self._stand(stepped.step, self._latest(), unchanged=stepped.unchanged)

    def _record(self, stepped: Stepped, groups: list[DrawnGroup], before: Progress) -> None:
        self.history.add(
            StepPoint(
                step=stepped.step + stepped.unchanged,
                at=int(self.clock() * 1000),
                reward=stepped.metrics["reward"],
                success=stepped.metrics["success"],
                staleness=sum(age(before.step, group.version) for group in groups) / len(groups),
                seconds=stepped.seconds,
                cut_answers=stepped.metrics.get("cut_answers"),
                metrics={name: value for name, value in stepped.metrics.items() if math.isfinite(value)},
            )
        )

    async def _publish(self, export: Export, step: int) -> None:
        # A node may request a lease of this version as soon as its Head is published: leases must accept it before.
        now = int(self.clock() * 1000)
        self.group_service.leases.publish(self._era, export.version, export.root, now)
        await self.group_service.durable()
        await self.publisher.publish(self._era, step, export)
        self.history.add(_row(self._era, export, now))
        self._settle_period()

    def _settle_period(self) -> None:
        if self.period.automatic and self.period.on_publication(self._period_terms()):
            log.info("the publish period changed", steps=self.period.current)
            self.group_service.database.set_fact(PUBLISH_PERIOD_FACT, self.period.current)

    def _period_terms(self) -> PeriodTerms | None:
        database, broadcasts = self.group_service.database, self.group_service.broadcasts
        step, broadcast = self.utilisation.step_seconds, broadcasts.duration()
        back = run_metrics.quick_turnaround(database)
        if step is None or broadcast is None or back is None:
            return None
        return PeriodTerms(step, broadcast, (broadcasts.reach() or 0.0) + back / 1000)

    def _stand(
        self,
        step: int,
        published: Published,
        *,
        unchanged: int,
        rebuild: Iterable[bytes] | None = None,
        finished: bool = False,
    ) -> None:
        progress = Progress(
            era=published.era,
            step=step,
            unchanged=unchanged,
            version=published.version,
            root=published.root,
            finished=finished,
        )
        if rebuild is not None:
            self.group_service.rebuild(rebuild, progress)
        self.group_service.progress = progress
        self.group_service.recall(int(self.clock() * 1000))
        self.moved.set()

    def _published_file(self, latest: Published) -> Path:
        path = self.publisher.stored.snapshots().get(latest.root)
        if path is None:
            raise RuntimeError(f"the snapshot of published version {latest.version} is gone from the store")
        return path

    def _is_finished(self) -> bool:
        return self.last_step is not None and self._at().steps_made >= self.last_step

    def _at(self) -> Progress:
        assert self.group_service.progress is not None
        return self.group_service.progress

    def _latest(self) -> Published:
        assert self.publisher.latest is not None
        return self.publisher.latest


def _row(era: int, export: Export, now: int) -> VersionRow:
    diffs = [Path(edge.payload).stat().st_size for edge in export.edges if edge.base is not None]
    return VersionRow(
        era=era,
        version=export.version,
        at=now,
        diff_bytes=min(diffs) if diffs else None,
        full_bytes=Path(export.snapshot).stat().st_size,
        first_node_seconds=None,
    )
