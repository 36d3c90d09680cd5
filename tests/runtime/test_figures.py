"""Numbers in messages: those that differ look different, and none is shown with too few digits."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.runtime.figures import apart, figure, number_of, size


@pytest.mark.parametrize(
    ("values", "texts"),
    {
        "a log-probability narrowly off": ((0.00104, 0.001), ("0.00104", "0.00100")),
        "off by far": ((5.25, 0.001), ("5.250", "0.001")),
        "off by a rounding": ((0.0010000001, 0.001), ("0.0010000001", "0.0010000000")),
        "a clock in whole seconds": ((3600.0, 600.0), ("3600", "600")),
        "a clock half a second beyond": ((600.4, 600.0), ("600.4", "600.0")),
        "gigabytes just below": ((49.96, 50.0), ("49.96", "50.00")),
        "a rise just below": ((0.0996, 0.1), ("0.0996", "0.1000")),
        "two that are one": ((0.25, 0.25), ("0.25", "0.25")),
        "small": ((0.0004,), ("0.0004",)),
        "long": ((1234.5678,), ("1235",)),
        "a third": ((1 / 3,), ("0.333",)),
        "nothing": ((0.0,), ("0",)),
        "below zero": ((-0.0312345, 0.0), ("-0.0312", "0.0000")),
        "beyond all decimals": ((1e-30, 1.0), ("1e-30", "1.0")),
        "beyond all digits": ((1e300,), ("1e+300",)),
        "no number": ((math.nan, 1.0), ("nan", "1")),
        "without end": ((-math.inf, 0.5), ("-inf", "0.5")),
    }.values(),
)
def test_numbers_of_one_message_are_written_together(values: tuple[float, ...], texts: tuple[str, ...]) -> None:
    assert apart(*values) == texts


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (27_000, "27 kB"), (999_600, "1 MB"), (67_362_791_424, "67.4 GB"), (5e15, "5e+03 TB")],
)
def test_bytes_are_written_in_the_unit_in_which_they_have_three_digits(nbytes: float, text: str) -> None:
    assert size(nbytes) == text


def test_at_least_as_many_decimals_as_are_asked_for() -> None:
    assert apart(0.0, 0.1, decimals=3) == ("0.000", "0.100")


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_two_numbers_look_alike_only_where_they_are_alike(one: float, other: float) -> None:
    first, second = apart(one, other)
    assert (first == second) == (one == other)
    assert float(first) == pytest.approx(one, rel=5e-3)
    assert float(figure(other)) == pytest.approx(other, rel=5e-3)


def test_a_noun_is_singular_behind_one_alone() -> None:
    counted = [number_of(count, noun) for noun in ("payment", "entry", "key", "signed head") for count in (0, 1, 2)]
    assert counted == [
        "0 payments", "1 payment", "2 payments", "0 entries", "1 entry", "2 entries", "0 keys", "1 key", "2 keys",
        "0 signed heads", "1 signed head", "2 signed heads",
    ]  # fmt: skip
