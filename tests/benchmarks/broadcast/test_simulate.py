"""The simulator never beats the bound, serves every peer, and repeats itself."""

from typing import Any

import pytest

from benchmarks.broadcast.simulate import SOURCE_UPLINK, Outcome, alike, disturb, kill, places, simulated
from echo2.p2p.plan.trees import PayloadSize

LOAD = PayloadSize(2_000_000, 1 << 15)


def outcome(n: int = 24, **how: Any) -> Outcome:
    return simulated(LOAD, places(n, 1), SOURCE_UPLINK, 1, **how)


@pytest.mark.parametrize("how", [{}, {"planned": False}], ids=["planned", "unplanned"])
def test_every_peer_gets_all_and_none_sooner_than_the_bound(how: dict[str, bool]) -> None:
    outcome_of_run = outcome(**how)
    assert outcome_of_run.unserved == 0
    assert len(outcome_of_run.times) == 24
    assert outcome_of_run.last >= outcome_of_run.best


def test_survivors_and_newcomers_are_served_while_others_fail() -> None:
    outcome_of_run = outcome(40, trouble=disturb)
    assert outcome_of_run.unserved == 0
    assert len(outcome_of_run.times) == 40 - 12 + 4


def test_the_same_seed_gives_the_same_times() -> None:
    assert outcome(trouble=disturb).times == outcome(trouble=disturb).times


def test_equal_links_end_soon_after_the_bound() -> None:
    outcome_of_run = simulated(PayloadSize(40_000_000, 156_250), alike(16, SOURCE_UPLINK, 1), SOURCE_UPLINK, 1)
    assert outcome_of_run.best <= outcome_of_run.last <= 1.25 * outcome_of_run.best
    assert outcome_of_run.surplus == 0


MBIT_40 = 5_000_000.0


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.slow_but("3")
def test_a_broadcast_of_which_many_die_at_half_time_takes_a_third_longer_at_most(seed: int) -> None:
    load, peers = PayloadSize(41_943_040, 163_840), alike(16, MBIT_40, seed)
    calm, killed = (simulated(load, peers, MBIT_40, seed, trouble=trouble) for trouble in (None, kill))
    assert killed.unserved == 0
    assert len(killed.times) == 16 - 5
    assert killed.last <= 1.35 * calm.last
    assert killed.copies <= 1.25
