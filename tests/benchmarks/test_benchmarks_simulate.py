"""The simulator keeps to the bound from below, serves everybody, and repeats itself."""

import pytest

from benchmarks.simulate import SOURCE_UPLINK, Outcome, alike, places, simulated
from p2p.plan import Load

LOAD = Load(2_000_000, 1 << 15)


def outcome(n: int = 24, **how: bool) -> Outcome:
    return simulated(LOAD, places(n, 1), SOURCE_UPLINK, 1, **how)


@pytest.mark.parametrize("how", [{}, {"planned": False}], ids=["planned", "unplanned"])
def test_everybody_gets_all_and_nobody_sooner_than_the_bound(how: dict[str, bool]) -> None:
    found = outcome(**how)
    assert found.unserved == 0
    assert len(found.times) == 24
    assert found.last >= found.best


def test_survivors_and_newcomers_are_served_while_others_fail() -> None:
    found = outcome(40, churn=True)
    assert found.unserved == 0
    assert len(found.times) == 40 - 12 + 4


def test_the_same_seed_gives_the_same_times() -> None:
    assert outcome(churn=True).times == outcome(churn=True).times


def test_equal_lines_end_soon_after_the_bound() -> None:
    found = simulated(Load(40_000_000, 156_250), alike(16, SOURCE_UPLINK, 1), SOURCE_UPLINK, 1)
    assert found.best <= found.last <= 1.25 * found.best
    assert found.surplus == 0
