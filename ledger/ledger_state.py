"""The state that follows from a ledger: balances, the account of each key with its rank, and the ranking of nodes.

Rules
1. The state is that after the last entry, and has one form in bytes: JSON, accounts and keys in alphabetical order,
   hashes in hexadecimal digits, a line feed at its end. Two states are the same where these bytes are.
2. `of_tables` reads it from the coordinator's tables, by the queries of the status page. Every other way to it reads
   entries alone (ledger_replay.py).
3. The ranking is that of the page, most accepted work first, then by key: the nodes that have any. Names and engines
   are no part of it.
4. In a run with a market its state is part of it (`MarketRules`). The market has no tables: the coordinator's own state
   is what the entries made of it, as they were appended.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import msgspec

from echo2.ledger.ledger_entries import Entry
from echo2.ledger.ledger_facts import KeyAccount
from echo2.ledger.standing import rank
from echo2.p2p.identity import public_key
from echo2.protocol.authority import RunSpec
from echo2.runtime.errors import LocalFault


class MarketRules(Protocol):
    """A run's market, as the ledger sees it (coordinator/market/market_replay.py)."""

    def check(self, entry: Entry) -> bool:
        """Check the next entry, and tell whether its key and postings are the market's to judge. Raises `Tampered`."""

    def take(self, entry: Entry) -> None:
        """Read the next entry. Raises `Tampered`."""

    def state(self) -> dict[str, object]:
        """Return its state, of the types of JSON."""


MarketOf = Callable[[RunSpec], MarketRules | None]
"""(RunSpec) -> the market of its run before the first entry; None: it pays points."""


def points_alone(spec: RunSpec) -> None:
    """Return no market. Raises `LocalFault` for a run that has one."""
    if spec.price_mode != "points":
        raise LocalFault(f"the run has the price mode {spec.price_mode!r}: its ledger needs the rules of that mode")


class NodeWork(msgspec.Struct, frozen=True):
    """The accepted work of one node. `groups`, `rollouts`, `tokens`: groups, rollouts and tokens of accepted groups.
    `weight`: milli-RE of these, and of tokens that moved on."""

    groups: int = 0
    rollouts: int = 0
    tokens: int = 0
    weight: int = 0


class RankedNode(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the ranking. `accrued`: balance, milli-RE. `rank`: new, known or proven."""

    node: str
    weight: int
    groups: int
    rollouts: int
    tokens: int
    accrued: int
    rank: str


class KeyState(msgspec.Struct, frozen=True, kw_only=True):
    """The account of a key (`KeyAccount`) and its rank."""

    rank: str
    account: dict[str, int | str | bool | None]


class LedgerState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state after entry `entries`, whose hash is `tip`. `market`: absent in a run of points."""

    entries: int
    tip: str
    balances: dict[str, int]
    keys: dict[str, KeyState]
    ranking: list[RankedNode]
    market: dict[str, object] | None = None

    def as_bytes(self) -> bytes:
        """Return the state's bytes (rule 1)."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


def state_of(
    entries: int,
    tip: bytes,
    at: int,
    balances: Mapping[str, int],
    accounts: Mapping[str, KeyAccount],
    work: Mapping[str, NodeWork],
    market: MarketRules | None = None,
) -> LedgerState:
    """Put a state together. `at`: time of the last entry, ms. `accounts`, `work`: accounts and work by peer id."""
    there = {account: amount for account, amount in sorted(balances.items()) if amount}
    keys = {node: KeyState(rank=rank(one, at), account=one._asdict()) for node, one in sorted(accounts.items())}
    return LedgerState(
        entries=entries, tip=tip.hex(), balances=there, keys=keys, ranking=list(_ranking(there, keys, work)),
        market=None if market is None else market.state(),
    )  # fmt: skip


def _ranking(
    balances: Mapping[str, int], keys: Mapping[str, KeyState], work: Mapping[str, NodeWork]
) -> Iterable[RankedNode]:
    for node in sorted(work, key=lambda one: (work[one].weight, public_key(one)), reverse=True):
        done = work[node]
        if done.weight:
            yield RankedNode(
                node=node, weight=done.weight, groups=done.groups, rollouts=done.rollouts, tokens=done.tokens,
                accrued=balances.get(f"node:{node}:accrued", 0), rank=keys[node].rank if node in keys else "new",
            )  # fmt: skip
