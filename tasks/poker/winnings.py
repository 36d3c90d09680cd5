"""Chips per hand of a policy against its opponent, with a confidence interval. Pure.

The measure for games that are too large for exact exploitability. Hands are independent draws; the interval is that of
the normal distribution, which some hundred hands justify.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

CONFIDENCE: Final = 0.95


class Winnings(NamedTuple):
    """`mean`: chips per hand. `low`, `high`: its interval."""

    mean: float
    low: float
    high: float


def chips_per_hand(rewards: Sequence[float], most: int) -> Winnings:
    """Return the chips per hand of hands with these rewards. `most`: the chips of reward 1 (`PokerRules.most`). Raises
    ValueError for fewer than two hands."""
    if len(rewards) < 2:
        raise ValueError(f"{len(rewards)} hands have no interval: play more")
    chips = [reward * most for reward in rewards]
    mean = statistics.fmean(chips)
    reach = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * statistics.stdev(chips) / math.sqrt(len(chips))
    return Winnings(mean, mean - reach, mean + reach)
