"""A guarded run: alarms pause it, tell what to type, survive restarts, and order the best version again."""

import asyncio
from pathlib import Path

import pytest
import structlog

from echo2.coordinator.learner.messages import Republish
from echo2.coordinator.metrics.setting_changes import note_settings
from echo2.coordinator.metrics.views import Evaluation, TaskEvaluation
from echo2.coordinator.publishing.published import Published
from echo2.coordinator.settings.config import GuardSection
from echo2.coordinator.training.guarding import Guarding
from echo2.coordinator.training.run_guard import KINDS
from echo2.coordinator.training.run_watch import Watch
from echo2.runtime.errors import LocalFault
from tests.support.group_world import BOB, World, group, root_of


class Versions:
    """A publisher with versions 0, 5, 10 ... of era 1; those in `kept` can be read from the store."""

    def __init__(self) -> None:
        self.kept = {0, 5, 10, 15, 20, 25, 30}
        self.versions = [Published(1, number, root_of(1, number), bytes(32), bytes(32)) for number in range(0, 35, 5)]

    @property
    def latest(self) -> Published:
        return self.versions[-1]

    @property
    def stored(self) -> "Versions":
        return self

    def roots(self) -> set[bytes]:
        return {one.root for one in self.versions if one.version in self.kept}

    async def whole(self, era: int, version: int, root: bytes) -> Path | None:
        return Path(f"v{version}") if root in self.roots() else None


class Guarded:
    """A watch and a guard over a world. `woken`: set when the training loop is."""

    def __init__(self, world: World, **settings: object) -> None:
        self.world, self.versions, self.woken = world, Versions(), asyncio.Event()
        self.open(GuardSection(**settings))  # type: ignore[arg-type]

    def open(self, section: GuardSection) -> None:
        clock = lambda: self.world.now / 1000  # noqa: E731
        service = self.world.group_service
        self.watch = Watch(service, clock, self.woken.set, lambda ended: self.guarding.begin_anew(ended))
        self.guarding = Guarding(
            service,
            self.watch,
            self.versions,
            section,
            {},
            clock,
            self.woken.set,
        )

    def evaluate(self, *values: float, since: int = 0, era: int = 1) -> None:
        """Evaluate every fifth version."""
        for number, value in enumerate(values):
            version = since + 5 * number
            task = TaskEvaluation(task="reverse", prompts=64, sampled=value, greedy=value)
            told = Evaluation(version=version, at=0, prompts=64, sampled=value, greedy=value, tasks=[task])
            self.guarding.on_evaluation(told, Published(era, version, root_of(1, version), bytes(32), bytes(32)))

    def republish(self) -> Republish | None:
        return asyncio.run(self.guarding.republish())

    def obey(self, version: int, era: int) -> None:
        """Carry out the order, as the training loop does."""
        order = self.republish()
        root, rate = order.root, self.guarding.view().rate * order.factor
        self.versions.versions.append(Published(era, version, root, bytes(32), bytes(32)))
        self.guarding.complete_order(self.versions.latest, rate)


@pytest.fixture
def guarded(world: World) -> Guarded:
    return Guarded(world)


BROKEN_STEP = {"groups": 8.0, "updates": 1.0, "skipped_updates": 1.0}
COLLAPSE = (0.1, 0.5, 0.9, 0.2, 0.1, 0.0)


def test_a_collapse_pauses_the_run_and_says_what_to_type(guarded: Guarded) -> None:
    guarded.evaluate(*COLLAPSE)
    paused = guarded.watch.view().paused
    assert (paused.kind, paused.until) == ("held-out", None)
    assert "reverse solves 0.000 at version 25, after 0.900 at version 10" in paused.why
    assert "`echo2-coord policy rollback` publishes version 10 again" in paused.remedy
    assert "`echo2-coord resume`" in paused.remedy
    view = guarded.guarding.view()
    assert (view.best_version, view.left) == (10, {"reverse": 0.0})


