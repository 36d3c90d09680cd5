"""The exponential backoff that all rooms share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.runtime.backoff import Backoff


def test_a_pause_doubles_with_each_failure_up_to_the_longest() -> None:
    backoff = Backoff(0.5, 15.0)
    assert [backoff.delay(failures) for failures in range(8)] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]


def test_a_pause_follows_the_one_before() -> None:
    backoff = Backoff(600.0, 86_400.0, factor=4.0)
    assert [backoff.after(pause) for pause in (0.0, 600.0, 2400.0, 50_000.0)] == [600.0, 2400.0, 9600.0, 86_400.0]


def test_jitter_draws_from_the_last_part_of_a_pause() -> None:
    backoff = Backoff(1.0, 30.0, jitter=0.5)
    assert [backoff.delay(3, draw) for draw in (0.0, 0.5, 1.0)] == pytest.approx([2.0, 3.0, 4.0])


def test_whole_milliseconds_stay_whole() -> None:
    backoff = Backoff(15_000, 900_000)
    assert [int(backoff.delay(failures)) for failures in (1, 2, 7, 10**6)] == [15_000, 30_000, 900_000, 900_000]


@given(failures=st.integers(0, 10**9), draw=st.floats(0, 1), jitter=st.floats(0, 1), factor=st.floats(1, 10))
def test_no_pause_is_outside_its_bounds(failures: int, draw: float, jitter: float, factor: float) -> None:
    pause = Backoff(0.25, 20.0, jitter, factor).delay(failures, draw)
    assert 0 <= pause <= 20.0 * (1 + 1e-9)
    assert failures == 0 or pause >= 0.25 * (1 - jitter) * (1 - 1e-9)
