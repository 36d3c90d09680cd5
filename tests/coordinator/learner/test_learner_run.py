"""A real learner trains a whole run, from its first step to its last."""

import os
import shutil
import signal
from itertools import chain
from pathlib import Path

import anyio
import pytest
from msgspec import structs

from echo2.coordinator.daemon import Coordinator
from echo2.coordinator.database.database import Database
from echo2.coordinator.learner.checkpoints import checkpoint, journal
from echo2.coordinator.learner.checkpoints.journal import JournalEntry
from echo2.coordinator.learner.ranks.launch import learner_process
from echo2.coordinator.run.setup import Run
from echo2.coordinator.training.model_processes import LearnerChild, restarts
from echo2.runtime.units import DAY
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.real_learner import OwnLearner, coordinating, make_run, wall


@pytest.mark.slow
@on_fake_clock
async def test_the_age_of_a_group_is_the_same_in_the_buffer_the_metrics_and_the_history_and_0_on_policy(
    tmp_path: Path, model_folder: Path
) -> None:
    run = make_run(tmp_path / "run", model_folder, steps=4, staleness=2)
    async with coordinating(run) as coordinator:
        await until(lambda: coordinator.view_builder.build().phase == "finished", 300)
        steps, histogram = coordinator.view_builder.build().steps, coordinator.group_service.buffer.histogram
    assert len(steps) == 4
    assert steps[0].staleness == 0.0, "the first batch is of the base, from which the first step starts"
    assert [point.metrics["staleness_mean"] for point in steps] == [point.staleness for point in steps]
    drawn = sum(age * groups for age, groups in enumerate(histogram))
    assert drawn == pytest.approx(sum(point.staleness * 2 for point in steps))


@pytest.mark.slow
@on_fake_clock
async def test_the_last_step_is_published_and_evaluated_when_versions_are_several_steps_apart(
    tmp_path: Path, model_folder: Path
) -> None:
    run = make_run(tmp_path / "run", model_folder, steps=5, publish_every=3)
    async with coordinating(run) as coordinator:
        await until(lambda: coordinator.view_builder.build().phase == "finished", 300)
        state = coordinator.view_builder.build()
    assert (state.step, state.version) == (5, 5)
    assert [row.version for row in state.versions] == [0, 3, 5]
    assert state.evaluations[-1].version == 5
    # The next life finds the course over, and the learner where it ended.
    async with coordinating(run) as coordinator:
        await until(lambda: coordinator.view_builder.build().phase == "finished", 300)
        assert (coordinator.view_builder.build().step, coordinator.view_builder.build().version) == (5, 5)


async def until_step(coordinator: Coordinator, step: int) -> None:
    await until(lambda: coordinator.view_builder.build().step >= step, 300)


def tear_newest_checkpoint(run: Run) -> None:
    newest = max((run.folder.learner / "checkpoints").glob("checkpoint-*"))
    (newest / "tensors.safetensors").write_bytes(b"torn")


def journalled(run: Run) -> list[JournalEntry]:
    """Return the entries behind the newest checkpoint."""
    newest = checkpoint.load(run.folder.learner / checkpoint.FOLDER, pytest.fail)
    entries = journal.behind(run.folder.learner / journal.FOLDER, newest.state, pytest.fail)
    assert len(entries) >= 2
    return entries


def tear_journal(run: Run) -> None:
    journalled(run)
    newest = max((run.folder.learner / journal.FOLDER).glob("entry-*"))
    newest.write_bytes(newest.read_bytes()[:-1])


def forget_tokens(run: Run) -> None:
    (_, groups, _), *_ = journalled(run)[-1].steps
    with Database.open(run.folder.database) as database, database.transaction():
        database.do("UPDATE submissions SET payload = NULL WHERE lease = ?", (groups[0],))


def take_foreign_journal(run: Run) -> None:
    """Let the journal be that of a run whose weights were others, at the same steps."""
    entries = journalled(run)
    journal.clear(run.folder.learner / journal.FOLDER)
    for entry in entries:
        journal.append(run.folder.learner / journal.FOLDER, structs.replace(entry, after_root=b"\7" * 32))


def die_twice(run: Run) -> None:
    journalled(run)
    for _ in range(journal.MOST_TRIES):
        journal.begin_try(run.folder.learner / journal.FOLDER)


