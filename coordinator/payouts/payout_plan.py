"""Choose the payments of a plan, and how much of a plan may be sent. Pure.

Rules
1. A plan pays what is in a node's `payable` account both now and at the LedgerHead on which it rests: in whole
   hundredths of the currency, at most `Limits.node`, at least `Limits.minimum`. The rest stays in the account.
2. A node is left out, with the reason, if it names no account, one that is not in force yet, or one that the rail does
   not take; while a payment to it, or to a key that it replaced, is open or in question; and for `RETURNED_REST_MS`
   after one came back. A key that was replaced is left out as well, since its balance is to move; where that is
   disputed, until it would have moved.
3. The nodes come in the order of their peer ids; a plan has at most `MOST_PLAN_PAYMENTS` payments.
4. A plan may be sent in parts: within any `DAY` at most `Limits.day` in all, and `Limits.node` per node. Payments count
   from their first entry on, those that came back as well. Payments planned before a key was replaced are not sent to
   it while rule 2 leaves it out.
5. Nothing is planned for, or sent to, a node whose pay the operator withholds, nor a key to which its balance moves.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from echo2.coordinator.rails import minor_units
from echo2.coordinator.rails.rail import BadAccount
from echo2.ledger.balance_waits import NO_WAITS, BalanceWait
from echo2.ledger.ledger_entries import Entry
from echo2.ledger.payout_facts import UNITS_PER_HUNDREDTH, SentPayment, commitment, payable, payment_id
from echo2.runtime.units import DAY, minute

MOST_PLAN_PAYMENTS: Final = 100_000
"""Payments of a plan."""
NONE_IN_FORCE: Final = (
    "its key was replaced, which is disputed, and no account was in force then: write one into payees.json once you "
    "know whose it is"
)
WITHHELD_REASON: Final = "you withhold its pay, by an empty account in payees.json"
RETURNED_REST_MS: Final = DAY
"""Milliseconds after a payment came back, in which its node is in no plan."""


class PayoutLimits(NamedTuple):
    """Limits in minor units. `day`: day within 24 hours, of all nodes. `node`: the same per node. `minimum`: minimum of
    a payment."""

    day: int
    node: int
    minimum: int


class Payee(msgspec.Struct, frozen=True):
    """The account of a node outside the run. `salt`: 32 random bytes, for the commitment."""

    account: str
    salt: bytes


class PlannedPayment(msgspec.Struct, frozen=True):
    """A payment of a plan. `amount`: 10^-9 of the currency. `account`: the commitment to the payee's account."""

    payment: bytes
    node: str
    amount: int
    account: bytes


class LeftOut(NamedTuple):
    """A node that a plan does not pay. `amount`: what it may be paid, 10^-9 of the currency."""

    node: str
    amount: int
    why: str


class ChosenPayments(NamedTuple):
    """The payments of a plan, and the nodes that are left out. `rest`: what stays with nodes that are paid, as it is
    less than a hundredth or above the limit of a node, 10^-9 of the currency."""

    payments: list[PlannedPayment]
    left_out: list[LeftOut]
    rest: int = 0


class NodeBalances(NamedTuple):
    """All that a run owes to nodes, 10^-9 of the currency. `nodes`: nodes to how many. `payable`: may be paid.
    `accrued`: held back, until it is released. `unvested`: vests within a day. `waiting`: nodes of which nothing is
    payable yet, with the other two together."""

    nodes: int
    payable: int
    accrued: int
    unvested: int
    waiting: Mapping[str, int]


class KnownPayees(NamedTuple):
    """Accounts by peer id. `coming`: time from which that of a node is in force that has none before, ms. `waits`:
    waits of the balances of replaced keys. `withheld`: nodes that the operator does not pay."""

    accounts: Mapping[str, Payee]
    coming: Mapping[str, int]
    waits: Mapping[str, BalanceWait] = NO_WAITS
    withheld: Collection[str] = ()


def owed_to_nodes(balances: Mapping[str, int]) -> NodeBalances:
    """Return the sums of the nodes' accounts. `balances`: balances of all accounts."""
    sums, nodes = Counter[str](), Counter[str]()
    for name, amount in balances.items():
        kind, _, rest = name.partition(":")
        if kind == "node" and amount:
            node, _, account = rest.partition(":")
            nodes[node] += amount
            sums[account] += amount
    waiting = {node: amount for node, amount in nodes.items() if not balances.get(payable(node))}
    return NodeBalances(len(nodes), sums["payable"], sums["accrued"], sums["unvested"], waiting)


def payable_at(balances: Mapping[str, int], after: Iterable[Entry]) -> dict[str, int]:
    """Return what may be paid per node, both now and at a head (rule 1). `balances`: balances of all accounts, now.
    `after`: the entries behind the head."""
    since = Counter[str]()
    for entry in after:
        for account, amount in entry.postings:
            since[account] += amount
    nodes = sorted(name.split(":")[1] for name in balances if name.startswith("node:") and name.endswith(":payable"))
    owed = {node: min(balances[payable(node)], balances[payable(node)] - since[payable(node)]) for node in nodes}
    return {node: amount for node, amount in owed.items() if amount > 0}


