"""Vesting, holdback, and what a forfeit can take."""

from hypothesis import given
from hypothesis import strategies as st

from echo2.coordinator.market.holdback import (
    HOLDBACK,
    Tranches,
    earned_tranche,
    forfeit_amount,
    held_back,
    merge_tranches,
    release_tranches,
    vest_tranches,
)
from echo2.runtime.units import DAY

HOUR = 3_600_000


def test_a_fifth_is_unvested_and_vests_evenly_over_a_day() -> None:
    tranche = earned_tranche(0, 100_000, 1_001)
    assert (tranche.unvested, tranche.accrued) == (200, 801)
    after, moved = vest_tranches([tranche], 6 * HOUR)
    assert moved == 50
    after, moved = vest_tranches(after, 12 * HOUR)
    assert moved == 50
    after, moved = vest_tranches(after, 12 * HOUR)
    assert moved == 0
    after, moved = vest_tranches(after, 11 * HOUR)
    assert moved == 0, "a clock that goes back vests nothing"
    after, moved = vest_tranches(after, 3 * DAY)
    assert moved == 100
    assert after[0].accrued == 1_001


def test_the_newest_forty_reference_rollouts_are_held_back() -> None:
    tranches = [earned_tranche(0, 30_000, 3_000), earned_tranche(HOUR, 30_000, 6_000)]
    assert held_back(tranches, HOUR, True) == [800, 4_800]
    after, amount = release_tranches(tranches, HOUR, True)
    assert amount == 1_600
    assert [one.accrued for one in after] == [800, 4_800]
    assert release_tranches(after, HOUR, True)[1] == 0


def test_a_share_of_an_epoch_is_held_back_rounded_up() -> None:
    assert held_back([earned_tranche(0, 3 * HOLDBACK, 1_000)], 0, True) == [267]


def test_nothing_older_than_a_day_is_held_back() -> None:
    tranches, _ = vest_tranches([earned_tranche(0, 10_000, 3_000)], DAY)
    after, amount = release_tranches(tranches, DAY, True)
    assert (after, amount) == ((), 3_000)


def test_nothing_is_released_on_probation() -> None:
    tranches = [earned_tranche(0, 10**9, 5_000)]
    assert release_tranches(tranches, HOUR, False)[1] == 0
    assert release_tranches(tranches, HOUR, True)[1] > 0


def test_tranches_are_bounded_also_on_probation() -> None:
    tranches: Tranches = ()
    for epoch in range(500):
        now = epoch * HOUR
        tranches = merge_tranches((*vest_tranches(tranches, now)[0], earned_tranche(now, 1_000, 100)), now)
    assert len(tranches) <= 26
    assert sum(one.amount for one in tranches) == 50_000


def test_a_forfeit_takes_the_newest_first_and_never_what_is_released() -> None:
    tranches = [earned_tranche(0, 100_000, 10_000), earned_tranche(HOUR, 30_000, 1_000)]
    taken = forfeit_amount(tranches, HOUR, True, 1_100)
    assert (taken.unvested, taken.accrued, taken.lacking) == (300, 800, 0)
    assert [one.amount for one in taken.tranches] == [9_900, 0]
    everything = forfeit_amount(tranches, HOUR, True, 10**9)
    assert everything.unvested == 2_200
    assert everything.accrued == 800 + 800
    assert everything.lacking == 10**9 - 3_800
    assert release_tranches(everything.tranches, HOUR, True)[1] == 7_200, "what was due is still the node's"
    assert forfeit_amount([], HOUR, True, 5).lacking == 5


STEP = st.tuples(st.sampled_from(["earn", "vest", "release", "forfeit"]), st.integers(0, 40), st.integers(0, 10**6))


@given(st.lists(STEP, max_size=40), st.booleans())
def test_no_unit_appears_or_disappears(steps: list[tuple[str, int, int]], proven: bool) -> None:
    tranches: Tranches = ()
    now, paid, out, lost = 0, 0, 0, 0
    for step, hours, amount in steps:
        now += hours * HOUR
        if step == "earn":
            tranches, paid = (*tranches, earned_tranche(now, amount // 10 + 1, amount)), paid + amount
        elif step == "vest":
            before = sum(one.accrued for one in tranches)
            tranches, moved = vest_tranches(tranches, now)
            assert sum(one.accrued for one in tranches) == before + moved
        elif step == "release":
            tranches, moved = release_tranches(tranches, now, proven)
            out += moved
        else:
            taken = forfeit_amount(tranches, now, proven, amount)
            assert taken.unvested + taken.accrued + taken.lacking == amount
            tranches, lost = taken.tranches, lost + taken.unvested + taken.accrued
        assert all(one.unvested >= 0 and one.accrued >= 0 for one in tranches)
        assert sum(one.amount for one in tranches) == paid - out - lost
    tranches, _ = vest_tranches(tranches, now + DAY)
    tranches, moved = release_tranches(tranches, now + DAY, True)
    assert tranches == ()
    assert out + moved + lost == paid
