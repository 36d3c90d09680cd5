"""Numbers in messages to people, with enough digits to make sense.

1. Different numbers never look alike: "off by 0.00104, at most 0.00100", not "off by 0.001, at most 0.001". So all
   numbers that a message compares are formatted in one call, with the same number of decimals.
2. Each shows at least three significant digits, or is exact with fewer; only zero is written as zero.
3. No exponent, unless more than `MOST_DECIMALS` decimals or digits would be needed.
4. A counted noun is singular behind 1: `number_of`.
"""

import math
from typing import Final

MOST_DECIMALS: Final = 15
"""Most decimals, and most digits before the point: the precision of a float."""
_SIGNIFICANT_DIGITS: Final = 3
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")


def apart(*values: float, decimals: int = 0) -> tuple[str, ...]:
    """Format the numbers of one message, so that different numbers look different. `decimals`: least number of
    decimals."""
    for count in range(decimals, MOST_DECIMALS + 1):
        texts = tuple(f"{value:.{count}f}" for value in values)
        told = all(_tells(value, text) for value, text in zip(values, texts, strict=True))
        if told and len(set(texts)) == len(set(values)):
            return texts
    return tuple(repr(float(value)) for value in values)


def figure(value: float) -> str:
    """Format one number."""
    return apart(value)[0]


def number_of(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 node", "2 nodes", "3 entries". `noun`: noun in the singular, its plural
    regular; words in front of it stay ("reference rollout")."""
    if count == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2:-1] not in "aeiou" else f"{noun}s"
    return f"{count} {plural}"


def size(value: float) -> str:
    """Format a number of bytes, in powers of 1000."""
    power = 0
    while abs(value) >= 999.5 and power < len(_UNITS) - 1:
        value /= 1000
        power += 1
    return f"{value:.3g} {_UNITS[power]}"


def _tells(value: float, text: str) -> bool:
    """Return whether a text shows enough digits of its number (rules 2 and 3)."""
    if not math.isfinite(value):
        return True
    if abs(value) >= 10**MOST_DECIMALS:
        return False
    shown = text.lstrip("-").replace(".", "").lstrip("0")
    return len(shown) >= _SIGNIFICANT_DIGITS or math.isclose(float(text), value, rel_tol=1e-9)
