"""An ask as text, within its limits, and how it rises."""

import pytest

from echo2.protocol.sealed_asks import LEAST_ASK, MOST_ASK, BadAsk, most_after, parse_ask, steps_to

ASK = 120_000_000


@pytest.mark.parametrize(
    ("text", "ask"),
    [("0.12/h", ASK), ("0.12 USD/h", ASK), ("0.12USD/h", ASK), (" 3/h ", 3_000_000_000), ("0.123456789/h", 123_456_789),
     ("0.120000000000/h", ASK)],
)  # fmt: skip
def test_an_ask_is_read_from_text_without_a_float(text: str, ask: int) -> None:
    assert parse_ask(text, "USD") == ask


WRONG_TEXTS = {
    "no unit of time": ("0.12", "is no ask"),
    "negative": ("-0.12/h", "is no ask"),
    "not a number": ("NaN/h", "is no ask"),
    "infinite": ("inf/h", "is no ask"),
    "an exponent": ("1e3/h", "is no ask"),
    "other digits": ("٣/h", "is no ask"),
    "a comma": ("0,12/h", "is no ask"),
    "empty": ("", "is no ask"),
    "control characters": ("0.12\x1b[31m/h", "is no ask"),
    "another currency": ("0.12 EUR/h", "pays in USD, not in EUR"),
    "fractions of a nano unit": ("0.1234567891/h", "more than nine decimals"),
    "too small": ("0.000000001/h", "lies from"),
    "nothing": ("0/h", "lies from"),
    "huge": ("100001/h", "lies from"),
    "longer than any ask": ("9" * 5000 + "/h", "is no ask"),
}


@pytest.mark.parametrize("case", WRONG_TEXTS)
def test_wrong_texts_are_refused_in_words(case: str) -> None:
    text, says = WRONG_TEXTS[case]
    with pytest.raises(BadAsk, match=says) as caught:
        parse_ask(text, "USD")
    assert len(str(caught.value)) < 160


def test_before_the_run_is_known_an_ask_may_name_any_currency() -> None:
    assert parse_ask("0.12 EUR/h", None) == parse_ask("0.12/h", None) == ASK


def test_an_ask_rises_by_a_quarter_per_epoch_until_it_is_the_one_wanted() -> None:
    assert steps_to(200_000_000, 100_000_000) == [125_000_000, 156_250_000, 195_312_500, 200_000_000]
    assert all(
        after <= most_after(before)
        for before, after in zip(
            [LEAST_ASK, *steps_to(MOST_ASK, LEAST_ASK)], steps_to(MOST_ASK, LEAST_ASK), strict=False
        )
    )


def test_an_ask_falls_at_once_and_a_first_one_is_as_wanted() -> None:
    assert steps_to(LEAST_ASK, MOST_ASK) == [LEAST_ASK]
    assert steps_to(MOST_ASK, None) == [MOST_ASK]
    assert steps_to(ASK, ASK) == []


@pytest.mark.parametrize("standing", [0, 1, 3])
def test_an_ask_below_the_least_that_a_run_tells_is_left_behind(standing: int) -> None:
    assert steps_to(2 * LEAST_ASK, standing)[0] == LEAST_ASK
