"""Amounts of money as people read them: exact, without a float. Pure.

Amounts are integers in nano units (10^-9) of a currency.
"""

import re
from fractions import Fraction
from typing import Final

from echo2.protocol.sealed_asks import NANO
from echo2.runtime.errors import LocalFault

_AMOUNT: Final = re.compile(r"([0-9]{1,6})(?:\.([0-9]{1,9}))?")
_SHOWN_DIGITS: Final = 5


class BadAmount(LocalFault):
    """A text that is no amount of money. The message says why."""


def parse_amount(text: str) -> int:
    """Return an amount from text: a decimal number, not negative, below a million. Raises `BadAmount`."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise BadAmount(
            f"{text[:40]!r} is no amount: write a number below 1000000 with at most nine decimals, as in 0.32"
        )
    return int(match[1]) * NANO + int((match[2] or "").ljust(9, "0"))


def amount_text(amount: int, currency: str = "") -> str:
    """Return an amount as a decimal number: at least two decimals, and as many as it has."""
    whole, part = divmod(abs(amount), NANO)
    decimals = f"{part:09}".rstrip("0").ljust(2, "0")
    return f"{'-' if amount < 0 else ''}{whole}.{decimals}{currency and ' '}{currency}"


def rounded_text(amount: Fraction | int | None) -> str:
    """Return an amount for people: `_SHOWN_DIGITS` significant digits, whole units always, at most nine decimals, no
    exponent; "-" for none. One that is not zero never looks like zero."""
    if amount is None:
        return "-"
    nano = abs(Fraction(amount))
    if 0 < nano < 1:
        return f"{'-' if amount < 0 else ''}<0.000000001"
    units = nano / NANO
    whole = len(str(int(units))) if units >= 1 else 0
    zeros = 0 if units >= 1 or not units else 9 - len(str(int(nano)))
    decimals = max(0, min(9, _SHOWN_DIGITS - whole + zeros))
    scaled = round(units * 10**decimals)
    text = f"{scaled // 10**decimals}.{scaled % 10**decimals:0{decimals}}" if decimals else str(scaled)
    return ("-" if amount < 0 and scaled else "") + (text.rstrip("0").rstrip(".") if decimals else text)


def ask_text(ask: int) -> str:
    """Return an ask as `echo2-node config set ask` reads it."""
    return f"{amount_text(ask)}/h"
