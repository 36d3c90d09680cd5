"""A learner that lost published versions, in a whole run in one process: every node continues in a new era."""

import shutil
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.ledger_files import run_archive, run_backup
from echo2.coordinator.publishing import foreign_heads
from echo2.weights.store import Store
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.swarm import BigramLearner, accepted, make_swarm, step, wall, working


def fall_back(learner: BigramLearner) -> None:
    learner.kept.pop()


DAMAGES: dict[str, Callable[[BigramLearner], None]] = {
    "the newest checkpoint is corrupt": fall_back,
    "the learner's folder is lost": BigramLearner.lose,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.slow
@on_fake_clock
async def test_nodes_cross_into_a_new_era_and_a_newcomer_joins_there(damage: str, tmp_path: Path) -> None:
    """Alice stays, Bob is away when the era changes, Carol joins later. All old versions but the last are deleted."""
    swarm = make_swarm(tmp_path)
    alice, bob = swarm.node("alice"), swarm.node("bob")
    async with working(alice, bob):
        async with swarm.coordinating() as coordinator:
            await until(lambda: step(coordinator) >= 6 and accepted(bob) > 2, 600)
            query = "SELECT count(*) FROM leases WHERE state IN ('open', 'received')"
            await until(lambda: coordinator.group_service.database.value(query), 60)
        old = swarm.learner.step_number
        before = set(swarm.learner.drawn)
        swarm.network.partition([bob.peer_id], [alice.peer_id, swarm.run.peer_id])
        DAMAGES[damage](swarm.learner)
        swarm.learner.batches.clear()
        async with swarm.coordinating() as coordinator:
            await until(lambda: coordinator.group_service.progress)
            latest, at = coordinator.publisher.latest, coordinator.group_service.progress
            assert latest is not None
            assert (latest.version, at.step) == (old + 1, old + 1), "a version number is never used twice"
            assert 1 < latest.era == at.era <= int(wall())
            era = at.era
            had = accepted(alice)
            await until(lambda: accepted(alice) > had + 4, 600)
            assert (alice.daemon.engine.current.era, alice.daemon.engine.current.version > old) == (era, True)
            assert bob.daemon.engine.current.era == 1
            swarm.network.heal()
            had = accepted(bob)
            await until(lambda: accepted(bob) > had + 2 and bob.daemon.engine.current.era == era, 600)
            await coordinator.publisher.retain(coordinator.group_service.oldest_needed(), 10**9, 1)
            carol = swarm.node("carol")
            async with working(carol):
                await until(lambda: accepted(carol) > 2, 600)
                assert carol.daemon.engine.current.era == era
            state, database = coordinator.view_builder.build(), coordinator.group_service.database
            Ledger(database).verify()
            assert state.refused.keys() <= {"late"}, "leases of the old era are paid as usual"
            assert state.refused.get("late", 0) <= 2, "what Bob had in work when he was cut off"
            assert state.era == era
            assert state.versions[-1].era == era
            for batch in swarm.learner.batches:
                assert not before & set(batch.groups)
                for lease in batch.groups:
                    assert database.value("SELECT era FROM leases WHERE id = ?", (lease,)) == era
            open_old = "SELECT count(*) FROM leases WHERE era != ? AND state IN ('open', 'received')"
            await until(lambda: not database.value(open_old, (era,)), 120)


@pytest.mark.slow
@on_fake_clock
async def test_the_snapshot_that_stays_is_the_latest(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    async with working(swarm.node("alice")):
        async with swarm.coordinating() as coordinator:
            await until(lambda: step(coordinator) >= 3, 600)
        swarm.learner.lose()
        async with swarm.coordinating() as coordinator:
            await until(lambda: coordinator.group_service.progress)
            first = coordinator.view_builder.build().version
            await until(lambda: step(coordinator) >= first + 8, 600)
            await anyio.sleep(60)
            await coordinator.publisher.retain(coordinator.group_service.oldest_needed(), 10**9, 10**9)
            latest = coordinator.view_builder.build().version
    with Store(swarm.run.folder.store) as store:
        assert [file.version for file in store.snapshots()] == [latest]


@on_fake_clock
async def test_a_run_that_lost_its_store_and_its_learner_begins_again_in_an_era_of_its_own(tmp_path: Path) -> None:
    """Keys and run.sqlite were restored from a backup without the store: the nodes have newer versions than a first
    one."""
    swarm = make_swarm(tmp_path)
    alice = swarm.node("alice")
    async with working(alice):
        async with swarm.coordinating() as coordinator:
            await until(lambda: step(coordinator) >= 4, 600)
        swarm.learner.lose()
        shutil.rmtree(swarm.run.folder.store)
        (swarm.run.folder.path / "head").unlink()
        had = accepted(alice)
        async with swarm.coordinating() as coordinator:
            await until(lambda: accepted(alice) > had + 4, 600)
            at = coordinator.group_service.progress
            assert at.era > 1


@pytest.mark.slow
@on_fake_clock
async def test_a_run_restored_from_a_backup_that_was_made_while_it_worked_goes_on_in_an_era_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the backup the first coordinator published further versions, which its nodes have."""
    monkeypatch.setattr(run_archive, "_WORK", 1 << 4)
    monkeypatch.setattr(foreign_heads, "RESTORED_QUIET_MS", 60_000)
    swarm = make_swarm(tmp_path)
    alice, place = swarm.node("alice"), swarm.run.folder
    async with working(alice):
        async with swarm.coordinating() as coordinator:
            await until(lambda: step(coordinator) >= 3, 600)
            run_backup.backup(place, tmp_path / "all.echo2", "four words of ours", int(wall() * 1000))
            checkpoints = list(swarm.learner.kept)
            await until(lambda: step(coordinator) >= 6, 600)
        shutil.rmtree(place.path)
        run_backup.restore(tmp_path / "all.echo2", place.path, "four words of ours", int(wall() * 1000))
        swarm.learner.kept = checkpoints
        run_backup.confirm(place, "four words of ours", int(wall() * 1000))
        ended, had = int(wall()), accepted(alice)
        async with swarm.coordinating() as coordinator:
            await until(lambda: accepted(alice) > had + 4, 600)
            at = coordinator.group_service.progress
            assert at.era >= ended
            assert alice.daemon.engine.current.era == at.era
        async with swarm.coordinating() as coordinator:
            await until(lambda: coordinator.group_service.progress)
            again = coordinator.group_service.progress
            assert again.era == at.era, "a further start resumes"
