"""The training loop draws each batch once, repeats a lost one, and publishes every export before the next step."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from echo2.coordinator.learner.messages import RANK_FAULT, Batch, Export, Hyper, Open, Opened, Republish, Stepped
from echo2.coordinator.metrics.history import History
from echo2.coordinator.publishing.published import Published
from echo2.coordinator.settings.config import GuardSection
from echo2.coordinator.training import wait_reason
from echo2.coordinator.training.guard_rules import STEP_RULES
from echo2.coordinator.training.guarding import Guarding
from echo2.coordinator.training.model_processes import DiedComputing
from echo2.coordinator.training.publish_period import PublishPeriod
from echo2.coordinator.training.run_watch import Watch
from echo2.coordinator.training.training_loop import Training, TrainingConfig, Utilisation
from echo2.protocol.broadcast_messages import Acknowledgement
from echo2.runtime.child import ChildError
from echo2.runtime.errors import LocalFault
from tests.support.fake_coordinator import until
from tests.support.group_world import SPEC, World, group, root_of

STEPS = 2


class StandIns:
    """A learner and a publisher. `errors`: raised one after the other by the next steps. `metrics`: of each step.
    `orders`: to publish a version again; refused where its `why` says so."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.errors: list[Exception] = []
        self.metrics: dict[str, float] = {}
        self.orders: list[Republish] = []
        self.asked: list[Batch] = []
        self.opened = 0
        self.at = 0
        self.versions: list[Published] = []
        self.finished = False

    @property
    def latest(self) -> Published | None:
        return self.versions[-1] if self.versions else None

    def export(self, version: int, era: int = 1) -> Export:
        path = self.folder / f"v{version}"
        path.write_bytes(b"weights")
        return Export(version=version, root=root_of(era, version), snapshot=str(path), edges=[], seconds=0.0)

    async def open(self, order: Open) -> Opened:
        self.opened += 1
        if order.republish is not None and order.republish.id not in [one.id for one in self.orders]:
            self.orders.append(order.republish)
            if len(self.orders) == 1:
                raise ChildError("BadSnapshot", "torn")
            self.at = self.versions[-1].version + 1
            return Opened(step=self.at, drawn=[], parameters=7, export=self.export(self.at, 2), era=2, rate=0.5)
        pending = None if self.versions else self.export(0)
        return Opened(step=self.at, drawn=[], parameters=7, export=pending, era=1)

    async def step(self, batch: Batch) -> Stepped:
        self.asked.append(batch)
        if self.errors:
            raise self.errors.pop(0)
        self.at = batch.step
        metrics = {"reward": 0.5, "success": 0.25, **self.metrics}
        export = self.export(batch.step) if batch.export else None
        return Stepped(step=batch.step, metrics=metrics, seconds=1.0, export=export)

    async def renew(self) -> None:
        """Keep the stand-in."""

    async def publish(self, era: int, step: int, export: Export) -> None:
        self.versions.append(Published(era, export.version, export.root, bytes(32), bytes(32)))

    async def announce(self) -> None:
        """Tell no peer."""

    async def whole(self, era: int, version: int, root: bytes) -> Path | None:
        return self.snapshots().get(root)

    @property
    def stored(self) -> "StandIns":
        return self

    def roots(self) -> set[bytes]:
        return set(self.snapshots())

    def snapshots(self) -> dict[bytes, Path]:
        return {one.root: self.folder / f"v{one.version}" for one in self.versions}


@pytest.fixture
def parts(tmp_path: Path) -> StandIns:
    return StandIns(tmp_path)


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    opened = History(tmp_path / "history.jsonl")
    yield opened
    opened.close()


def training_of(
    world: World, parts: Any, history: History, period: int | None = 1, steps: int | None = STEPS, **guard: Any
) -> Training:
    folder: Path = parts.folder
    work, service = asyncio.Event(), world.group_service
    watch = Watch(service, lambda: world.now / 1000, work.set, lambda ended: guarding.begin_anew(ended))
    guarding = Guarding(service, watch, parts, GuardSection(**guard), {}, lambda: world.now / 1000, work.set)
    course = TrainingConfig(folder, folder, folder / "run.sqlite", "cpu", 1, Hyper(), steps)
    return Training(
        course=course, learner=parts, group_service=service, publisher=parts, history=history,
        clock=lambda: world.now / 1000, work=work, moved=asyncio.Event(),
        watch=watch, guarding=guarding,
        period=PublishPeriod(period, service.terms.staleness),
    )  # fmt: skip


