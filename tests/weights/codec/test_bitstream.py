"""Bit streams of the codec: values and positions come back, at the stated cost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.weights.codec.bitstream import Reader, Writer
from echo2.weights.codec.rice import MAX_ELIAS, Code, cheapest, rice
from echo2.weights.errors import BadPayload


@given(st.lists(st.integers(0, 70_000), min_size=1, max_size=300), st.integers(0, 24), st.booleans(), st.booleans())
def test_codes_come_back_and_cost_what_they_say(numbers: list[int], k: int, elias: bool, signs: bool) -> None:
    values, code = np.array(numbers, np.int32), Code(k, elias)
    writer = Writer()
    if signs:
        writer.put(values & 1, None)
    writer.put(values, code)
    codes, fields = writer.bits()
    reader = Reader(memoryview(codes), memoryview(fields))
    if signs:
        assert reader.flags(len(values)).tolist() == [bool(number & 1) for number in numbers]
    assert reader.take(len(values), code, max(numbers) + 1).tolist() == numbers
    reader.end()
    padded = 8 * (len(codes) + len(fields)) - signs * len(values)
    assert padded - 14 <= code.cost(values) <= padded
    assert cheapest(values)[1] <= min(rice(values).cost(values), Code(MAX_ELIAS, True).cost(values))


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=300), st.integers(0, 12))
def test_places_come_back_from_their_gaps(gaps: list[int], k: int) -> None:
    writer = Writer()
    writer.put(np.array(gaps, np.int32), Code(k))
    codes, fields = (memoryview(run) for run in writer.bits())
    places = [sum(gaps[: number + 1]) + number for number in range(len(gaps))]
    assert Reader(codes, fields).places(len(gaps), Code(k), places[-1] + 1).tolist() == places
    with pytest.raises(BadPayload):
        Reader(codes, fields).places(len(gaps), Code(k), places[-1])
