"""Amounts of money as people read them: exact, without a float. Pure.

Amounts are integers in nano units (10^-9) of a currency.
"""

import re
from typing import Final

from protocol.sealed_asks import NANO
from runtime.errors import LocalFault

_AMOUNT: Final = re.compile(r"([0-9]{1,6})(?:\.([0-9]{1,9}))?")


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


def ask_text(ask: int) -> str:
    """Return an ask as `echo2-node config set ask` reads it."""
    return f"{amount_text(ask)}/h"