async def finished(training: Training) -> None:
    async with asyncio.timeout(60):
        await training.run()


async def test_the_loop_makes_its_steps_publishes_them_and_ends(
    world: World, parts: StandIns, history: History
) -> None:
    for _ in range(2 * STEPS):
        world.accepted()
    training = training_of(world, parts, history)
    await finished(training)
    assert [batch.step for batch in parts.asked] == [1, 2]
    assert all(batch.export for batch in parts.asked)
    assert len({lease for batch in parts.asked for lease in batch.groups}) == 2 * STEPS, "no group is drawn twice"
    assert [one.version for one in parts.versions] == [0, 1, 2]
    assert parts.finished
    assert list(training.history.steps) == [1, 2]
    assert training.parameters == 7


async def test_the_learner_exports_after_each_kappa_th_step_and_after_the_last(
    world: World, parts: StandIns, history: History
) -> None:
    for _ in range(2 * STEPS):
        world.accepted()
    training = training_of(world, parts, history, period=3)
    await finished(training)
    assert [batch.export for batch in parts.asked] == [False, True]
    assert [one.version for one in parts.versions] == [0, STEPS]


async def test_a_run_that_waits_for_groups_is_finished_at_once(
    world: World, parts: StandIns, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_reason, "SILENT_MS", 0)
    for _ in range(2):
        world.accepted()
    training = training_of(world, parts, history, steps=None)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(training.run())
        await until(lambda: training.history.steps, 10)
        await until(lambda: training.watch.view().waiting, 10)
        assert training.finish() == 1
        assert training.finish() == 1, "a second order changes nothing"
    assert training.watch.view().waiting == ""
    assert [one.version for one in parts.versions] == [0, 1]
    assert parts.finished


async def test_a_paused_run_is_finished_too(world: World, parts: StandIns, history: History) -> None:
    training = training_of(world, parts, history, steps=None)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(training.run())
        await until(lambda: parts.versions, 10)
        training.watch.stop("moving house")
        await asyncio.sleep(0)
        assert training.finish() == 0
    assert parts.finished


async def test_what_was_learned_is_published_before_the_run_ends(
    world: World, parts: StandIns, history: History
) -> None:
    for _ in range(2):
        world.accepted()
    training = training_of(world, parts, history, period=3, steps=None)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(training.run())
        await until(lambda: training.history.steps, 10)
        assert training.finish() == 2, "step 1 is in no version yet"
        for _ in range(2):
            world.accepted()
        training.work.set()
    assert [batch.export for batch in parts.asked] == [False, True]
    assert [one.version for one in parts.versions] == [0, 2]


