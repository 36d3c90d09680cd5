"""Asks: the price per hour for which a node offers itself. Sealed, then opened. Pure.

Asks are integers in nano units of the run's currency per hour.

Rules
1. For an epoch a node first sends the hash of its ask (`commitment`), until the epoch's asks close, and at most once.
   The terms of the epoch and its beacon are fixed before (epoch_terms.py).
2. Between that time and the opening of the epoch it opens the ask. One that was not sealed, or not so, is refused.
3. The last opened ask stands until another one is opened. One that stays sealed changes nothing.
4. An ask lies from `LEAST` to `MOST`, and is at most 5/4 of the one that stands. The first one has no such limit.
5. As text an ask is a decimal number of whole nano units, then optionally a currency, then `/h`: "0.12/h", "0.12
   USD/h".
"""

import hashlib
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final, NamedTuple

import msgspec

from runtime.errors import LocalFault

NANO: Final = 10**9
LEAST: Final = 1_000
MOST: Final = 10**14
"""100,000 units per hour."""
RISE: Final = Fraction(5, 4)
SALT: Final = 16
"""Bytes of salt, at least."""
_TEXT: Final = re.compile(r"(?P<whole>[0-9]{1,12})(\.(?P<part>[0-9]{1,30}))?( ?(?P<currency>[A-Z]{3}))?/h")


class BadAsk(LocalFault):
    """An ask that is refused. The message says why, and which one would be taken."""


class StandingAsks(NamedTuple):
    """The asks that stand, and the commitments for the epoch that comes."""

    asks: Mapping[str, int]
    sealed: Mapping[str, bytes]


def commitment(run: bytes, node: str, epoch: int, ask: int, salt: bytes) -> bytes:
    """Return the hash by which a node binds itself to an ask. `node`: its peer id."""
    return hashlib.sha256(msgspec.msgpack.encode(["ask", run, node, epoch, ask, salt])).digest()


def parse_ask(text: str, currency: str) -> int:
    """Return an ask from text (rule 5). Raises `BadAsk`."""
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise BadAsk(f"{text[:40]!r} is no ask: write a number of {currency} per hour, as in 0.12/h")
    if match["currency"] not in (None, currency):
        raise BadAsk(f"the run pays in {currency}, not in {match['currency']}: state the ask in {currency}")
    part = (match["part"] or "").rstrip("0")
    if len(part) > 9:
        raise BadAsk(f"{text.strip()} has more than nine decimals: the smallest unit is 0.000000001 {currency}")
    return checked(int(match["whole"]) * NANO + int(part.ljust(9, "0")))


def checked(ask: object) -> int:
    """Return `ask` if it is a whole number within the limits (rule 4). Raises `BadAsk`."""
    if not isinstance(ask, int) or isinstance(ask, bool):
        raise BadAsk(f"an ask is a whole number of nano units per hour, not {str(ask)[:40]!r}")
    if ask < 0:
        raise BadAsk("an ask is not negative")
    if not LEAST <= ask <= MOST:
        raise BadAsk(f"an ask lies from {LEAST} to {MOST} nano units per hour; this one is {str(ask)[:40]}")
    return ask


def check_sealed(standing: StandingAsks, node: str, hash_: bytes) -> None:
    """Check a commitment for the coming epoch (rule 1). Raises `BadAsk`."""
    if len(hash_) != 32:
        raise BadAsk(f"a sealed ask is a hash of 32 bytes, not of {len(hash_)}")
    if node in standing.sealed:
        raise BadAsk("an ask was sealed for this epoch already: the next epoch takes another one")


def check_opened(standing: StandingAsks, run: bytes, node: str, epoch: int, ask: object, salt: bytes) -> int:
    """Return an ask that a node opens for an epoch (rules 2 and 4). Raises `BadAsk`."""
    amount = checked(ask)
    if len(salt) < SALT:
        raise BadAsk(f"the salt of an ask has at least {SALT} bytes, not {len(salt)}")
    sealed = standing.sealed.get(node)
    if sealed is None:
        raise BadAsk(f"no ask was sealed for epoch {epoch} before its asks closed: the ask before it stands")
    if commitment(run, node, epoch, amount, salt) != sealed:
        raise BadAsk(f"this is not the ask that was sealed for epoch {epoch}: the ask before it stands")
    before = standing.asks.get(node)
    if before is not None and amount > RISE * before:
        most = int(RISE * before)
        raise BadAsk(f"an ask rises by at most 25 % per epoch: from {before} to at most {most}, not {amount}")
    return amount
