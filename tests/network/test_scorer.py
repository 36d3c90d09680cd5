"""The scorer's one copy of the weights: it steps among the requested versions, and recovers from damage."""

import shutil
from pathlib import Path

import pytest

from echo2.weights.journaled import Rolling
from echo2.weights.snapshot import Snapshot
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.swarm import Swarm, accepted, make_swarm, working


async def _at_version(swarm: Swarm, version: int) -> None:
    assert swarm.coordinator is not None
    node = swarm.node(f"node{version}")
    publisher = swarm.coordinator.publisher
    async with working(node):
        await until(lambda: publisher.latest is not None and publisher.latest.version >= version, 600)
        await until(lambda: accepted(node), 600)


@pytest.mark.slow
@on_fake_clock
async def test_every_admitted_version_is_reached_in_any_order_from_one_copy(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path, staleness=3)
    async with swarm.coordinating() as coordinator:
        await _at_version(swarm, 6)
        weights, publisher = coordinator.learning.scoring.visits.weights, coordinator.publisher
        await publisher.retain(coordinator.group_service.oldest_needed(), 1 << 30, 0)
        versions = [
            one for one in publisher.versions if (one.era, one.version) >= coordinator.group_service.oldest_needed()
        ]
        assert len(versions) >= 5
        for version in [versions[-1], versions[0], versions[2], versions[-1], *reversed(versions)]:
            assert await weights.hold(version.root)
            snapshot = swarm.scorer.engine.snapshot
            assert Snapshot(snapshot.path).root == version.root
        folder = swarm.run.folder.scorer / "held"
        assert len(list(folder.glob("**/*.safetensors"))) == 1
        assert len(publisher.stored.snapshots()) == 1, "the latest alone is whole"
        assert not await weights.hold(bytes(32))


@on_fake_clock
async def test_lost_damaged_or_outdated_weights_are_rebuilt(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    async with swarm.coordinating() as coordinator:
        await _at_version(swarm, 4)
        weights, publisher = coordinator.learning.scoring.visits.weights, coordinator.publisher
        await publisher.retain(coordinator.group_service.oldest_needed(), 1 << 30, 0)
        folder = swarm.run.folder.scorer / "held"
        oldest = next(v for v in publisher.versions if (v.era, v.version) >= coordinator.group_service.oldest_needed())

        def rotten() -> None:
            path = Rolling(folder).path
            path.write_bytes(path.read_bytes()[:-1] + b"\x7f")

        def without_journals() -> None:
            for path in (*folder.glob("undo/*"), *folder.glob("redo/*")):
                path.write_bytes(b"")

        def gone() -> None:
            shutil.rmtree(folder)

        def from_elsewhere() -> None:
            shutil.rmtree(folder)
            Rolling.create(folder, Snapshot(publisher.stored.snapshots()[publisher.versions[-1].root]))

        for harm in (rotten, without_journals, gone, from_elsewhere):
            harm()
            swarm.scorer.forget()
            for version in (oldest, publisher.versions[-1]):
                assert await weights.hold(version.root), harm.__name__
                assert Snapshot(Rolling(folder).path).root == version.root


@pytest.mark.slow
@on_fake_clock
async def test_a_coordinator_that_comes_back_goes_on_with_the_weights_as_they_stood(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    async with swarm.coordinating():
        await _at_version(swarm, 3)
    swarm.scorer.forget()
    folder = swarm.run.folder.scorer / "held"
    inode = (folder / "snapshot.safetensors").stat().st_ino
    async with swarm.coordinating():
        await _at_version(swarm, 5)
    assert (folder / "snapshot.safetensors").stat().st_ino == inode, "not made anew"