async def test_a_run_that_is_finished_between_a_draw_and_its_step_ends_with_that_step(
    world: World, parts: StandIns, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(6):
        world.accepted()
    training, said, service = training_of(world, parts, history, steps=None), list[int](), world.group_service
    draw, drawn = service.draw, list[object]()

    async def durable() -> None:
        if drawn and not said:
            said.append(training.finish())
            assert training.tuned_step() == 1, "its settings are not chosen yet"

    monkeypatch.setattr(service, "draw", lambda *given: drawn.append(given) or draw(*given))  # type: ignore[func-returns-value]
    monkeypatch.setattr(service, "durable", durable)
    await finished(training)
    assert said == [1]
    assert [batch.step for batch in parts.asked] == [1]


class TunedLearner(StandIns):
    """A learner that is to have other settings while it makes its first step."""

    training: Training
    first: int | None = None

    async def step(self, batch: Batch) -> Stepped:
        if batch.step == 1:
            self.first = self.training.tuned_step()
            self.training.tune(Hyper(learning_rate=1.0))
        return await super().step(batch)


@pytest.mark.parametrize(("period", "first"), [(1, 2), (3, 3)])
async def test_other_settings_of_the_learner_count_from_the_step_after_the_next_version(
    period: int, first: int, world: World, history: History, tmp_path: Path
) -> None:
    for _ in range(6):
        world.accepted()
    learner = TunedLearner(tmp_path)
    learner.training = training_of(world, learner, history, period=period, steps=3)
    await finished(learner.training)
    rates = [batch.hyper.learning_rate for batch in learner.asked if batch.hyper]
    assert learner.first == first
    assert rates == [Hyper().learning_rate] * (first - 1) + [1.0] * (4 - first)
    assert learner.asked[first - 2].export, "the entry of the journal ends before the change"


async def test_a_learner_that_is_opened_again_has_the_other_settings_at_once(
    world: World, parts: StandIns, history: History
) -> None:
    for _ in range(2):
        world.accepted()
    next_steps: list[int] = []
    training = training_of(world, parts, history, period=3, steps=2)
    training.opened = next_steps.append
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(training.run())
        await until(lambda: training.history.steps, 10)
        training.tune(Hyper(learning_rate=1.0))
        parts.errors.append(ChildError("InUse", "no more"))
        for _ in range(4):
            world.accepted()
        training.work.set()
        await until(lambda: len(next_steps) == 2, 10)
        assert training.hyper.learning_rate == 1.0
        training.watch.resume()
    assert next_steps == [1, 2]


@pytest.mark.parametrize("kind", ["DeviceLost", "TooLittleMemory"])
async def test_a_fault_of_the_card_sets_no_group_aside(
    world: World, parts: StandIns, history: History, kind: str
) -> None:
    for _ in range(2):
        world.accepted()
    parts.errors += [ChildError(kind, "the device failed: CUDA error")] * 2
    training = training_of(world, parts, history)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(training.run())
        await until(lambda: training.watch.pause, 10)
        assert "the device failed: CUDA error" in training.watch.pause.why
        training.watch.resume()
        await until(lambda: training.history.steps, 10)
        running.cancel()
    assert [one.groups for one in parts.asked[:3]] == [parts.asked[0].groups] * 3, "the batch is not set aside"


async def test_a_run_that_is_to_end_before_the_present_step_ends_with_what_was_learned(
    world: World, parts: StandIns, history: History
) -> None:
    for _ in range(4):
        world.accepted()
    training = training_of(world, parts, history, period=3, steps=None)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(training.run())
        await until(lambda: len(training.history.steps) == 2, 10)
        training.end_after(None)
        training.end_after(1)
        for _ in range(2):
            world.accepted()
        training.work.set()
    assert [batch.export for batch in parts.asked] == [False, False, True]


async def test_a_run_is_not_finished_before_its_learner_has_started(
    world: World, parts: StandIns, history: History
) -> None:
    with pytest.raises(LocalFault, match="has not started yet"):
        training_of(world, parts, history).finish()


class SilentSteps(StandIns):
    """A learner whose steps change no published weight. Meanwhile nodes make the groups of the next one."""

    def __init__(self, folder: Path, world: World) -> None:
        super().__init__(folder)
        self.world, self.unchanged = world, 0

    async def step(self, batch: Batch) -> Stepped:
        self.asked.append(batch)
        self.unchanged += 1
        for _ in batch.groups:
            self.world.accepted()
        metrics = {"reward": 0.5, "success": 0.25, "unchanged": 1.0}
        return Stepped(step=batch.step - 1, metrics=metrics, seconds=1.0, unchanged=self.unchanged)


async def test_steps_without_a_change_publish_nothing_and_groups_grow_no_older_by_them(
    world: World, tmp_path: Path, history: History
) -> None:
    """More steps than S are made of groups of version 0, whose weights all of them left as they were."""
    steps = 2 * (world.group_service.terms.staleness + 2)
    world.accepted()
    world.accepted()
    parts = SilentSteps(tmp_path, world)
    training = training_of(world, parts, history, steps=steps)
    with capture_logs() as logs:
        await finished(training)
    assert [one.version for one in parts.versions] == [0]
    assert [batch.step for batch in parts.asked] == [1] * steps, "each may make version 1"
    assert len({lease for batch in parts.asked for lease in batch.groups}) == 2 * steps
    assert list(training.history.steps) == [*range(1, steps + 1)], "the page counts every step"
    assert {one.staleness for one in training.history.steps.values()} == {0.0}
    at = world.group_service.progress
    assert (at.step, at.steps_made, at.finished) == (0, steps, True)
    assert sum(line["event"] == "no version" for line in logs) == steps


class SlowUplink(StandIns):
    """A step takes 10 s, and a version 15 s to the one node, which begins groups of it at once."""

    def __init__(self, folder: Path, world: World) -> None:
        super().__init__(folder)
        self.world = world

    async def step(self, batch: Batch) -> Stepped:
        self.world.now += 10_000
        return await super().step(batch)

    async def publish(self, era: int, step: int, export: Export) -> None:
        await super().publish(era, step, export)
        world, broadcasts = self.world, self.world.group_service.broadcasts
        broadcasts.on_announcement(era, export.version, world.now)
        message = Acknowledgement(era=era, version=export.version, heard=0, complete=0, applied=0, taken=[])
        broadcasts.on_acknowledgement("node", message, world.now + 15_000, here_since=0, admitted=True)
        world.group_service.progress = world.at(step, export.version)
        world.group_service.leases.window.last.windows.clear()  # here two batches are there with each version
        while world.group_service.count_buffered() < 4:
            world.accepted(version=export.version)


async def test_with_auto_a_version_goes_out_as_often_as_the_uplink_carries_one(
    tmp_path: Path, history: History
) -> None:
    (tmp_path / "patient").mkdir()
    world = World(tmp_path / "patient", spec=msgspec.structs.replace(SPEC, staleness=6))
    parts = SlowUplink(tmp_path, world)
    training = training_of(world, parts, history, period=None, steps=9)
    await finished(training)
    assert [one.version for one in parts.versions] == [0, 1, 2, 3, 4, 6, 8, 9]
    assert training.period.current == 2
    assert world.group_service.database.fact("publish_period") == 2, "a restart goes on with it"


class JumpingClock(StandIns):
    """During the second step the wall clock jumps by `jump` ms, which is noticed; each step takes 10 s."""

    def __init__(self, folder: Path, world: World, jump: int) -> None:
        super().__init__(folder)
        self.world, self.jump = world, jump

    async def step(self, batch: Batch) -> Stepped:
        self.world.now += 10_000
        if batch.step == 2 and self.jump:
            self.world.now += self.jump
            self.world.group_service.leases.resume(self.world.now)
        return await super().step(batch)


@pytest.mark.parametrize("jump", [-86_400_000, 86_400_000], ids=["a day back", "a day ahead"])
async def test_a_clock_that_jumps_in_mid_step_is_no_measurement_and_the_run_goes_on(
    world: World, tmp_path: Path, history: History, jump: int
) -> None:
    for _ in range(6):
        world.accepted()
    training = training_of(world, JumpingClock(tmp_path, world, jump), history, steps=3)
    await finished(training)
    assert training.utilisation.step_seconds == 10.0
    assert training.utilisation.idle == 0.0
    assert training.utilisation.busy == 20.0
    last = world.group_service.leases.window.last
    assert last.steps == [10_000, 10_000]
    assert all(abs(window) <= 2 * (world.group_service.terms.staleness + 1) for window in last.windows)


@pytest.mark.parametrize("error", [DiedComputing("learner", -9, "killed"), ChildError("ValueError", "absurd")])
async def test_a_lost_batch_is_drawn_again_with_the_same_groups(
    error: Exception, world: World, parts: StandIns, history: History
) -> None:
    for _ in range(2 * STEPS):
        world.accepted()
    parts.errors = [error]
    training = training_of(world, parts, history)
    await finished(training)
    assert [batch.step for batch in parts.asked] == [1, 1, 2]
    assert parts.asked[0].groups == parts.asked[1].groups
    assert parts.opened == 2


async def test_updates_that_are_skipped_in_a_row_pause_the_run_before_the_next_step(
    world: World, parts: StandIns, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STEP_RULES, "gradient", STEP_RULES["gradient"]._replace(pause=2))  # type: ignore[arg-type]
    for _ in range(6):
        world.accepted()
    parts.metrics = {"updates": 1.0, "skipped_updates": 1.0, "grad_norm": float("inf")}
    training = training_of(world, parts, history, steps=3)
    task = asyncio.create_task(training.run())
    await until(lambda: training.watch.pause is not None)
    pause = training.watch.pause
    assert (pause.kind, [batch.step for batch in parts.asked]) == ("gradient", [1, 2])
    assert "no better version is kept" in pause.remedy
    parts.metrics = {}
    assert training.watch.resume()
    async with asyncio.timeout(60):
        await task
    assert [batch.step for batch in parts.asked] == [1, 2, 3]


async def test_an_order_that_the_learner_refuses_is_dropped_and_the_next_is_carried_out(
    world: World, parts: StandIns, history: History
) -> None:
    world.accepted()
    training = training_of(world, parts, history)
    task = asyncio.create_task(training.run())
    await until(lambda: parts.versions)
    training.guarding.order(0)
    await until(lambda: parts.orders and not training.guarding.ordered)
    assert training.guarding.view().rollbacks == []
    world.now += 1
    training.guarding.order(0, 0.5)
    await until(lambda: training.guarding.view().rollbacks)
    (row,) = training.guarding.view().rollbacks
    assert (row.version, row.new_version, row.new_era, row.rate) == (0, 1, 2, 0.5)
    at = world.group_service.progress
    assert (at.era, at.version) == (2, 1)
    task.cancel()


async def test_a_draw_after_a_version_was_published_again_shows_nothing_of_the_window(
    world: World, tmp_path: Path, history: History
) -> None:
    for _ in range(4):
        world.accepted()
    parts = JumpingClock(tmp_path, world, 0)
    parts.orders.append(Republish(id=-1, version=0, root=bytes(32), snapshot=""))
    training, last = training_of(world, parts, history, steps=9), world.group_service.leases.window.last
    task = asyncio.create_task(training.run())
    await until(lambda: len(last.steps) == 2)
    shown = list(last.windows)
    training.guarding.order(0)
    await until(lambda: training.guarding.view().rollbacks)
    world.now += 600_000
    at = world.group_service.progress
    assert at is not None
    for _ in range(2):
        world.submit(group(world.lease(version=at.version, era=2)))
    world.decide_all()
    training.work.set()
    await until(lambda: len(last.steps) == 3)
    assert last.windows == shown, "the learner could not draw while it was opened"
    task.cancel()


async def test_a_learner_that_never_opened_ends_the_run_with_its_error(
    world: World, parts: StandIns, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def open_badly(order: Open) -> Opened:
        raise ChildError("BadModelFolder", "no config.json")

    monkeypatch.setattr(parts, "open", open_badly)
    with pytest.raises(ChildError, match=r"no config\.json"):
        await finished(training_of(world, parts, history))


async def test_a_rank_of_another_host_that_cannot_obey_ends_no_run_and_is_told(
    world: World, parts: StandIns, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first start too: with all ranks on this host the run would end with the error."""
    opened, faults = parts.open, [ChildError(RANK_FAULT, "rank 8: BadModelFolder: /srv/run/model has no config.json")]

    async def open_later(order: Open) -> Opened:
        if faults:
            raise faults.pop()
        return await opened(order)

    monkeypatch.setattr(parts, "open", open_later)
    for _ in range(2 * STEPS):
        world.accepted()
    training = training_of(world, parts, history)
    training.course = replace(training.course, hosts=2)
    with capture_logs() as logs:
        await finished(training)
    (said,) = [one["reason"] for one in logs if one["event"] == "the learner cannot work"]
    assert "rank 8: BadModelFolder: /srv/run/model has no config.json. Ranks on other hosts need" in said
    assert [batch.step for batch in parts.asked] == [1, 2]


def test_idle_time_is_the_share_of_waiting() -> None:
    utilisation = Utilisation()
    assert utilisation.idle is None
    utilisation.on_work(3.0)
    utilisation.waiting += 1.0
    assert utilisation.idle == 0.25
