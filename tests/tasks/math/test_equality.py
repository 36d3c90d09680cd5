"""Verdicts on answers: a table by kind, and pairs of numbers in every notation beside near misses."""

# ruff: noqa: RUF001  (signs that look like others are what this is about)
import random
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

import pytest

from tests.tasks.math.answer_table import IN_SENTENCES, TABLE

pytest.importorskip("math_verify", reason="needs the extra math")

from echo2.coordinator.environments.limits import Limits
from echo2.coordinator.settings.config import EnvironmentSection
from echo2.tasks.math import equality
from echo2.tasks.math.answer_size import is_too_large
from echo2.tasks.math.cpu_limit import OutOfTime, cpu_limit
from echo2.tasks.math.equality import CPU_SECONDS, SECOND_TRY, is_any, is_equal, within_limits
from echo2.tasks.math.notation import number_of, plain


@pytest.mark.slow
def test_no_wrong_answer_of_the_table_is_right_and_at_most_three_right_ones_are_wrong() -> None:
    verdicts = [
        (kind, row.answer, said, said in row.right, is_equal(row.answer, f"so \\boxed{{{said}}}."))
        for kind, rows in TABLE.items()
        for row in rows
        for said in (*row.right, *row.wrong)
    ]
    assert len(verdicts) >= 300
    assert [verdict for verdict in verdicts if verdict[4] and not verdict[3]] == []
    assert len([verdict for verdict in verdicts if verdict[3] and not verdict[4]]) <= 3


@pytest.mark.parametrize(("answer", "said", "right"), IN_SENTENCES)
def test_the_answer_of_a_sentence_is_its_last_box_or_its_last_expression(answer: str, said: str, right: bool) -> None:
    assert is_equal(answer, said) is right


class Notation(NamedTuple):
    """A notation of numbers. `write`: None for a value that it cannot write."""

    name: str
    write: Callable[[Fraction], str | None]


def _decimal(value: Fraction) -> str | None:
    """Return a decimal that ends; None: it does not within 12 places."""
    if (10**12) % value.denominator:
        return None
    return f"{Decimal(value.numerator) / Decimal(value.denominator):f}"


def _whole(value: Fraction, form: Callable[[int], str]) -> str | None:
    return form(int(value)) if value.denominator == 1 else None


def _grouped(mark: str) -> Callable[[Fraction], str | None]:
    return lambda value: _whole(value, lambda number: f"{number:,}".replace(",", mark))


def _over(form: str) -> Callable[[Fraction], str]:
    sign = {True: "-", False: ""}
    return lambda value: form.format(sign[value < 0], abs(value.numerator), value.denominator)


def _around(form: str) -> Callable[[Fraction], str | None]:
    return lambda value: None if (text := _decimal(value)) is None else form.replace("#", text)


def _scientific(form: str) -> Callable[[Fraction], str | None]:
    def write(value: Fraction) -> str | None:
        if not value or _decimal(value) is None:
            return None
        mantissa, _, power = f"{Decimal(value.numerator) / Decimal(value.denominator):.18e}".partition("e")
        return form.format(mantissa.rstrip("0").rstrip("."), int(power))

    return write


NOTATIONS = (
    Notation("decimal", _around("#")),
    Notation("a formula", _around("$#$")),
    Notation("commas", _grouped(",")),
    Notation("thin spaces", _grouped("\u2009")),
    Notation("spaces", _grouped(" ")),
    Notation("LaTeX spaces", _grouped(r"\,")),
    Notation("LaTeX commas", _grouped("{,}")),
    Notation("a slash", _over("{}{}/{}")),
    Notation("a fraction", _over(r"{}\frac{{{}}}{{{}}}")),
    Notation("a large fraction", _over(r"{}\dfrac{{{}}}{{{}}}")),
    Notation("an exponent", _scientific("{}e{}")),
    Notation("a power of ten", _scientific(r"{} \times 10^{{{}}}")),
    Notation("a degree", _around("#°")),
    Notation("LaTeX degrees", _around(r"#^{\circ}")),
    Notation("an equation", _around("x = #")),
    Notation("a minus of Unicode", lambda value: None if (text := _decimal(value)) is None else text.replace("-", "−")),
    Notation("wide digits", lambda value: _whole(value, lambda number: str(number).translate(WIDE))),
    Notation(
        "a trailing zero", lambda value: None if (text := _decimal(value)) is None or "." not in text else f"{text}0"
    ),
)
WIDE = str.maketrans("0123456789", "０１２３４５６７８９")


def _values(chance: random.Random) -> Fraction:
    kind = chance.randrange(4)
    if kind == 0:
        return Fraction(chance.randrange(-1000, 1000))
    if kind == 1:
        return Fraction(chance.randrange(-(10**9), 10**9))
    if kind == 2:
        return Fraction(chance.randrange(-(10**6), 10**6), 10 ** chance.randrange(1, 6))
    return Fraction(chance.randrange(-300, 300), chance.randrange(1, 60))