_WITH_TOKENS = "SELECT lease FROM submissions WHERE payload IS NOT NULL"
EACH, JOURNAL_ALONE = 1.0, 1e-9
"""Shares of the time for full checkpoints."""
DAMAGES = {
    "the newest checkpoint is torn": (EACH, tear_newest_checkpoint),
    "the learner's folder is lost": (JOURNAL_ALONE, lambda run: shutil.rmtree(run.folder.learner)),
    "an entry of the journal is torn": (JOURNAL_ALONE, tear_journal),
    "the journal has lost its tokens": (JOURNAL_ALONE, forget_tokens),
    "the journal is another run's": (JOURNAL_ALONE, take_foreign_journal),
    "the learner died twice while it made journalled steps again": (JOURNAL_ALONE, die_twice),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.slow_but("the newest checkpoint is torn")
@on_fake_clock
async def test_a_learner_behind_the_published_version_continues_in_a_new_era(
    damage: str, tmp_path: Path, model_folder: Path
) -> None:
    share, harm = DAMAGES[damage]
    run = make_run(tmp_path / "run", model_folder, staleness=4, learner={"checkpoint_share": share})
    learner = OwnLearner()
    ended: list[BaseException] = []
    told: dict[str, object] = {}
    async with coordinating(run, learner) as coordinator:
        await until(lambda: coordinator.view_builder.build().version >= 3, 300)  # a step may publish none
        told["old"] = coordinator.view_builder.build().version
        told["root"] = coordinator.publisher.versions[-1].root
    harm(run)
    try:
        async with coordinating(run, learner) as coordinator:
            await until(lambda: coordinator.view_builder.build().version >= int(str(told["old"])) + 4, 300)
            state = coordinator.view_builder.build()
            told["state"] = (state.era, state.version - int(str(told["old"])))
            database = coordinator.group_service.database
            told["first"] = next(one.root for one in coordinator.publisher.versions if one.era == state.era)
            told["eras"] = database.all("SELECT DISTINCT era FROM versions ORDER BY era")
            told["refused"] = state.refused
    except BaseExceptionGroup as errors:
        ended.append(errors)
    assert ended == [], "the run goes on"
    era, versions = told["state"]  # type: ignore[misc]
    assert era > 1, "what was undone is another era"
    assert versions >= 4
    assert told["eras"] == [(1,), (era,)]
    assert told["first"] == told["root"], "the weights published last go on"
    assert told["refused"] == {}, "outstanding leases are paid as usual"
    assert len(learner.asked) == len(set(learner.asked)), "no group is learned from twice"


@pytest.mark.slow
@on_fake_clock
async def test_a_run_stopped_with_steps_in_the_journal_alone_goes_on_with_them(
    tmp_path: Path, model_folder: Path
) -> None:
    run = make_run(tmp_path / "run", model_folder, staleness=4, learner={"checkpoint_share": JOURNAL_ALONE})
    learner = OwnLearner()
    async with coordinating(run, learner) as coordinator:
        await until_step(coordinator, 3)
    kept = [entry.export for entry in journalled(run)]
    async with coordinating(run, learner) as coordinator:
        await until_step(coordinator, kept[-1].version + 3)
        versions = coordinator.publisher.versions
    assert {one.era for one in versions} == {1}
    assert [one.root for one in versions[1 : len(kept) + 1]] == [export.root for export in kept]
    assert [one.version for one in versions] == [*range(len(versions))]
    assert len(learner.asked) == len(set(learner.asked)), "no group is learned from twice"


@pytest.mark.parametrize("share", [EACH, JOURNAL_ALONE])
@pytest.mark.slow_but("1.0")
@on_fake_clock
async def test_tokens_are_kept_until_a_full_checkpoint_covers_their_draw(
    share: float, tmp_path: Path, model_folder: Path
) -> None:
    run = make_run(tmp_path / "run", model_folder, steps=4, staleness=1, learner={"checkpoint_share": share})
    learner = OwnLearner()
    kept: set[bytes] = set()
    async with coordinating(run, learner) as coordinator:
        await until(lambda: coordinator.view_builder.build().phase == "finished", 300)
        training, groups = coordinator.learning.training, coordinator.group_service
        changed = coordinator.view_builder.build().version  # a step whose rewards are all equal changes nothing
        assert training.covered_step == (changed if share == EACH else 0)
        covered = frozenset(chain.from_iterable(training.covered))
        while groups.forget(covered, training.covered_step, 1, int(wall() * 1000) + 3 * DAY):
            pass
        kept.update(lease for (lease,) in groups.database.all(_WITH_TOKENS))
    assert kept.intersection(learner.asked) == (set() if share == EACH else set(learner.asked))


@pytest.mark.slow
@on_fake_clock
async def test_a_finished_run_is_finished_after_its_journal_was_made_again(tmp_path: Path, model_folder: Path) -> None:
    run = make_run(tmp_path / "run", model_folder, steps=3, learner={"checkpoint_share": JOURNAL_ALONE})

    versions: list[list[int]] = []
    for _ in range(2):
        async with coordinating(run) as coordinator:
            await until(lambda: coordinator.view_builder.build().phase == "finished", 300)
            versions.append([one.version for one in coordinator.publisher.versions])
            assert coordinator.view_builder.build().version == versions[-1][-1]
    assert versions[0] == versions[1] == list(range(len(versions[0])))
    assert 2 <= len(versions[0]) <= 4, "a step whose rewards are all equal changes nothing"


@pytest.mark.slow
async def test_a_real_learner_killed_repeatedly_at_the_start_of_a_new_era_continues_in_it(
    tmp_path: Path, model_folder: Path, repository: Path
) -> None:
    """Kill the learner's process with SIGKILL, each time a little later than the time before."""
    run = make_run(tmp_path / "run", model_folder, staleness=4, steps=3, learner={"checkpoint_share": EACH})
    learner = LearnerChild(learner_process, restarts())
    try:
        async with coordinating(run, learner) as coordinator:
            await until(lambda: coordinator.view_builder.build().phase == "finished", 300)
        await learner.child.stop()
        tear_newest_checkpoint(run)
        settings = run.folder.config.read_text()
        run.folder.config.write_text(settings.replace("\nsteps = 3\n", "\nsteps = 100\n"))
        async with coordinating(run, learner, opens=False) as coordinator:
            last = coordinator.publisher.latest
            assert last is not None
            for kill in range(6):
                await until(lambda: learner.child.pid, 60)
                await anyio.sleep(0.7 * kill)
                if learner.child.pid:
                    os.kill(learner.child.pid, signal.SIGKILL)
                await until(lambda: learner.child.pid is None, 60)
            await until_step(coordinator, last.version + 4)
            versions = coordinator.group_service.database.all("SELECT era, version FROM versions ORDER BY era, version")
            published = [(one.era, one.version) for one in coordinator.publisher.versions]
        assert published == sorted(set(published)), "no version twice"
        assert [version for _, version in published] == [*range(published[-1][1] + 1)], "and none left out"
        new = [era for era, version in published if version > last.version]
        assert len(set(new)) == 1, "one new era, however often it was begun"
        assert new[0] > 1
        assert set(published) <= set(versions)
    finally:
        await learner.child.stop()