def test_a_setting_that_changed_shortly_before_is_the_first_suspect(guarded: Guarded, world: World) -> None:
    """A rate raised 833-fold ended in advice about answers that are cut."""
    database = world.group_service.database
    note_settings(database, 1, {"learner.learning_rate": "0.0006"}, {})
    note_settings(database, 2, {"learner.learning_rate": "0.5"}, {"learner.learning_rate": 1})
    guarded.evaluate(*COLLAPSE)
    paused = guarded.watch.view().paused
    assert "learner.learning_rate = 0.5, it was 0.0006, from step 1; set it back" in paused.remedy


def test_pause_and_guard_survive_a_restart(guarded: Guarded, world: World) -> None:
    guarded.evaluate(*COLLAPSE[:-1])
    world.reopen()
    guarded.open(GuardSection())
    assert guarded.watch.pause is None
    guarded.evaluate(0.0, since=25)
    world.reopen()
    guarded.open(GuardSection())
    assert guarded.watch.pause is not None
    assert guarded.guarding.view().best_version == 10


def test_a_resume_after_a_collapse_goes_on_with_the_policy_as_it_is(guarded: Guarded) -> None:
    guarded.evaluate(*COLLAPSE)
    assert guarded.watch.resume()
    guarded.evaluate(0.0, since=30)
    assert guarded.watch.pause is None
    assert guarded.guarding.view().best_version == 10, "it is still kept"


def test_while_the_guard_pauses_the_run_nobody_is_asked_to_work_and_open_leases_end_as_usual(world: World) -> None:
    service = world.group_service
    guarded, lease = Guarded(world), world.lease()
    guarded.evaluate(*COLLAPSE)
    codes = set()
    for _ in range(50):
        world.now += 1_000
        codes.add(world.refusal(node=BOB).code)
        codes.add(world.refusal().code)
    assert codes == {"paused"}
    assert service.wanted_answer() is None, "nor does the scorer make answers of canaries"
    world.submit(group(lease))
    (receipt,) = world.decide_all()
    assert (receipt.verdict, receipt.code, receipt.weight > 0) == ("accepted", "ok", True)
    guarded.watch.resume()
    assert world.lease(BOB)


def test_each_rule_has_a_row_and_a_warning_is_logged_once(
    guarded: Guarded,
) -> None:
    rows = guarded.guarding.view().rows
    assert [row.kind for row in rows] == list(KINDS)
    assert {row.mood for row in rows} == {"unknown"}
    with structlog.testing.capture_logs() as logs:
        guarded.guarding.on_step(1, 1, BROKEN_STEP)
        guarded.guarding.on_step(1, 2, BROKEN_STEP)
        row = {row.kind: row for row in guarded.guarding.view().rows}["gradient"]
        assert (row.mood, row.holds, row.pause_after) == ("warning", 2, 3)
        guarded.guarding.on_step(1, 3, BROKEN_STEP)
    assert [one["kind"] for one in logs if one["event"] == "the guard warns"] == ["gradient"]
    assert {row.kind: row for row in guarded.guarding.view().rows}["gradient"].mood == "paused"
    paused = guarded.watch.view().paused
    assert paused.remedy.startswith("lower `learner.learning_rate`")


def test_an_order_that_replaces_another_says_so(guarded: Guarded) -> None:
    guarded.evaluate(*COLLAPSE)
    assert "in place of" not in guarded.guarding.order()
    assert "under a new number in place of version 10, which was ordered before, once" in guarded.guarding.order(0)
    assert guarded.guarding.view().ordered == 0


def test_a_rollback_ends_the_pause_and_is_remembered(guarded: Guarded, world: World) -> None:
    guarded.evaluate(*COLLAPSE)
    assert "version 10 will be published again" in guarded.guarding.order()
    assert guarded.woken.is_set()
    assert guarded.guarding.view().ordered == 10
    world.reopen()
    guarded.open(GuardSection())
    order = guarded.republish()
    assert (order.version, order.root, order.snapshot, order.factor) == (10, root_of(1, 10), "v10", 1.0)
    guarded.obey(26, 2)
    assert guarded.watch.pause is None
    assert not guarded.guarding.ordered
    (row,) = guarded.guarding.view().rollbacks
    assert (row.version, row.new_version, row.new_era, row.automatic) == (10, 26, 2, False)
    guarded.evaluate(0.1, 0.1, 0.1, since=30, era=2)
    assert guarded.watch.pause is not None, "the best stays the measure of the new era"


