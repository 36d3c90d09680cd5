"""Compute the cost of a change of version from an engine's rates, with one copy of the weights and with two.

With one copy the rows that run are finished first, in ever smaller steps, and none begins. With two copies rows of the
new version take the places that become free; each step then passes through both copies. Both lose time against steps
in which all rows are of one version:

    one copy      seconds(n) - n / rows * seconds(rows)               in a step that n old rows are left in
    two copies    seconds(n) + seconds(rows - n) - seconds(rows)      for the same step

The second exceeds the first wherever a row costs more among fewer rows: seconds(m) / m >= seconds(rows) / rows. That is
why groups are generated together at all, on any device.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np


class ChangeCost(NamedTuple):
    """Tokens that a change of version costs with one copy of the weights and with two."""

    one_copy: float
    two_copies: float


def rows_left(lengths: Sequence[int], rows: int) -> list[float]:
    """Return how many of `rows` rows are left after each step of a change. `lengths`: of completions, drawn evenly; a
    row is met in the middle of a completion, of a long one more often than of a short one."""
    return [rows * sum(max(0, length - step) for length in lengths) / sum(lengths) for step in range(max(lengths))]


def change_cost(left: Sequence[float], rates: Mapping[int, float], rows: int) -> ChangeCost:
    """Return the cost of a change. `left`: old rows in each of its steps. `rates`: tokens per second by number of rows,
    with `rows` among them."""
    numbers = sorted(rates)
    seconds = [number / rates[number] for number in numbers]

    def step(count: float) -> float:
        return float(np.interp(count, [0, *numbers], [0.0, *seconds]))

    full = step(rows)
    one = sum(step(count) - count / rows * full for count in left)
    two = sum(step(count) + step(rows - count) - full for count in left)
    return ChangeCost(one * rates[rows], two * rates[rows])
