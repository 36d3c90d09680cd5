"""Chips per hand with their interval."""

import random

import pytest

from echo2.tasks.poker.winnings import chips_per_hand


def test_the_mean_is_in_chips_and_the_interval_around_it() -> None:
    won = chips_per_hand([0.5, -0.5, 1.0, 0.0], most=200)
    assert won.mean == 50
    assert won.mean - won.low == pytest.approx(won.high - won.mean)
    assert won.high - won.mean == pytest.approx(1.959964 * 129.0994 / 2, rel=1e-6)


def test_the_interval_has_the_mean_as_often_as_it_says() -> None:
    chance = random.Random(4)
    intervals = [chips_per_hand([chance.choice((-1.0, 1.0)) for _ in range(100)], most=1) for _ in range(400)]
    assert 0.92 < sum(one.low <= 0 <= one.high for one in intervals) / 400 < 0.98


def test_one_hand_has_no_interval() -> None:
    with pytest.raises(ValueError, match="1 hands have no interval"):
        chips_per_hand([1.0], most=2)
