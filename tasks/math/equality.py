"""Equality of mathematical answers: notation brought to one form, plain numbers compared here, the rest by Math-Verify.

Rules
1. The answer of a completion is its last \\boxed{}, or else the last expression of its last `MOST_FORMULA_CHARACTERS`
   characters.
2. The same text is right, and so are the same words in any letter case. A choice's letter is compared where the right
   answer is one, and left out elsewhere.
3. Two plain numbers are compared exactly. A decimal of six significant digits is right for a fraction without a
   decimal that ends, if it rounds it or cuts it off.
4. An answer too large to be compared is wrong, always (answer_size.py).
5. Math-Verify compares the rest. Numbers that it calls equal are compared again, relative to their size: it takes
   1/2^98 for 1/2^99. An equation of two numbers that differ is wrong: it takes 5 = 4 for 4.
6. All that is done for a completion has `CPU_SECONDS` of CPU time, and four times as much at a second try; then it is
   wrong, which is logged and counted. So a reward does not depend on a machine's load. Both tries together take a
   quarter of `environment.seconds`, whose end would mask the rollout. Nothing that a completion holds raises.
"""

import itertools
import logging
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

from echo2.tasks.math.answer_size import is_too_large
from echo2.tasks.math.cpu_limit import OutOfTime, cpu_limit
from echo2.tasks.math.notation import PlainNumber, assignment_of, choice_of, count_of, number_of, plain, words_of
from echo2.tasks.math.row_fields import final_answer

MOST_FORMULA_CHARACTERS: Final = 2_000
CPU_SECONDS: Final = 0.5
SECOND_TRY: Final = 4
"""CPU time of a second try, as a multiple of the first one's."""
ROUNDED_DIGITS: Final = 6
"""Least significant digits of a decimal that stands for a number which it is not."""
_SAME: Final = 1e-12
_SAME_AS_DECIMAL: Final = 1e-5

for _name in ("math_verify.parser", "math_verify.grader", "math_verify.utils"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)  # a warning with traceback for each answer that is not read
_log = logging.getLogger(__name__)
_numbers = itertools.count(1)


def is_equal(answer: str, said: str) -> bool:
    """Tell whether a completion ends with the answer, or with what equals it."""
    return is_any((answer,), said)


def is_any(answers: Iterable[str], said: str) -> bool:
    """Tell whether a completion ends with one of the answers, or with what equals it."""
    return within_limits(lambda: any(_is_equal(answer, said[-MOST_FORMULA_CHARACTERS:]) for answer in answers))


def _is_equal(answer: str, said: str) -> bool:
    boxed = "\\boxed{" in said
    given, right = plain(final_answer(said) if boxed else said), plain(answer)
    letter, behind = choice_of(given)
    right_letter, right_behind = choice_of(right)
    if right_letter and not right_behind:
        return letter == right_letter
    if letter and behind:
        given = behind
    if _squeeze(given) == _squeeze(right):
        return True
    if (right_words := words_of(right)) is not None and boxed:
        return words_of(given) == right_words
    if is_too_large(given):
        return False
    (name, value), (right_name, right_value) = assignment_of(given), assignment_of(right)
    number, right_number = number_of(count_of(value)), number_of(right_value)
    if number is not None and right_number is not None and (not name or not right_name or name == right_name):
        return _is_same_number(number, right_number)
    read = f"\\boxed{{{given}}}" if boxed else given
    return _verify(right, read)


def expression(text: str) -> list[Any]:
    """Return the expressions that Math-Verify reads in a text; none: it reads nothing."""
    import math_verify

    try:
        return list(math_verify.parse(text, parsing_timeout=None))
    except Exception:
        return []


def _squeeze(text: str) -> str:
    return "".join(text.split())


def _is_same_number(one: PlainNumber, other: PlainNumber) -> bool:
    if one.value == other.value:
        return True
    if bool(one.digits) == bool(other.digits):
        return False
    decimal, exact = (one, other) if one.digits else (other, one)
    cut_off = abs(exact.value) - abs(decimal.value)
    near = abs(decimal.value - exact.value) <= decimal.unit / 2 or 0 < cut_off < decimal.unit
    endless = (10 ** exact.value.denominator.bit_length()) % exact.value.denominator != 0
    return endless and decimal.digits >= ROUNDED_DIGITS and decimal.value * exact.value > 0 and near


def within_limits(compare: Callable[[], bool], seconds: float = CPU_SECONDS) -> bool:
    """Return a comparison's verdict; one that raises, or runs out of CPU time twice, is False (rule 6)."""
    for limit in (seconds, SECOND_TRY * seconds):
        try:
            with cpu_limit(limit):
                return compare()
        except OutOfTime:
            continue
        except Exception:
            return False
    _log.warning("an answer could not be compared in time, and is wrong: number %d here", next(_numbers))
    return False


@lru_cache(maxsize=4096)
def _reference(answer: str) -> tuple[Any, ...]:
    return tuple(expression(f"\\boxed{{{answer}}}"))


def _verify(right: str, given: str) -> bool:
    import math_verify

    reference, read = list(_reference(right)), expression(given)
    if not reference or not read:
        return False
    return bool(math_verify.verify(reference, read, timeout_seconds=None)) and _is_sound(reference[0], read[0])


def _is_sound(right: Any, given: Any) -> bool:
    """Tell whether a verdict of Math-Verify's stands (rule 5)."""
    sides = _sides(given)
    if any(_differ(one, other) for one, other in pairwise(sides)):
        return False
    return not _differ(_sides(right)[-1], sides[-1])


def _sides(value: Any) -> list[Any]:
    """Return the sides of an equation, or of a chain of them; a value by itself is one."""
    from latex2sympy2_extended.logic import And
    from sympy import Eq

    if isinstance(value, Eq):
        return [value.lhs, value.rhs]
    if isinstance(value, And) and all(isinstance(one, Eq) for one in value._unsorted_args):
        return [value._unsorted_args[0].lhs, *(one.rhs for one in value._unsorted_args)]
    return [value]


def _differ(one: Any, other: Any) -> bool:
    """Tell whether both are numbers, and different ones."""
    from sympy import Expr, Float, UnevaluatedExpr

    both = (one, other)
    if not all(isinstance(side, Expr) and not side.free_symbols for side in both):
        return False
    if any(side.has(UnevaluatedExpr) for side in both):  # a percentage, which may stand for its number
        return False
    values = [side.doit().evalf(30) for side in both]
    if not all(value.is_number and value.is_finite for value in values):
        return False
    most = _SAME_AS_DECIMAL if any(side.has(Float) for side in both) else _SAME
    return bool(abs(values[0] - values[1]) > most * max(map(abs, values)))
