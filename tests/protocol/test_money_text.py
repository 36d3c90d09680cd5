"""Amounts are shown exactly, and asks as they are read."""

from fractions import Fraction

import pytest

from echo2.protocol.money_text import BadAmount, amount_text, ask_text, parse_amount, rounded_text
from echo2.protocol.sealed_asks import LEAST_ASK, MOST_ASK, parse_ask


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0.00"), (1, "0.000000001"), (120_000_000, "0.12"), (-5_100_000_000, "-5.10"), (10**14, "100000.00")],
)
def test_an_amount_has_all_its_decimals_and_two_at_least(amount: int, text: str) -> None:
    assert amount_text(amount) == text
    assert amount_text(amount, "USD") == f"{text} USD"


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (None, "-"), (0, "0"), (1, "0.000000001"), (Fraction(1, 3), "<0.000000001"), (Fraction(-1, 3), "-<0.000000001"),
        (240, "0.00000024"), (123_456, "0.00012346"), (999_999_999, "1"), (1_234_567_890, "1.2346"),
        (-1_234_567_890, "-1.2346"), (123_456_789_012_345, "123457"), (10**18, "1000000000"), (50_000_000, "0.05"),
    ],
)  # fmt: skip
def test_a_rounded_amount_has_no_exponent_and_looks_like_zero_only_if_it_is(
    amount: Fraction | int | None, text: str
) -> None:
    assert rounded_text(amount) == text


@pytest.mark.parametrize("ask", [LEAST_ASK, 123_456_789, MOST_ASK])
def test_an_ask_is_shown_as_it_is_read(ask: int) -> None:
    assert parse_ask(ask_text(ask), "USD") == ask


@pytest.mark.parametrize(
    ("text", "amount"), [("0.32", 320_000_000), ("0", 0), (" 12 ", 12 * 10**9), ("0.000000001", 1)]
)
def test_an_amount_is_read_without_a_float(text: str, amount: int) -> None:
    assert parse_amount(text) == amount


@pytest.mark.parametrize("text", ["", "-1", "NaN", "1e3", "0,32", "0.0000000001", "1000000", "9" * 5000, "1\x1b[31m"])
def test_a_text_that_is_no_amount_is_refused_in_words(text: str) -> None:
    with pytest.raises(BadAmount, match="is no amount") as refused:
        parse_amount(text)
    assert str(refused.value).isprintable()
