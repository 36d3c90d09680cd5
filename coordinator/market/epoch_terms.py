"""The limits of an epoch's terms. Pure.

Rules
1. Terms are fixed by an entry before the asks of the epoch close: they follow from no ask. They are announced once per
   epoch.
2. All numbers are within the limits below, so that every sum of the market fits into a signed integer of 64 bits.
"""

from fractions import Fraction
from typing import Final

from echo2.coordinator.market.entries import EpochAnnounced
from echo2.coordinator.market.prices import PriceTerms
from echo2.runtime.errors import LocalFault
from echo2.runtime.units import DAY

MOST_MONEY: Final = 10**18
"""Nano units: of a budget."""
MOST_PRICE: Final = 10**15
"""Nano units per RE."""
MOST_NEED: Final = 10**15
"""Milli-RE per hour."""
MOST_RATE: Final = 10**12
"""Milli-RE per hour: of a benchmark."""
PER_MILLE: Final = 1000
_LIMITS: Final[dict[str, tuple[int, int]]] = {
    "epoch": (1, 1 << 53),
    "milliseconds": (1000, 7 * DAY),
    "need": (0, MOST_NEED),
    "reserve": (1, MOST_PRICE),
    "budget": (0, MOST_MONEY),
    "newcomers": (0, PER_MILLE),
    "cap": (1, PER_MILLE),
    "run_off": (0, DAY),
}


class BadTerms(LocalFault):
    """Terms, or a step of an epoch, that are refused. The message says why."""


def check_terms(terms: EpochAnnounced, at: int) -> None:
    """Check the terms of an epoch that are announced at `at`. Raises `BadTerms`."""
    for name, (least, most) in _LIMITS.items():
        if not least <= getattr(terms, name) <= most:
            raise BadTerms(f"{name} of an epoch lies from {least} to {most}, not at {str(getattr(terms, name))[:40]}")
    if terms.closes <= at:
        raise BadTerms(f"asks close at {terms.closes}, and the terms must be known before; it is {at}")


def check_beacon(beacon: bytes) -> None:
    """Check the beacon of an epoch's lottery. Raises `BadTerms`."""
    if len(beacon) != 32:
        raise BadTerms(f"the beacon is the SHA-256 of a LedgerHead: 32 bytes, not {len(beacon)}")


def price_terms(terms: EpochAnnounced, beacon: bytes, budget: int) -> PriceTerms:
    """Return the terms of the prices. `beacon`: beacon of the lottery. `budget`: budget of the active nodes, with
    forfeits."""
    cap = None if terms.cap == PER_MILLE else Fraction(terms.cap, PER_MILLE)
    share = Fraction(terms.newcomers, PER_MILLE)
    return PriceTerms(terms.need, terms.reserve, budget, terms.milliseconds, beacon, share, cap)
