"""Each node's share of all measured rates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.coordinator.leases.node_rates import RATE_KEPT_MS, NodeRates


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0.001, 1)), min_size=1, max_size=60))
def test_parts_by_rate_add_up_to_one(notes: list[tuple[int, float]]) -> None:
    rates = NodeRates()
    for number, rate in notes:
        rates.note(bytes([number]), rate, 0)
    assert sum(rates.part(bytes([number])) for number in {number for number, _ in notes}) == pytest.approx(1)
    rates.note(b"one", 0.5, RATE_KEPT_MS + 1)
    assert rates.part(b"one") == 1
