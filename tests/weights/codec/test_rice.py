"""Rice codes: the parameter is chosen from the mean."""

import numpy as np
import pytest

from echo2.weights.codec.rice import Code, rice


@pytest.mark.parametrize("mean", [0.1, 0.9, 1, 3, 10, 1000, 123456])
def test_no_other_k_beats_the_one_that_the_mean_gives_by_much(mean: float) -> None:
    values = np.random.default_rng(2).geometric(1 / (1 + mean), 20_000) - 1
    chosen = rice(values)
    assert chosen.cost(values) <= 1.002 * min(Code(k).cost(values) for k in range(25))
