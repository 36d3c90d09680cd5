"""Engine classes that open and change under a running coordinator: the shipped daemons, an in-memory network, a fake
clock, and nodes of a class that is not exact."""

from pathlib import Path

import pytest

from echo2.coordinator.calibration.recalibration import VersionNumber, due
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Lease
from tests.support.calibrated_swarm import ROUNDING, node_of_the_class, write_calibration
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.swarm import Swarm, accepted, make_swarm, whole, working


def named_by_leases(swarm: Swarm) -> list[bytes | None]:
    """Return the Calibrations that the leases name, in the order of the leases."""
    rows = swarm.coordinator.group_service.database.all("SELECT document FROM leases ORDER BY sent, id")
    return [decode(document, Lease).calibration for (document,) in rows]


@on_fake_clock
async def test_a_waiting_node_works_once_its_class_is_opened_on_the_running_coordinator(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    async with swarm.coordinating() as coordinator:
        node = node_of_the_class(swarm)
        async with working(node):
            await until(lambda: coordinator.group_service.asked["not-calibrated"])
            assert accepted(node) == 0
            digest = write_calibration(swarm, 0, 1)
            await until(lambda: accepted(node) >= 3, 120)
            assert set(named_by_leases(swarm)) == {digest}
            whole(swarm)


@pytest.mark.slow
@on_fake_clock
async def test_after_a_crash_of_the_coordinator_the_class_is_open_and_as_due_as_before(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    write_calibration(swarm, 0, 1)
    for wanted in (2, 6):
        async with swarm.coordinating() as coordinator:
            node = node_of_the_class(swarm)
            async with working(node):
                await until(lambda wanted=wanted: coordinator.publisher.latest.version >= wanted, 600)  # type: ignore[misc,union-attr]
            newest = coordinator.group_service.classes.newest()
            assert due(newest, VersionNumber(1, wanted), 6) == ([ROUNDING] if wanted == 6 else [])


@pytest.mark.slow
@on_fake_clock
async def test_under_a_new_calibration_the_evidence_goes_on_and_open_leases_keep_theirs(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    swarm.learner.seconds = 10
    old = write_calibration(swarm, 0, 1)
    async with swarm.coordinating() as coordinator:
        node = node_of_the_class(swarm)
        async with working(node):
            await until(lambda: accepted(node) >= 2)
            await until(lambda: coordinator.group_service.leases.root_of(1, 1))
            new = write_calibration(swarm, 1, 2)
            await until(lambda: new in named_by_leases(swarm), 120)
            before = accepted(node)
            await until(lambda: accepted(node) >= before + 3, 120)
            whole(swarm)
        named = named_by_leases(swarm)
        first = named.index(new)
        assert (set(named[:first]), set(named[first:])) == ({old}, {new})
        service = coordinator.group_service
        ((key,),) = service.database.all("SELECT node FROM bets")
        decided = service.database.value("SELECT count(*) FROM verdicts")
        assert service.verdicts.evidence.of(key).lifelong.groups == decided


@pytest.mark.slow
@on_fake_clock
async def test_calibrations_of_others_and_of_other_classes_change_nothing(tmp_path: Path) -> None:
    swarm, other = make_swarm(tmp_path / "one"), make_swarm(tmp_path / "two")
    write_calibration(other, 0, 1)
    swarm.run.folder.calibrations.mkdir()
    foreign = other.run.folder.calibrations / "1.calibration"
    (swarm.run.folder.calibrations / "1.calibration").write_bytes(foreign.read_bytes())
    (swarm.run.folder.calibrations / "cut.calibration").write_bytes(foreign.read_bytes()[:100])
    write_calibration(swarm, 0, 2, "llamacpp/bfloat16")
    write_calibration(swarm, 0, 4, root=bytes(32))
    async with swarm.coordinating() as coordinator:
        assert [one.rounding for one in coordinator.group_service.classes.newest()] == ["llamacpp/bfloat16"]
        node = node_of_the_class(swarm)
        async with working(node):
            await until(lambda: coordinator.group_service.asked["not-calibrated"])
            newest = coordinator.group_service.classes.newest()
            assert [one.rounding for one in newest] == ["llamacpp/bfloat16"]
            write_calibration(swarm, 0, 3)
            await until(lambda: accepted(node) >= 2, 120)
            whole(swarm)
