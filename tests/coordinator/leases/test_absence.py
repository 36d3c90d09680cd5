"""Open leases are extended by the time in which the coordinator was not running."""

from pathlib import Path

import pytest

from echo2.coordinator.leases.absence import ABSENCE_MS, Absence
from tests.support.group_world import ALICE, World


class Running:
    """The seconds that a process has run."""

    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_leases_from_ahead_begin_anew_where_the_clock_was_set_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    absence = Absence(world.group_service.leases, Running())
    absence.check(world.now)
    world.now += 3600_000
    lease = world.lease(ALICE)
    absence.check(world.now)
    world.now -= 3600_000
    absence.check(world.now)
    record = world.group_service.leases.find(lease.id)
    assert record.expires - world.now == lease.expires - lease.sent


@pytest.mark.parametrize(
    ("what", "wall", "ran", "extended"),
    [
        ("a tick", 1_000, 1.0, False),
        ("a loop that its own work held for a minute", 60_000, 60.0, False),
        ("a process that was stopped for a minute", 60_000, 0.0, True),
        ("a machine that slept for a night, and a tick", 8 * 3600_000, 1.0, True),
        ("a clock that was set forward", 3600_000, 1.0, True),
        ("a clock that was set back a little", -1_000, 1.0, False),
        ("a short stop", ABSENCE_MS, 0.1, False),
    ],
)
def test_open_leases_get_the_time_back_in_which_the_coordinator_was_not_there(
    tmp_path: Path, what: str, wall: int, ran: float, extended: bool
) -> None:
    world = World(tmp_path)
    running = Running()
    absence = Absence(world.group_service.leases, running)
    lease = world.lease(ALICE)
    world.group_service.tick(world.now)
    absence.check(world.now)
    world.now += wall
    running.seconds += ran
    absence.check(world.now)
    record = world.group_service.leases.find(lease.id)
    assert record is not None
    assert record.expires - lease.expires == (wall if extended else 0), what
