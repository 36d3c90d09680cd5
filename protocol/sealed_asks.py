"""An ask as node and coordinator agree on it: its text, its limits, its hash. Pure.

Rules
1. An ask is a price per hour, an integer in nano units of the run's currency. It lies from `LEAST_ASK` to `MOST_ASK`.
2. As text it is a decimal number of whole nano units, then optionally a currency, then `/h`: "0.12/h", "0.12 USD/h".
3. It is at most 5/4 of the one that stands (`most_after`). The first one has no such limit.
4. A node binds itself to an ask by the hash of run, node, epoch, ask and a salt (`commitment`).
"""

import hashlib
import re
from fractions import Fraction
from typing import Final

import msgspec

from echo2.runtime.errors import LocalFault

NANO: Final = 10**9
LEAST_ASK: Final = 1_000
MOST_ASK: Final = 10**14
"""100,000 units per hour."""
MOST_ASK_RISE: Final = Fraction(5, 4)
SALT: Final = 16
"""Bytes of salt, at least."""
_TEXT: Final = re.compile(r"(?P<whole>[0-9]{1,40})(\.(?P<part>[0-9]{1,30}))?( ?(?P<currency>[A-Z]{3}))?/h")


class BadAsk(LocalFault):
    """An ask that is refused. The message says why, and which one would be taken."""


def commitment(run: bytes, node: str, epoch: int, ask: int, salt: bytes) -> bytes:
    """Return the hash by which a node binds itself to an ask. `node`: its peer id."""
    return hashlib.sha256(msgspec.msgpack.encode(["ask", run, node, epoch, ask, salt])).digest()


def parse_ask(text: str, currency: str | None) -> int:
    """Return an ask from text (rule 2). `currency`: the run's; None: not known yet, so any is taken. Raises
    `BadAsk`."""
    name = currency or "the run's currency"
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise BadAsk(f"{text[:40]!r} is no ask: write a number of {name} per hour, above 0, as in 0.12/h")
    if currency is not None and match["currency"] not in (None, currency):
        raise BadAsk(f"the run pays in {currency}, not in {match['currency']}: state the ask in {currency}")
    part = (match["part"] or "").rstrip("0")
    if len(part) > 9:
        raise BadAsk(f"{text.strip()} has more than nine decimals: the smallest unit is 0.000000001 of {name}")
    return check_ask(int(match["whole"]) * NANO + int(part.ljust(9, "0")))


def check_ask(ask: object) -> int:
    """Return `ask` if it is a whole number within the limits (rule 1). Raises `BadAsk`."""
    if not isinstance(ask, int) or isinstance(ask, bool):
        raise BadAsk(f"an ask is a whole number of nano units per hour, not {str(ask)[:40]!r}")
    if ask < 0:
        raise BadAsk("an ask is not negative")
    if not LEAST_ASK <= ask <= MOST_ASK:
        raise BadAsk("an ask lies from 0.000001/h to 100000/h; this one is less or more")
    return ask


def most_after(standing: int | None) -> int:
    """Return the highest ask that may follow the one that stands (rule 3)."""
    return MOST_ASK if standing is None else min(MOST_ASK, int(MOST_ASK_RISE * standing))


def steps_to(wanted: int, standing: int | None) -> list[int]:
    """Return the asks of the next epochs by which a node comes from the ask that stands to the one that it wants, as
    fast as rule 3 lets it; the last one is `wanted`. Empty: it stands already."""
    steps: list[int] = []
    while wanted != standing:
        standing = min(wanted, max(LEAST_ASK, most_after(standing)))
        steps.append(standing)
    return steps
