"""Examples of payments in money at the edges of their rules, with entries that are refused beside them."""

from collections.abc import Callable
from typing import Any

from echo2.coordinator.market.entries import NewEntry
from echo2.ledger.ledger_entries import transfer
from echo2.ledger.payout_facts import (
    PayoutEnded,
    PayoutPlanned,
    PayoutQuestioned,
    PayoutSent,
    payable,
    payment_id,
)
from echo2.runtime.units import DAY
from tests.support.example_ledger import NODES, ExampleLedger
from tests.support.market_examples import MILLION, earned

A = NODES[0]
CENT = 10**7


def have(one: ExampleLedger) -> None:
    """Let 6 hundredths be payable to a node."""
    one.measure({A: MILLION})
    earned(one, A, 60_000)
    one.now += DAY
    one.vest()
    one.release()


def plan(one: ExampleLedger, number: int, payments: int, total: int) -> NewEntry:
    fact = PayoutPlanned(
        plan=number, rail="csv", currency="USD", payments=payments, total=total, file=bytes(32), head=1,
        head_hash=bytes(32),
    )  # fmt: skip
    return NewEntry(one.now, "payout.planned", f"payouts:{number}", fact)


def sent(one: ExampleLedger, number: int, amount: int, **more: Any) -> NewEntry:
    usual = {"payment": payment_id(one.run, number, A), "plan": number, "node": A, "rail": "csv",
             "provider": bytes(16), "account": bytes(32), "amount": amount}  # fmt: skip
    fact = PayoutSent(**(usual | more))
    moves = transfer(payable(A), f"paid:{fact.rail}", amount) if amount else ()
    return NewEntry(one.now, "payout.sent", f"payout:{fact.payment.hex()}:0", fact, moves)


def answer(one: ExampleLedger, kind: str, number: int, moved: int = 0, **more: Any) -> NewEntry:
    """Return an entry about the payment of plan 1. `moved`: what comes back."""
    payment = payment_id(one.run, 1, A)
    facts = PayoutQuestioned if kind == "questioned" else PayoutEnded
    fact = facts(**({"payment": payment, "number": number, "node": A} | more))
    moves = transfer("paid:csv", payable(A), moved) if moved > 0 else transfer(payable(A), "paid:csv", -moved)
    return NewEntry(one.now, f"payout.{kind}", f"payout:{payment.hex()}:{number}", fact, moves if moved else ())


def plans_at_their_bounds(one: ExampleLedger) -> None:
    have(one)
    there = one.ledger.balance(payable(A))
    assert there == 6 * CENT
    for payments, total in ((0, 0), (0, 1), (-1, 1), (1, 0), (1, 1), (2, 1), (2, 2), (1, there), (1, there + 1)):
        one.beside(plan(one, 1, payments, total))
    one.beside(plan(one, 0, 1, 1))
    one.beside(plan(one, 2, 1, 1))
    one.beside(sent(one, 1, CENT))


def payments_at_the_bounds_of_their_plan(one: ExampleLedger) -> None:
    have(one)
    one.put(plan(one, 1, 2, 3 * CENT))
    for amount in (0, -CENT, CENT + 1, CENT - 1, CENT, 3 * CENT, 4 * CENT):
        one.beside(sent(one, 1, amount))
    one.put(sent(one, 1, CENT))
    one.beside(sent(one, 1, CENT)._replace(key="payout:again"))
    for amount in (2 * CENT, 3 * CENT):
        one.beside(sent(one, 1, amount, payment=bytes(16)))
    one.put(sent(one, 1, CENT, payment=bytes(16)))
    one.beside(sent(one, 1, CENT, payment=bytes([1] * 16)))
    one.put(plan(one, 2, 1, 2 * CENT - 1))
    for amount in (CENT, 2 * CENT):
        one.beside(sent(one, 2, amount))


def answers_in_each_order(one: ExampleLedger) -> None:
    have(one)
    one.put(plan(one, 1, 1, CENT))
    one.put(sent(one, 1, CENT))
    first = answer(one, "confirmed", 1)
    one.put(first)
    asked = answer(one, "questioned", 2, question="absent")
    operator = {"by": "operator", "why": "the bank says so"}
    one.beside(answer(one, "confirmed", 2))
    one.beside(answer(one, "confirmed", 2, **operator))
    one.beside(answer(one, "returned", 2, CENT))
    one.beside(answer(one, "questioned", 2, question=""))
    one.put(asked)
    one.beside(answer(one, "questioned", 3, question="silence"))
    one.beside(answer(one, "questioned", 3, question=""))
    one.beside(answer(one, "confirmed", 3))
    one.beside(answer(one, "confirmed", 3, by="nobody"))
    one.beside(answer(one, "confirmed", 3, **operator))
    one.put(answer(one, "returned", 3, CENT, **operator))
    one.beside(answer(one, "confirmed", 4, -CENT, **operator))
    one.beside(answer(one, "returned", 4, **operator))
    one.put(answer(one, "questioned", 4, question="contradiction"))
    one.beside(answer(one, "returned", 5, **operator))
    one.beside(answer(one, "returned", 5))
    one.put(answer(one, "confirmed", 5, -CENT, **operator))
    one.put(answer(one, "returned", 6, CENT))


PAYMENTS: dict[str, Callable[[ExampleLedger], None]] = {
    "plans at their bounds": plans_at_their_bounds,
    "payments at the bounds of their plan": payments_at_the_bounds_of_their_plan,
    "answers in each order": answers_in_each_order,
}
