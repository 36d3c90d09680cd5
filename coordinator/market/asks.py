"""Asks: the price per hour for which a node offers itself. Sealed, then opened. Pure.

Asks are integers in nano units of the run's currency per hour.

Rules
1. For an epoch a node first sends the hash of its ask (`commitment`), until the epoch's asks close, and at most once.
   The terms of the epoch are fixed before (epoch_terms.py), the beacon of its lottery after.
2. Between the draw of the lottery and the opening of the epoch it opens the ask. One that was not sealed, or not so,
   is refused.
3. The last opened ask stands until another one is opened. One that stays sealed changes nothing.
4. Limits, text and hash of an ask are those of protocol/sealed_asks.py.
"""

from collections.abc import Mapping
from typing import NamedTuple

from echo2.protocol.sealed_asks import SALT, BadAsk, check_ask, commitment, most_after


class StandingAsks(NamedTuple):
    """The asks that stand, and the commitments for the epoch that comes."""

    asks: Mapping[str, int]
    sealed: Mapping[str, bytes]


def check_sealed(standing: StandingAsks, node: str, hash_: bytes) -> None:
    """Check a commitment for the coming epoch (rule 1). Raises `BadAsk`."""
    if len(hash_) != 32:
        raise BadAsk(f"a sealed ask is a hash of 32 bytes, not of {len(hash_)}")
    if node in standing.sealed:
        raise BadAsk("an ask was sealed for this epoch already: the next epoch takes another one")


def check_opened(standing: StandingAsks, run: bytes, node: str, epoch: int, ask: object, salt: bytes) -> int:
    """Return an ask that a node opens for an epoch (rules 2 and 4). Raises `BadAsk`."""
    amount = check_ask(ask)
    if len(salt) < SALT:
        raise BadAsk(f"the salt of an ask has at least {SALT} bytes, not {len(salt)}")
    sealed = standing.sealed.get(node)
    if sealed is None:
        raise BadAsk(f"no ask was sealed for epoch {epoch} before its asks closed: the ask before it stands")
    if commitment(run, node, epoch, amount, salt) != sealed:
        raise BadAsk(f"this is not the ask that was sealed for epoch {epoch}: the ask before it stands")
    before = standing.asks.get(node)
    most = most_after(before)
    if amount > most:
        raise BadAsk(f"an ask rises by at most 25 % per epoch: from {before} to at most {most}, not {amount}")
    return amount
