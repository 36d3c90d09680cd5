"""Amounts in a currency's hundredth part, as text with two decimals. Pure."""

import re
from typing import Final

from echo2.runtime.errors import LocalFault

_DECIMAL: Final = re.compile(r"(\d{1,13})\.(\d\d)", re.ASCII)


def decimal(amount: int) -> str:
    """Return an amount as text: 1234 as "12.34"."""
    sign, amount = ("-", -amount) if amount < 0 else ("", amount)
    return f"{sign}{amount // 100}.{amount % 100:02}"


def parse_amount(text: str) -> int:
    """Return the amount that a text such as "12.34" states. Raises `LocalFault`."""
    match = _DECIMAL.fullmatch(text)
    if match is None:
        raise LocalFault(f"{text[:40]!r} is no amount: it needs two decimals, as in 12.34")
    return int(match[1]) * 100 + int(match[2])
