"""Numbers in messages to people, with enough digits to make sense.

1. Numbers that differ never look alike: "off by 0.00104, at most 0.00100", not "off by 0.001, at most 0.001". So
   numbers that a message compares are written together, with the same number of decimals.
2. Each shows three significant digits at least, or is exact with fewer; nothing that is not zero is written as zero.
3. No exponent, unless more than `MOST` decimals or digits would be needed.
"""

import math
from typing import Final

MOST: Final = 15
"""Decimals, and digits before the point, at most: what a float holds."""
_SIGNIFICANT: Final = 3


def apart(*values: float, decimals: int = 0) -> tuple[str, ...]:
    """Return the texts of numbers that stand in one message. `decimals`: at least so many."""
    for count in range(decimals, MOST + 1):
        texts = tuple(f"{value:.{count}f}" for value in values)
        told = all(_tells(value, text) for value, text in zip(values, texts, strict=True))
        if told and len(set(texts)) == len(set(values)):
            return texts
    return tuple(repr(float(value)) for value in values)


def figure(value: float) -> str:
    """Return the text of one number."""
    return apart(value)[0]


def _tells(value: float, text: str) -> bool:
    """Tell whether a text shows its number well enough (rules 2 and 3)."""
    if not math.isfinite(value):
        return True
    if abs(value) >= 10**MOST:
        return False
    shown = text.lstrip("-").replace(".", "").lstrip("0")
    return len(shown) >= _SIGNIFICANT or math.isclose(float(text), value, rel_tol=1e-9)
