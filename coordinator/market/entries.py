"""The ledger entries of the market: kinds, facts, and the form in which the core hands a new one to the ledger.

The market reads these entries and the ends of leases, and nothing else: a replay needs no other source. Nodes are peer
ids, times ms, rates milli-RE per hour, money nano units. Shares are per mille.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from echo2.ledger.balance_waits import BALANCE_DISPUTED_KIND, BalanceDisputed
from echo2.ledger.epoch_facts import ClosedNode
from echo2.ledger.ledger_entries import Posting


class NewEntry(NamedTuple):
    """An entry to be appended: the arguments of `Ledger.append`."""

    at: int
    kind: str
    key: str
    facts: msgspec.Struct
    postings: tuple[Posting, ...] = ()


class Benchmarked(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `measured`: the rate that the coordinator measured of a node before it had any lease. A node's own word
    is none: with a false rate a newcomer would keep others out."""

    rules: int = 1
    node: str
    rate: int


class AskSealed(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `ask.sealed`. `hash`: hash of the ask and its salt (protocol/sealed_asks.py)."""

    rules: int = 1
    node: str
    epoch: int
    hash: bytes


class AskOpened(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `ask.opened`. `ask`: ask per hour. `salt`: that was sealed with it."""

    rules: int = 1
    node: str
    epoch: int
    ask: int
    salt: bytes


class EpochAnnounced(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `epoch.announced`: the terms of the next epoch, fixed before its asks close.

    `closes`: time until which asks are sealed. `milliseconds`: planned length.
    `reserve`: highest price per RE. `budget`: budget from the operator, without forfeits. `newcomers`: share of the
    need. `cap`: cap of an owner; 1000: none. `run_off`: time for which a node that is no longer active may bring the
    groups that it still has."""

    rules: int = 1
    epoch: int
    closes: int
    milliseconds: int
    need: int
    reserve: int
    budget: int
    newcomers: int
    cap: int
    run_off: int


class OwnersGrouped(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `owners.grouped`. `owners`: [node, tag] in the order of the nodes; nodes alone are not named."""

    rules: int = 1
    epoch: int
    owners: list[tuple[str, bytes]]


class EpochDrawn(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `epoch.drawn`. `beacon`: seed of the lottery, of the LedgerHead over all entries before this one."""

    rules: int = 1
    epoch: int
    beacon: bytes


class EpochOpened(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `epoch.opened`. `present`: nodes that are here, in order. `forfeits`: that the budget has beyond the
    operator's."""

    rules: int = 1
    epoch: int
    forfeits: int
    present: list[str]


class EpochClosed(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `epoch.closed`. `short`: what the need lacked. `binding`: whether the budget bound. `nodes`: the active
    ones in the order of activation, then those in their run-off."""

    rules: int = 1
    epoch: int
    since: int
    short: int
    binding: bool
    nodes: list[ClosedNode]


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `vested` and `released`: what moved at the close of an epoch. `amounts`: [node, amount], by node."""

    rules: int = 1
    epoch: int
    amounts: list[tuple[str, int]]


class Forfeited(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `forfeited`. `lease`: lease of the group that was taken back. `amount`: its share in the node's pay
    (forfeit_shares.py). `lacking`: what of the amount was out of reach."""

    rules: int = 1
    node: str
    lease: bytes
    amount: int
    lacking: int
    why: str


class BalanceMoved(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `balance.moved`: what moves from a replaced key to its successor, of each of its accounts."""

    rules: int = 1
    node: str
    successor: str
    accrued: int
    unvested: int
    payable: int


FACTS: Final[dict[str, type[msgspec.Struct]]] = {
    "measured": Benchmarked,
    "ask.sealed": AskSealed,
    "ask.opened": AskOpened,
    "epoch.announced": EpochAnnounced,
    "owners.grouped": OwnersGrouped,
    "epoch.drawn": EpochDrawn,
    "epoch.opened": EpochOpened,
    "epoch.closed": EpochClosed,
    "vested": Settled,
    "released": Settled,
    "forfeited": Forfeited,
    BALANCE_DISPUTED_KIND: BalanceDisputed,
    "balance.moved": BalanceMoved,
}
"""Kind of entry -> its facts."""
LEASE_END_KINDS: Final = frozenset(("lease.accepted", "lease.refused", "lease.expired"))
"""Kinds of entries that measurement and pay read."""


class CreditedWork(msgspec.Struct, frozen=True):
    """The facts of `lease.reversed` that the market reads. `paid`: false where work is taken back,
    which a forfeit answers."""

    node: str
    weight: int
    paid: bool = True


class RotatedKey(msgspec.Struct, frozen=True):
    """The facts of `key.rotated`."""

    node: str
    successor: str


class StatedEnd(msgspec.Struct, frozen=True):
    """The facts of a lease's end that the market reads, of a LeaseOutcome (coordinator/verdicts/lease_outcomes.py)."""

    node: str
    sent: int
    expires: int
    received: int | None
    weight: int
    code: str = ""


def postings_of_changes(changes: Sequence[tuple[str, int]]) -> tuple[Posting, ...]:
    """Return postings of changes, without those of 0."""
    return tuple(Posting(account, amount) for account, amount in changes if amount)
