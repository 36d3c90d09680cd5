"""The period between versions: fixed, or as short as the uplink sustains."""

import random

from hypothesis import given
from hypothesis import strategies as st

from echo2.coordinator.metrics.capacity import best_period
from echo2.coordinator.training.publish_period import AGREEING_PUBLICATIONS, PeriodTerms, PublishPeriod, wanted_period

QUICK = PeriodTerms(step=10.0, broadcast=4.0, turnaround=20.0)
SLOW = PeriodTerms(step=10.0, broadcast=25.0, turnaround=35.0)


def settled(period: PublishPeriod, terms: PeriodTerms) -> int:
    for _ in range(AGREEING_PUBLICATIONS):
        period.on_publication(terms)
    return period.current


def test_a_fixed_period_never_changes() -> None:
    period = PublishPeriod(2, staleness=8)

    assert settled(period, SLOW) == 2
    assert [period.is_due(step, version=4) for step in (5, 6, 7)] == [False, True, True]


def test_a_broadcast_of_two_and_a_half_steps_makes_the_period_three() -> None:
    assert settled(PublishPeriod(None, staleness=8), SLOW) == 3


def test_a_broadcast_shorter_than_a_step_leaves_each_step_a_version() -> None:
    assert settled(PublishPeriod(None, staleness=8), QUICK) == 1


def test_the_period_leaves_room_for_the_way_back() -> None:
    assert settled(PublishPeriod(None, staleness=5), SLOW) == 1  # kappa* = 5 - ceil(35 / 10)
    assert settled(PublishPeriod(None, staleness=6), SLOW) == 2


def test_one_slow_broadcast_changes_nothing() -> None:
    period = PublishPeriod(None, staleness=8)

    for terms in (SLOW, SLOW, QUICK, SLOW, SLOW, None, QUICK):
        assert not period.on_publication(terms)

    assert period.current == 1


def test_the_period_shrinks_when_the_uplink_is_quick_again() -> None:
    period = PublishPeriod(None, staleness=8, current=3)

    assert [period.on_publication(QUICK) for _ in range(AGREEING_PUBLICATIONS)] == [False, False, True]
    assert period.current == 1


def test_a_broadcast_of_about_a_whole_number_of_steps_does_not_change_the_period_for_ever() -> None:
    """Of 1,000 publications, with a tenth of noise, 69 changed it before."""
    for steps in (1.0, 2.0, 3.0):
        chances, period = random.Random(1), PublishPeriod(None, staleness=8)
        changes = [
            period.on_publication(PeriodTerms(10.0, 10 * chances.gauss(steps, steps / 10), turnaround=20.0))
            for _ in range(1_000)
        ]
        assert sum(changes) <= 10
        assert period.current in (steps, steps + 1)


def test_of_three_longer_periods_the_least_is_taken() -> None:
    period = PublishPeriod(None, staleness=16)

    for broadcast in (60.0, 25.0, 45.0):
        period.on_publication(SLOW._replace(broadcast=broadcast))

    assert period.current == 3


def test_longer_and_shorter_in_alternation_change_nothing() -> None:
    period = PublishPeriod(None, staleness=8, current=2)

    assert not any(period.on_publication(terms) for terms in (SLOW, QUICK) * 4)
    assert period.current == 2


def test_a_restarted_run_goes_on_with_its_period_as_far_as_the_setting_admits() -> None:
    assert PublishPeriod(None, staleness=8, current=3).current == 3
    assert PublishPeriod(None, staleness=2, current=5).current == 2
    assert PublishPeriod(2, staleness=8, current=3).current == 2


@given(
    st.integers(0, 64),
    st.builds(PeriodTerms, *[st.floats(0.001, 1e6)] * 3),
)
def test_the_wanted_period_is_between_one_and_the_longest_without_idle_time(staleness: int, terms: PeriodTerms) -> None:
    wanted = wanted_period(staleness, terms)

    assert 1 <= wanted <= best_period(staleness, terms.step, terms.turnaround)
