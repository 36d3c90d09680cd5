"""Balances of keys that were replaced: move those that are due, and tell both keys what becomes of them.

Rules
1. A balance moves at the first tick at which it is due (market/balance_moves.py); what reaches the old key later, at
   the next tick.
2. The old key may dispute its replacement until then. Each of its greetings, and each answer to its successor about the
   account, tells amount, time and state.
3. Nothing is written until the ledger was read: a dispute that came before is brought by the next greeting.
"""

from typing import Final

import msgspec

from echo2.coordinator.epochs.epoch_clock import EpochClock
from echo2.coordinator.epochs.market_service import MarketService
from echo2.coordinator.market.balance_moves import dispute, due, move_balance
from echo2.coordinator.market.entries import RotatedKey
from echo2.coordinator.market.epoch_terms import BadTerms
from echo2.coordinator.market.epochs import payable
from echo2.ledger.balance_waits import BalanceWait
from echo2.ledger.ledger_entries import Entry, accrued_account, unvested_account
from echo2.ledger.ledger_facts import KEY_ROTATED_KIND
from echo2.p2p.identity import peer_id
from echo2.protocol.market import MovingBalance
from echo2.protocol.money_text import amount_text
from echo2.runtime.units import minute

MOST_LISTED_BALANCES: Final = 8
"""Most balances of which an answer tells."""


class ReplacedKeys:
    """The replaced keys of a run that pays money in `currency`."""

    def __init__(self, service: MarketService, clock: EpochClock, currency: str) -> None:
        self._service, self._clock, self._currency = service, clock, currency
        self._earlier: dict[str, list[str]] = {}
        """Peer id -> the keys that it replaced."""
        for node, wait in service.state.waits.items():
            self._earlier.setdefault(wait.successor, []).append(node)
        service.watchers.append(self._read)

    def _read(self, entry: Entry) -> None:
        if entry.kind == KEY_ROTATED_KIND:
            fact = msgspec.msgpack.decode(entry.facts, type=RotatedKey)
            self._earlier.setdefault(fact.successor, []).append(fact.node)

    def tick(self, at: int) -> None:
        """Move the balances that are due (rule 1). `at`: the market's time."""
        if not self._service.read():
            return
        for node in due(self._service.state, at):
            new = move_balance(self._service.state, at, node)
            if new is not None and self._service.ledger.find(new.key) is None:
                self._service.append(new)

    def on_greeting(self, node: bytes, disputes: bool, now: int) -> str:
        """Take the dispute of a replaced key, if there is one; return what becomes of its balance, a sentence."""
        if not self._service.read():
            return "The coordinator reads its ledger: start this node again in a minute to learn of its balance."
        peer, refused = peer_id(node), ""
        if disputes and (wait := self._service.state.waits.get(peer)) is not None and not wait.disputed:
            try:
                self._service.append(dispute(self._service.state, self._clock.at(now), peer))
            except BadTerms as error:
                refused = f"The dispute is not taken: {error}. "
        return refused + self._wait_text(peer, self._service.state.waits.get(peer), self._clock.at(now))

    def _wait_text(self, peer: str, wait: BalanceWait | None, at: int) -> str:
        amount = amount_text(self._amount(peer), self._currency)
        if wait is None:
            return f"Its balance, {amount}, stays with it."
        if wait.disputed:
            return (
                f"The replacement is disputed: its balance, {amount}, stays with this key, and is paid from "
                f"{minute(wait.due)} on to the account that was in force when the key was replaced."
            )
        if wait.moved or at >= wait.due:
            return "Its balance has moved there."
        return (
            f"Its balance, {amount}, moves there at {minute(wait.due)}. If you did not replace it, run "
            "`echo2-node keys dispute` and start this node once more before that time: the balance then stays with "
            "this key, and is paid to the account that was in force."
        )

    def _amount(self, peer: str) -> int:
        ledger = self._service.ledger
        return sum(map(ledger.balance, (accrued_account(peer), unvested_account(peer), payable(peer))))

    def moving(self, peer: str) -> list[MovingBalance]:
        """Return the balances of keys that this one replaced, as far as they have not moved."""
        if not self._service.read():
            return []
        waits = self._service.state.waits
        return [
            MovingBalance(node=node, amount=self._amount(node), at=wait.due, disputed=wait.disputed)
            for node in self._earlier.get(peer, [])[:MOST_LISTED_BALANCES]
            if (wait := waits.get(node)) is not None and wait.successor == peer and not wait.moved
        ]
