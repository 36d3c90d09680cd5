"""From any start the window of leases comes to what the fleet needs: there is no state in which it stays wrong.

The thousand starts: `python -m benchmarks.pacing --starts 1000`."""

import pytest

from benchmarks.pacing.random_starts import unsettled


@pytest.mark.parametrize("starts", [2, 100])
@pytest.mark.slow_but("2")
def test_the_window_settles_from_any_start_and_after_any_change(starts: int) -> None:
    assert [one for seed in range(starts) for one in unsettled(seed)] == []
