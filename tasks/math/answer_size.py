"""Answers too large to be compared, known by their text: the same text is always or never one.

A comparison that hangs would make the reward a matter of the machine's load. What is refused here is no answer that a
person writes: towers of powers, factorials of thousands, numbers of a thousand digits.
"""

import re
from typing import Final

MOST_DIGITS: Final = 1_000
MOST_EXPONENT: Final = 100_000
MOST_FACTORIAL: Final = 2_000
MOST_DEPTH: Final = 40
_FACTORIAL: Final = re.compile(r"(\d+)\s*!")
_REPEATED_FACTORIAL: Final = re.compile(r"![\s)}\]]*!")
_POWER: Final = re.compile(r"(?:\^|\*\*)\s*")
_NUMERIC_POWER: Final = re.compile(r"(\d+)\s*(?:\^|\*\*)\s*\{?\s*(\d+)\s*\}?")


def is_too_large(text: str) -> bool:
    """Tell whether an answer is too large to be compared."""
    return (
        re.search(rf"\d{{{MOST_DIGITS + 1}}}", text) is not None
        or _depth(text) > MOST_DEPTH
        or any(len(number) > 4 or int(number) > MOST_FACTORIAL for number in _FACTORIAL.findall(text))
        or _REPEATED_FACTORIAL.search(text) is not None
        or any(_is_large(exponent) for exponent in _exponents(text))
    )


def _depth(text: str) -> int:
    """Return how deep the brackets of a text are nested."""
    depth = most = 0
    for character in text:
        depth += (character in "({[") - (character in ")}]")
        most = max(most, depth)
    return most


def _exponents(text: str) -> list[str]:
    """Return what stands behind each sign of a power, up to the end of its braces or of its number."""
    return [_group(text, sign.end()) for sign in _POWER.finditer(text)]


def _group(text: str, start: int) -> str:
    if text[start : start + 1] not in ("{", "("):
        said = re.match(r"[+-]?[\d.]+|\\?\w+", text[start:])
        inner = said[0] if said else text[start : start + 1]
        behind = _POWER.match(text, start + len(inner))
        return f"{inner}^{_group(text, behind.end())}" if behind else inner
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] in "({") - (text[place] in ")}")
        if depth == 0:
            return text[start + 1 : place]
    return text[start + 1 :]


def _is_large(exponent: str) -> bool:
    """Tell whether an exponent is more than `MOST_EXPONENT`, its own powers worked out from the innermost on."""
    for _ in range(MOST_DEPTH):
        power = _NUMERIC_POWER.search(exponent)
        if power is None:
            break
        base, above = int(power[1][:12]), int(power[2][:12])
        if base > 1 and above * base.bit_length() > 64:
            return True
        exponent = f"{exponent[: power.start()]}{base**above}{exponent[power.end() :]}"
    return any(len(number) > 6 or int(number) > MOST_EXPONENT for number in re.findall(r"\d+", exponent))