def _missed(value: Fraction, chance: random.Random) -> Fraction:
    """Return another value that is near, or that a slip would give."""
    slips = (
        value + 1,
        value - 1,
        -value,
        value * 10,
        value / 10,
        value + Fraction(1, 100),
        value * 2,
        1 / value if value else value,
    )
    other = chance.choice(slips)
    return other if other != value else value + 1


def pairs(number: int, seed: int, *, equal: bool) -> Iterator[tuple[str, str]]:
    """Yield pairs of a right answer and what is said, each in a notation of its own."""
    chance = random.Random(seed)
    while number:
        value = _values(chance)
        said = value if equal else _missed(value, chance)
        one, other = chance.choice(NOTATIONS).write(value), chance.choice(NOTATIONS).write(said)
        if one is not None and other is not None:
            number -= 1
            yield one, other


def _verdicts(number: int, *, equal: bool) -> list[tuple[str, str]]:
    """Return the pairs that are called right."""
    return [
        (answer, said) for answer, said in pairs(number, 7, equal=equal) if is_equal(answer, f"so \\boxed{{{said}}}.")
    ]


@pytest.mark.slow
def test_numbers_are_right_in_every_notation_and_near_misses_never() -> None:
    assert len(_verdicts(10_000, equal=True)) >= 9_990
    assert _verdicts(10_000, equal=False) == []


def test_some_numbers_are_right_in_every_notation_and_near_misses_never() -> None:
    assert len(_verdicts(100, equal=True)) == 100
    assert _verdicts(100, equal=False) == []


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("2√3", r"2\sqrt{3}"),
        ("√(x+1)", r"\sqrt{x+1}"),
        ("3½", r"(3+\frac{1}{2})"),
        ("½", r"\frac{1}{2}"),
        ("x²", "x^{2}"),
        ("90°", "90"),
        (r"\left( 1,2 \right)", "( 1,2 )"),
        ("(1,234)", "(1,234)"),
        ("1.5e3", r"1.5 \times 10^{3}"),
        ("12 345 678", "12345678"),
        ("٤٢", "42"),
    ],
)
def test_typography_is_brought_to_one_form(written: str, read: str) -> None:
    assert plain(written) == read


def test_a_plain_number_is_read_exactly() -> None:
    for text, value in {
        "-0.50": Fraction(-1, 2),
        r"\frac{-5}{8}": Fraction(-5, 8),
        "(3+\\frac{1}{2})": Fraction(7, 2),
        r"1.5 \times 10^{-3}": Fraction(3, 2000),
        "7.": Fraction(7),
    }.items():
        number = number_of(text)
        assert number.value == value
    for text in ("x", "1/0", "1,2", "2^3", ""):
        assert number_of(text) is None


@pytest.mark.parametrize("text", ["9^{9^{9}}", "9^9^9", "2^{100001}", "2001!", "3!!", "(3!)!", "1" * 1001, "(" * 41])
def test_an_answer_too_large_to_be_compared_is_known_by_its_text(text: str) -> None:
    assert is_too_large(text)


@pytest.mark.parametrize("text", ["2^{2024}", "2^{3^4}", "100!", "x^{y^z}", "10^{-7}", "1" * 1000, "e^{-x^2}"])
def test_an_answer_that_a_person_writes_is_not_too_large(text: str) -> None:
    assert not is_too_large(text)


def test_an_answer_that_takes_too_long_is_wrong_after_a_second_try_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tries = list[int]()

    def compare() -> bool:
        tries.append(1)
        while True:
            pass

    assert within_limits(compare, 0.01) is False
    assert len(tries) == 2
    assert "could not be compared in time" in caplog.text


def test_a_tower_of_powers_without_a_box_is_wrong_and_raises_nothing() -> None:
    assert is_equal("5", "2^" * 999) is False


def test_both_tries_end_well_before_the_environment_is_ended() -> None:
    """The end of the environment would mask the rollout, so that an answer that hangs costs its policy nothing."""
    assert 4 * (1 + SECOND_TRY) * CPU_SECONDS <= Limits().seconds == EnvironmentSection().seconds


def test_several_right_answers_share_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equality, "_is_equal", lambda answer, said: all(iter(int, 1)))
    before = time.process_time()
    assert is_any(["1"] * 9, "2") is False
    assert time.process_time() - before < 1.5 * (1 + SECOND_TRY) * CPU_SECONDS


def test_a_comparison_that_raises_is_wrong() -> None:
    assert within_limits(lambda: 1 // 0 == 0) is False


def test_a_limit_of_cpu_time_ends_code_that_catches_every_exception() -> None:
    def never_ends() -> None:
        while True:
            try:
                sum(range(1000))
            except Exception:
                continue

    with pytest.raises(OutOfTime), cpu_limit(0.01):
        never_ends()
