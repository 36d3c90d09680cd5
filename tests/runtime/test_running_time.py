"""Time in which a process ran, and time in which it did not."""

import threading
from pathlib import Path

import pytest

from coordinator.rollouts.absence import STOPPED, Absence
from runtime.running_time import GAP, RunningTime
from tests.support.group_world import ALICE, World


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_short_times_between_two_looks_count_and_long_ones_do_not() -> None:
    clock = Clock()
    ran = RunningTime(clock)
    for seconds, counted in ((1.0, 1.0), (GAP - 0.5, GAP + 0.5), (GAP + 30.0, GAP + 0.5), (0.25, GAP + 0.75)):
        clock.now += seconds
        assert ran() == pytest.approx(counted)


def test_the_thread_ends_with_the_block() -> None:
    with RunningTime():
        (thread,) = [one for one in threading.enumerate() if one.name == "running time"]
    thread.join(10)
    assert not thread.is_alive()


def test_leases_from_ahead_begin_anew_where_the_clock_was_set_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    absence = Absence(world.group_service.leases, Clock())
    absence.check(world.now)
    world.now += 3600_000
    lease = world.lease(ALICE)
    absence.check(world.now)
    world.now -= 3600_000
    absence.check(world.now)
    record = world.group_service.leases.find(lease.id)
    assert record is not None
    assert record.expires - world.now == lease.expires - lease.sent
    world.close()


@pytest.mark.parametrize(
    ("what", "wall", "ran", "extended"),
    [
        ("a tick", 1_000, 1.0, False),
        ("a loop that its own work held for a minute", 60_000, 60.0, False),
        ("a process that was stopped for a minute", 60_000, 0.0, True),
        ("a machine that slept for a night, and a tick", 8 * 3600_000, 1.0, True),
        ("a clock that was set forward", 3600_000, 1.0, True),
        ("a clock that was set back a little", -1_000, 1.0, False),
        ("a short stop", STOPPED, 0.1, False),
    ],
)
def test_open_leases_get_the_time_back_in_which_the_coordinator_was_not_there(
    tmp_path: Path, what: str, wall: int, ran: float, extended: bool
) -> None:
    world = World(tmp_path)
    clock = Clock()
    absence = Absence(world.group_service.leases, clock)
    lease = world.lease(ALICE)
    world.group_service.tick(world.now)
    absence.check(world.now)
    world.now += wall
    clock.now += ran
    absence.check(world.now)
    record = world.group_service.leases.find(lease.id)
    assert record is not None
    assert record.expires - lease.expires == (wall if extended else 0), what
    world.close()
