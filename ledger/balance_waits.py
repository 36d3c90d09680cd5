"""The wait in which the balance of a key that was replaced stays where it is, and where it belongs afterwards. Pure.

Rules
1. With a `key.rotated` at t the balance of the old key waits until t + `BALANCE_WAIT_MS`. From then on it moves to the
   successor (market/balance_moves.py), with all that the old key had by then, and all that reaches it later.
2. Before that time the old key may dispute its replacement, once: its balance then stays with it for good. Whoever
   stole a key has all that its owner has, so neither can prove to be the owner. So neither decides where it goes: it
   is paid to the account that was in force when the key was replaced (payouts/stated_accounts.py).
3. Each hop of a chain waits by itself: of A -> B -> C the balance of A is B's at the end of A's wait, and C's at the
   end of B's or at once, whichever is later.
4. A key that takes over is no replaced one, whatever was written before: so no chain is a circle.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from echo2.ledger.ledger_entries import Entry, LedgerFault
from echo2.ledger.ledger_facts import KEY_ROTATED_KIND, KeyRotated
from echo2.runtime.units import DAY

BALANCE_WAIT_MS: Final = 3 * DAY
"""Milliseconds."""
BALANCE_DISPUTED_KIND: Final = "balance.disputed"


class BalanceDisputed(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `balance.disputed`: the balance of `node` stays with it, and does not move to `successor`."""

    rules: int = 1
    node: str
    successor: str


class BalanceWait(NamedTuple):
    """The wait of a replaced key's balance. `due`: its end, ms. `disputed`: the balance stays. `moved`: some of it has
    moved."""

    successor: str
    due: int
    disputed: bool = False
    moved: bool = False

    @property
    def since(self) -> int:
        """The time at which the key was replaced, ms."""
        return self.due - BALANCE_WAIT_MS


Waits = dict[str, BalanceWait]
"""Peer id of a replaced key -> its wait."""
NO_WAITS: Final[Mapping[str, BalanceWait]] = MappingProxyType({})


def add_wait(waits: Waits, node: str, successor: str, at: int) -> None:
    """Add the wait of a key that was replaced (rules 1 and 4)."""
    waits[node] = BalanceWait(successor, at + BALANCE_WAIT_MS)
    waits.pop(successor, None)


def disputable(waits: Mapping[str, BalanceWait], node: str, at: int) -> BalanceWait:
    """Return the wait of a key that may be disputed at `at` (rule 2). Raises `LedgerFault`."""
    wait = waits.get(node)
    if wait is None:
        raise LedgerFault("this key was not replaced")
    if wait.disputed:
        raise LedgerFault("its replacement is disputed already")
    if at >= wait.due:
        raise LedgerFault("the time in which its replacement could be disputed is over")
    return wait


def movable(waits: Mapping[str, BalanceWait], node: str, at: int) -> BalanceWait:
    """Return the wait of a key whose balance moves at `at` (rule 1). Raises `LedgerFault`."""
    wait = waits.get(node)
    if wait is None or wait.disputed:
        raise LedgerFault("the balance of this key stays with it")
    if at < wait.due:
        raise LedgerFault(f"the balance of this key moves from {wait.due} on")
    return wait


def holder(waits: Mapping[str, BalanceWait], node: str) -> str:
    """Return the key that has what was a key's, as far as it has moved."""
    while node in waits and waits[node].moved:
        node = waits[node].successor
    return node


def waits_of(entries: Iterable[Entry]) -> Waits:
    """Return the waits that follow from entries, in their order, without what has moved."""
    waits: Waits = {}
    for entry in entries:
        if entry.kind == KEY_ROTATED_KIND:
            fact = msgspec.msgpack.decode(entry.facts, type=KeyRotated)
            add_wait(waits, fact.node, fact.successor, entry.at)
        elif entry.kind == BALANCE_DISPUTED_KIND:
            dispute = msgspec.msgpack.decode(entry.facts, type=BalanceDisputed)
            if dispute.node in waits:
                waits[dispute.node] = waits[dispute.node]._replace(disputed=True)
    return waits