def choose(
    run: bytes, number: int, owed: Mapping[str, int], payees: KnownPayees, payments: Iterable[SentPayment],
    limits: PayoutLimits, now: int, check: Callable[[str], None],
) -> ChosenPayments:  # fmt: skip
    """Choose the payments of plan `number` (rules 1 to 3). `owed`: owed of `payable_at`. `payments`: all that were
    sent. `now`: ms. `check`: raises `BadAccount` for an account that the rail does not take."""
    waits = payees.waits
    waiting = {node: why for one in payments if (why := _holds(one, now)) for node in _heirs(one.sent.node, waits)}
    waiting |= waiting_keys(waits, now) | _withheld(payees.withheld, waits)
    paid, left_out, rest = list[PlannedPayment](), list[LeftOut](), 0
    for node, there in owed.items():
        amount = min(there // UNITS_PER_HUNDREDTH, limits.node) * UNITS_PER_HUNDREDTH
        payee = payees.accounts.get(node)
        if payee is None and node in waits:
            waiting.setdefault(node, NONE_IN_FORCE)
        why = waiting.get(node) or _unpaid(amount, payee, payees.coming.get(node), limits, check)
        if not why and len(paid) == MOST_PLAN_PAYMENTS:
            why = f"the plan has {MOST_PLAN_PAYMENTS} payments already"
        if why or payee is None:
            left_out.append(LeftOut(node, there, why))
            continue
        account = commitment(payee.account, payee.salt)
        paid.append(PlannedPayment(payment_id(run, number, node), node, amount, account))
        rest += there - amount
    return ChosenPayments(paid, left_out, rest)


def _holds(payment: SentPayment, now: int) -> str:
    """Return why a node is not paid again because of an earlier payment; empty: it may be (rule 2)."""
    if payment.question:
        return f"payment {payment.key} is in question"
    if payment.state == "sent":
        return f"payment {payment.key} has no final answer yet"
    if payment.state == "returned" and now - payment.changed < RETURNED_REST_MS:
        return f"payment {payment.key} came back within the last day"
    return ""


def waiting_keys(waits: Mapping[str, BalanceWait], now: int) -> dict[str, str]:
    """Return the replaced keys that are not paid now, with the reason (rule 2)."""
    words = {}
    for node, wait in waits.items():
        if not wait.disputed:
            words[node] = f"its key was replaced: its balance moves to {wait.successor}"
        elif now < wait.due:
            words[node] = "its key was replaced, which is disputed: it is paid once the time of the dispute is over"
    return words


def _withheld(nodes: Iterable[str], waits: Mapping[str, BalanceWait]) -> dict[str, str]:
    """Return the nodes to which the operator pays nothing, with the reason (rule 5)."""
    return dict.fromkeys((heir for node in nodes for heir in _heirs(node, waits)), WITHHELD_REASON)


def _heirs(node: str, waits: Mapping[str, BalanceWait]) -> list[str]:
    """Return a node, and the keys to which its balance moves."""
    nodes = [node]
    while node in waits and not waits[node].disputed:
        node = waits[node].successor
        nodes.append(node)
    return nodes


def _unpaid(
    amount: int, payee: Payee | None, coming: int | None, limits: PayoutLimits, check: Callable[[str], None]
) -> str:
    if amount < limits.minimum * UNITS_PER_HUNDREDTH:
        return f"less than the least payment, {minor_units.decimal(limits.minimum)}"
    if payee is None and coming is not None:
        return f"its account is in force from {minute(coming)} on"
    if payee is None:
        return "no account is known: its owner names one by `echo2-node payout set`"
    try:
        check(payee.account)
    except BadAccount as error:
        return str(error)
    return ""


class SendingLimits:
    """The limits on what is sent within a day (rule 4)."""

    def __init__(
        self,
        limits: PayoutLimits,
        payments: Iterable[SentPayment],
        now: int,
        waits: Mapping[str, BalanceWait] = NO_WAITS,
        withheld: Collection[str] = (),
    ) -> None:
        """`payments`: all that were sent. `now`: ms; a clock that was set back forgets no payment. `waits`: waits of
        replaced keys. `withheld`: see `KnownPayees`."""
        self._waiting = waiting_keys(waits, now) | _withheld(withheld, waits)
        self._limits, self._nodes, self._all = limits, Counter[str](), 0
        for one in payments:
            if now - one.at < DAY:
                self.count(one.sent.node, one.sent.amount)

    def forbid(self, node: str, amount: int) -> str:
        """Return why a payment cannot be sent now; empty: it can. `amount`: 10^-9 of the currency."""
        if why := self._waiting.get(node):
            return why
        if self._all + amount > self._limits.day * UNITS_PER_HUNDREDTH:
            return "the limit per day is reached"
        return (
            "the node's limit per day is reached"
            if self._nodes[node] + amount > self._limits.node * UNITS_PER_HUNDREDTH
            else ""
        )

    def count(self, node: str, amount: int) -> None:
        """Count a payment that is sent."""
        self._nodes[node] += amount
        self._all += amount
