"""Equality of mathematical answers, by Math-Verify.

Rules
1. The last `MOST_FORMULA_CHARACTERS` characters of a completion are read: its answer stands at its end.
2. An answer in \\boxed{} counts before any other expression; else the last one does.
3. Reading and comparing take at most `EQUALITY_SECONDS` each. They use SIGALRM, so they run in the main thread of a
   process, which the environment of a run is (coordinator/environments/). An operation that no signal interrupts is
   ended by the environment's own limit.
4. An answer that cannot be read, or not be compared in time, is wrong. Nothing that a completion holds raises.
"""

import logging
from functools import lru_cache
from typing import Any, Final

MOST_FORMULA_CHARACTERS: Final = 2_000
EQUALITY_SECONDS: Final = 2

for _name in ("math_verify.parser", "math_verify.grader", "math_verify.utils"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)  # a warning with traceback for each answer that is not read


def expression(text: str) -> list[Any]:
    """Return the expressions that Math-Verify reads in a text; none: it reads nothing."""
    import math_verify
    from math_verify.errors import TimeoutException

    try:
        return list(math_verify.parse(text, parsing_timeout=EQUALITY_SECONDS))
    except (Exception, TimeoutException):
        return []


@lru_cache(maxsize=4096)
def _reference(answer: str) -> tuple[Any, ...]:
    return tuple(expression(f"\\boxed{{{answer}}}"))


def is_equal(answer: str, said: str) -> bool:
    """Tell whether a completion ends with the answer, or with what equals it."""
    import math_verify
    from math_verify.errors import TimeoutException

    reference = list(_reference(answer))
    given = expression(said[-MOST_FORMULA_CHARACTERS:])
    if not reference or not given:
        return False
    try:
        return bool(math_verify.verify(reference, given, timeout_seconds=EQUALITY_SECONDS))
    except (Exception, TimeoutException):
        return False
