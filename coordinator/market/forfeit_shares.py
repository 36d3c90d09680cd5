"""The share of a group in its node's pay, which the node forfeits where the group is taken back. From entries. Pure.

Rules
1. A group is taken back by a `lease.reversed` that does not pay it, or by the `quarantine.ended` of its node's day that
   releases nothing.
2. Its share is floor(pay x weight / work) of its node's row in the first `epoch.closed` behind its `lease.accepted`.
   A group whose node has no row there has none.
3. A `forfeited` names such a group, its share, and its node, or the key that has the node's balance since. Nothing else
   is forfeited: the operator who accuses cannot take more than the group earned.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from echo2.coordinator.market.entries import EpochClosed, Forfeited
from echo2.coordinator.market.epoch_terms import BadTerms
from echo2.ledger.epoch_facts import ClosedNode
from echo2.ledger.ledger_entries import Entry
from echo2.ledger.ledger_facts import LeaseReversed, QuarantineEnded
from echo2.runtime.units import DAY

_decode: Final = msgspec.msgpack.decode
_Day = tuple[str, int]
"""A node and a day since the Unix epoch."""


class _Accepted(msgspec.Struct, frozen=True):
    """The facts of a `lease.accepted` that a forfeit depends on."""

    node: str
    lease: bytes
    code: str
    weight: int


class _Share(NamedTuple):
    """Pay of a group. `day`: day in whose quarantine it was."""

    node: str
    amount: int
    day: _Day | None


def share(row: ClosedNode, weight: int) -> int:
    """Return the share of a group in the pay of a node's row (rule 2)."""
    return row.pay * weight // row.work if row.work else 0


class ForfeitShares:
    """The shares of all groups, from the entries in order."""

    def __init__(self) -> None:
        self._waiting: list[tuple[_Accepted, _Day | None]] = []
        """Groups whose epoch is not closed."""
        self._shares: dict[bytes, _Share] = {}
        self._taken_back: set[bytes | _Day] = set()
        """Leases, and days."""

    def take(self, entry: Entry) -> None:
        """Read the next entry. Raises `msgspec.MsgspecError`."""
        if entry.kind == "lease.accepted":
            group = _decode(entry.facts, type=_Accepted)
            day = (group.node, entry.at // DAY) if group.code == "quarantine" else None
            self._waiting.append((group, day))
        elif entry.kind == "lease.reversed":
            fact = _decode(entry.facts, type=LeaseReversed)
            if not fact.paid:
                self._taken_back.add(fact.lease)
        elif entry.kind == "quarantine.ended":
            ended = _decode(entry.facts, type=QuarantineEnded)
            if not ended.released:
                self._taken_back.add((ended.node, ended.day))
        elif entry.kind == "epoch.closed":
            rows = {row.node: row for row in _decode(entry.facts, type=EpochClosed).nodes}
            for group, day in self._waiting:
                if (row := rows.get(group.node)) is not None:  # its name is one for all groups of the epoch
                    self._shares[group.lease] = _Share(row.node, share(row, group.weight), day)
            self._waiting = []

    def due(self, lease: bytes) -> tuple[str, int] | None:
        """Return the node of a group that was taken back, and its share; None: no epoch paid it, or it was not."""
        one = self._shares.get(lease)
        return None if one is None or not {lease, one.day} & self._taken_back else (one.node, one.amount)

    def check(self, fact: Forfeited, holder: Callable[[str], str]) -> None:
        """Check a forfeit against the entries so far (rule 3). `holder`: node -> the key that has its balance now.
        Raises `BadTerms`."""
        due = self.due(fact.lease)
        if due is None:
            raise BadTerms("its lease has no group that an epoch paid and that was taken back")
        node, amount = holder(due[0]), due[1]
        if (fact.node, fact.amount) != (node, amount):
            raise BadTerms(f"its group earned {amount} for {node}, not {fact.amount} for {fact.node}")
