"""Record payments in the ledger: the one place that writes `payout.*` entries.

Rules
1. An entry is written only if it may follow those before it (ledger/payout_facts.py), and is durable
   before `record` returns.
2. A running coordinator writes the entry; the command reaches it over the run folder's socket. If none runs, the
   command opens the run's database.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database, InUse
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.run import operator_commands
from echo2.ledger.balance_waits import Waits, waits_of
from echo2.ledger.ledger_entries import LedgerFault
from echo2.ledger.payout_facts import CONFIRMED, KINDS, Fact, PayoutChange, PayoutPlanned, Payouts, check_total, fact_of
from echo2.runtime.errors import LocalFault


class PayoutBook(Protocol):
    """The payments of a run. `payouts`: payouts as the ledger has them."""

    payouts: Payouts

    async def record(self, kind: str, fact: Fact | PayoutPlanned) -> None:
        """Write an entry, durable on return. Raises `LocalFault` where it may not follow."""


class LedgerBook:
    """The book over a ledger that this process writes. `clock`: ms."""

    def __init__(self, ledger: Ledger, clock: Callable[[], int]) -> None:
        self._ledger, self._clock = ledger, clock
        self.payouts = read(ledger)

    async def record(self, kind: str, fact: Fact | PayoutPlanned) -> None:
        """Write an entry, durable on return. Raises `LocalFault`."""
        self.write(kind, fact)

    def write(self, kind: str, fact: Fact | PayoutPlanned) -> int:
        """Write an entry, in the caller's transaction if there is one; return its time, ms. Raises `LocalFault`."""
        at = self._clock()
        try:
            changed = self._change_of_fact(kind, fact, at)
            self._ledger.append(at, kind, changed.key, fact, changed.postings)
        except LedgerFault as error:
            raise LocalFault(f"not recorded: {error}") from error
        self.payouts.accept(changed)
        return at

    def check(self, kind: str, fact: Fact) -> None:
        """Check that an entry may follow, and write nothing. Raises `LocalFault`."""
        try:
            self._change_of_fact(kind, fact, self._clock())
        except LedgerFault as error:
            raise LocalFault(f"cannot be recorded: {error}") from error

    def _change_of_fact(self, kind: str, fact: Fact | PayoutPlanned, at: int) -> PayoutChange:
        changed = self.payouts.change(kind, fact, at)
        if isinstance(fact, PayoutPlanned):
            check_total(fact, self._ledger.balances())
        elif kind == CONFIRMED:
            self._check_confirmed_again(fact.payment.hex(), changed)
        return changed

    def _check_confirmed_again(self, key: str, changed: PayoutChange) -> None:
        """Check that money which had come back, and has gone after all, is still its node's. Raises `LocalFault`."""
        for account, amount in changed.postings:
            if self._ledger.balance(account) + amount < 0:
                raise LocalFault(
                    f"not recorded: payment {key} had come back, and its money was paid again, or has "
                    "moved to the key that replaced its node's: it went out twice, and the run bears that until the "
                    "payee returns it; end the question by KEY=returned, and say so in --why"
                )


class SocketBook:
    """The book of a coordinator that runs in `home`."""

    def __init__(self, home: Path, payouts: Payouts) -> None:
        self._home, self.payouts = home, payouts

    async def record(self, kind: str, fact: Fact | PayoutPlanned) -> None:
        """Have the coordinator write an entry. Raises `LocalFault`, `Unreachable`."""
        facts = msgspec.msgpack.encode(fact).hex()
        answer = await asyncio.to_thread(operator_commands.command, self._home, "payout", kind=kind, facts=facts)
        self.payouts.accept(self.payouts.change(kind, fact, int(answer["at"])))


def read(ledger: Ledger) -> Payouts:
    """Return the payments of a ledger. Raises `LocalFault` where its entries contradict each other."""
    payouts = Payouts()
    for entry in ledger.entries_with_prefix("payout"):
        if entry.kind in KINDS:
            try:
                payouts.take(entry)
            except (LedgerFault, msgspec.MsgspecError) as error:
                raise LocalFault(f"ledger entry {entry.seq}: {error}: run `echo2-coord ledger verify`") from error
    return payouts


def waits(ledger: Ledger) -> Waits:
    """Return the waits of the balances of replaced keys."""
    entries = [one for prefix in ("disputed:", "key:") for one in ledger.entries_with_prefix(prefix)]
    return waits_of(sorted(entries, key=lambda one: one.seq))


def decode_facts(kind: str, facts: str) -> Fact | PayoutPlanned:
    """Return the facts that a command sends as hexadecimal digits. Raises `LocalFault`."""
    try:
        return fact_of(kind, bytes.fromhex(facts))
    except (ValueError, KeyError, msgspec.MsgspecError) as error:
        raise LocalFault(f"this is no {kind}: {error}") from error


@contextlib.contextmanager
def open_book(home: Path, clock: Callable[[], int]) -> Iterator[tuple[PayoutBook, Database]]:
    """Yield the book of a run and its database, by rule 2. Raises `LocalFault`, `Unreachable`."""
    place = RunFolder(home)
    try:
        database = Database.open(place.database) if place.database.exists() else Database.read(place.database)
    except InUse:
        with Database.read(place.database) as reading:
            yield SocketBook(home, read(Ledger(reading))), reading
        return
    with database:
        yield LedgerBook(Ledger(database), clock), database