def test_the_learner_is_told_the_order_until_a_newer_version_is_published(guarded: Guarded, world: World) -> None:
    guarded.evaluate(*COLLAPSE)
    guarded.guarding.order()
    guarded.obey(36, 2)
    again = guarded.republish()
    assert again.version == 10
    assert not guarded.guarding.ordered
    guarded.versions.versions.append(Published(2, 37, root_of(2, 37), bytes(32), bytes(32)))
    assert guarded.republish() is None


def test_a_rollback_does_not_end_the_operators_pause(guarded: Guarded) -> None:
    guarded.evaluate(0.1, 0.9)
    guarded.watch.stop("moving house")
    guarded.guarding.order(0, 0.5)
    guarded.obey(26, 2)
    assert guarded.watch.pause is not None
    assert guarded.guarding.view().rate == 0.5


def test_the_operator_may_name_any_version_that_is_kept(guarded: Guarded) -> None:
    with pytest.raises(LocalFault, match=r"no version was evaluated yet: name one of 0, 5, 10"):
        guarded.guarding.order()
    guarded.evaluate(0.1, 0.9)
    guarded.versions.kept = {0, 5, 30}
    with pytest.raises(LocalFault, match=r"version 15 is not kept; kept are 0, 5, 30"):
        guarded.guarding.order(15)
    guarded.guarding.order(30)
    assert guarded.guarding.view().ordered == 30


def test_an_order_whose_version_is_gone_is_dropped(guarded: Guarded) -> None:
    guarded.evaluate(*COLLAPSE)
    guarded.guarding.order()
    guarded.versions.kept = set()
    assert guarded.republish() is None
    assert not guarded.guarding.ordered
    assert guarded.watch.pause is not None


def test_best_examined_and_ordered_versions_are_kept(guarded: Guarded) -> None:
    assert guarded.guarding.kept_versions() == set()
    guarded.evaluate(0.1, 0.9, 0.5)
    guarded.guarding.examining(guarded.versions.versions[6])
    guarded.guarding.order(0)
    assert guarded.guarding.kept_versions() == {(1, 0), (1, 5), (1, 30)}


def test_of_itself_the_best_comes_again_at_half_the_rate_three_times_and_then_the_run_stays_paused(
    world: World,
) -> None:
    guarded = Guarded(world, auto_rollback=True)
    guarded.evaluate(*COLLAPSE)
    for era in (2, 3, 4):
        assert guarded.watch.pause is not None
        guarded.obey(100 * era, era)
        assert guarded.watch.pause is None
        guarded.evaluate(0.2, 0.2, 0.2, since=100 * era + 5, era=era)
    assert [row.rate for row in guarded.guarding.view().rollbacks] == [0.5, 0.25, 0.125]
    assert all(row.automatic for row in guarded.guarding.view().rollbacks)
    assert not guarded.guarding.ordered
    paused = guarded.watch.view().paused
    assert "version 10 was published again 3 times without the operator" in paused.remedy
    assert "`echo2-coord policy rollback`" in paused.remedy


def test_without_a_better_version_even_the_automatic_one_pauses(world: World) -> None:
    guarded = Guarded(world, auto_rollback=True)
    for step in range(1, 4):
        guarded.guarding.on_step(1, step, BROKEN_STEP)
    paused = guarded.watch.view().paused
    assert paused.kind == "gradient"
    assert "no better version is kept" in paused.remedy
    assert not guarded.guarding.ordered


def test_an_alarm_leaves_the_operators_pause_as_it_is(guarded: Guarded) -> None:
    guarded.watch.stop("moving house")
    guarded.evaluate(*COLLAPSE)
    assert guarded.watch.pause.kind == "operator"
