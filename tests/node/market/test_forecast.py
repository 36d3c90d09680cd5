"""The interval of a forecast holds as often as it says, whatever the law of the amounts."""

import random
from fractions import Fraction

import pytest

from echo2.node.market.forecast import LEAST_PERIODS, MOST_PERIODS, RANGE_CHANCE, forecast


@pytest.mark.parametrize("law", ["uniform", "heavy", "two values"])
@pytest.mark.parametrize("count", [LEAST_PERIODS, 25, MOST_PERIODS])
@pytest.mark.slow_for("96-uniform", "96-heavy", "96-two values")
def test_the_next_period_lies_within_as_often_as_it_says(law: str, count: int) -> None:
    chances = random.Random(7)
    draws = {
        "uniform": lambda: chances.randrange(1000),
        "heavy": lambda: int(1000 / (1 - chances.random())),
        "two values": lambda: 10 * (chances.random() < 0.4),
    }
    inside, trials = 0, 1500
    for _ in range(trials):
        *before, after = (Fraction(draws[law]()) for _ in range(count + 1))
        told = forecast(before)
        assert told is not None
        assert told.chance >= RANGE_CHANCE
        inside += told.low <= after <= told.high
    assert Fraction(inside, trials) > told.chance - Fraction(3, 100)


def test_a_few_periods_are_no_forecast_and_old_ones_do_not_count() -> None:
    assert forecast([Fraction(1)] * (LEAST_PERIODS - 1)) is None
    told = forecast([Fraction(10**9)] * 50 + [Fraction(5)] * MOST_PERIODS)
    assert told is not None
    assert (told.mean, told.low, told.high, told.periods) == (5, 5, 5, MOST_PERIODS)
