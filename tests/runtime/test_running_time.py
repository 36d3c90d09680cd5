"""Time in which a process ran, and time in which it did not."""

import threading

import pytest

from echo2.runtime.running_time import STOP_GAP_SECONDS, RunningTime


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_short_times_between_two_looks_count_and_long_ones_do_not() -> None:
    clock = Clock()
    ran = RunningTime(clock)
    for seconds, counted in (
        (1.0, 1.0),
        (STOP_GAP_SECONDS - 0.5, STOP_GAP_SECONDS + 0.5),
        (STOP_GAP_SECONDS + 30.0, STOP_GAP_SECONDS + 0.5),
        (0.25, STOP_GAP_SECONDS + 0.75),
    ):
        clock.now += seconds
        assert ran() == pytest.approx(counted)


def test_the_thread_ends_with_the_block() -> None:
    with RunningTime():
        (thread,) = [one for one in threading.enumerate() if one.name == "running time"]
    thread.join(10)
    assert not thread.is_alive()
