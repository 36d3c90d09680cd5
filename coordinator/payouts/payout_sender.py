"""Send the payments of a plan, and ask what became of those that were sent.

Rules
1. A payment's `payout.sent` is durable before its rail is called first; the key and the account never change after.
2. After each answer coordinator/rails/payment_states.py decides. A payment gets at most `MOST_CALLS` calls per pass;
   one that is not final then waits for the next pass.
3. A payment is asked about over the provider that it was sent over, and no other.
4. After `busy` the pass waits as long as the provider asks for, at most `MOST_WAIT`. After `IN_A_ROW` payments in a row
   without a clear answer it ends: the provider is down, and no further money is put in doubt.
5. An answer that a person was asked about and has answered raises no second question while the provider repeats it.
6. A pass that is killed at any point is continued by the next: entries tell what may have left.
7. A payment that was put back after a restore is asked about, and never sent.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from echo2.coordinator.payouts.payout_book import PayoutBook
from echo2.coordinator.payouts.payout_plan import PlannedPayment, SendingLimits
from echo2.coordinator.payouts.plan_files import PlanFile
from echo2.coordinator.rails.payment_states import (
    Decision,
    Payment,
    PaymentTerms,
    Question,
    State,
    after_send,
    after_status,
)
from echo2.coordinator.rails.rail import Rail, RailAnswer
from echo2.ledger.payout_facts import (
    CONFIRMED,
    QUESTIONED,
    RETURNED,
    SENT,
    UNITS_PER_HUNDREDTH,
    PayoutEnded,
    PayoutQuestioned,
    PayoutSent,
    SentPayment,
)
from echo2.runtime.errors import LocalFault

MOST_CALLS: Final = 6
"""Calls about one payment per pass."""
MOST_WAIT: Final = 60.0
"""Seconds of one wait after `busy`."""
IN_A_ROW: Final = 8


@dataclass
class Passed:
    """The outcome of a pass. `sent`: payments sent for the first time. `limited`: payments that a limit held back.
    `ended`: why the pass ended early; empty: it did not. `skipped`: payments of another provider. `repeated`: payments
    about which the provider repeats what a person decided otherwise (rule 5)."""

    sent: int = 0
    confirmed: int = 0
    returned: int = 0
    questions: list[str] = field(default_factory=list)
    repeated: list[SentPayment] = field(default_factory=list)
    open: int = 0
    limited: dict[str, int] = field(default_factory=dict)
    skipped: int = 0
    words: list[str] = field(default_factory=list)
    ended: str = ""


class PayoutSender:
    """Passes over the payments of a run. `provider`: 16 bytes that name the rail's provider. `clock`: ms. `sleep`:
    waits so many seconds. `told`: called with each answer, for the operator's own record. `repeats`: tells whether the
    provider had given an answer before the payment's last entry already."""

    def __init__(
        self, rail: Rail, payments_book: PayoutBook, terms: PaymentTerms, provider: bytes, clock: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        told: Callable[[str, RailAnswer], None] = lambda key, answer: None,
        repeats: Callable[[SentPayment, RailAnswer], bool] = lambda payment, answer: False,
    ) -> None:  # fmt: skip
        self._rail, self._payments_book, self._terms, self._provider = rail, payments_book, terms, provider
        self._clock, self._sleep, self._told, self._repeats = clock, sleep, told, repeats
        self._unclear = 0
        self._passed = Passed()

    async def send(self, plan: PlanFile, accounts: Mapping[bytes, str], limits: SendingLimits) -> Passed:
        """Send what a plan has and the limits allow; payments that were sent before are asked about."""
        self._begin()
        for one in plan.payments:
            if self._passed.ended:
                break
            known = self._payments_book.payouts.payments.get(one.payment)
            if known is None:
                await self._first(plan, one, accounts[one.payment], limits)
            elif known.state == "sent":
                await self._ask(known, accounts[one.payment])
        return self._end()

    async def reconcile(self, payments: Iterable[SentPayment], accounts: Mapping[bytes, str]) -> Passed:
        """Ask what became of payments. `accounts`: accounts of those that may be sent again, by payment."""
        self._begin()
        for payment in payments:
            if self._passed.ended:
                break
            await self._ask(payment, accounts.get(payment.sent.payment))
        return self._end()

    async def cancel(self, payment: SentPayment) -> RailAnswer:
        """Have the provider stop a payment; record what follows. Raises `LocalFault` for one of another provider."""
        if payment.sent.provider != self._provider:
            raise LocalFault(f"payment {payment.key} was sent over another provider: set payout.* back to it")
        answer = await self._rail.cancel(payment.key)
        self._told(payment.key, answer)
        if answer.word != "absent":
            await self._record(payment, after_status(_state(payment), answer, self._clock(), self._terms))
        return answer

    def _begin(self) -> None:
        self._passed, self._unclear = Passed(), 0

    def _end(self) -> Passed:
        payments = self._payments_book.payouts.payments.values()
        self._passed.open = sum(one.state == "sent" for one in payments)
        return self._passed

    async def _first(self, plan: PlanFile, one: PlannedPayment, account: str, limits: SendingLimits) -> None:
        why = limits.forbid(one.node, one.amount)
        if why:
            self._passed.limited[why] = self._passed.limited.get(why, 0) + 1
            return
        fact = PayoutSent(
            payment=one.payment, plan=plan.plan, node=one.node, rail=plan.rail, provider=self._provider,
            account=one.account, amount=one.amount,
        )  # fmt: skip
        await self._payments_book.record(SENT, fact)
        limits.count(one.node, one.amount)
        self._passed.sent += 1
        payment = self._payments_book.payouts.payments[one.payment]
        await self._follow(payment, account, await self._send(payment, account), called="send")

    async def _ask(self, payment: SentPayment, account: str | None) -> None:
        if payment.sent.provider != self._provider:
            self._passed.skipped += 1
            return
        answer = await self._status(payment)
        await self._follow(payment, account, answer, called="status")

    async def _follow(self, payment: SentPayment, account: str | None, answer: RailAnswer, *, called: str) -> None:
        """Make the calls that follow from an answer, and record what they lead to (rule 2)."""
        refused = called == "send" and answer.word == "refused"
        for _ in range(MOST_CALLS):
            if answer.word == "busy":
                await self._sleep(max(0.0, min(MOST_WAIT, 1.0 if answer.wait is None else answer.wait)))
                answer, called = await self._status(payment), "status"
                continue
            if called == "send":
                decision = after_send(_state(payment), answer)
            else:
                decision = after_status(_state(payment), answer, self._clock(), self._terms, refused=refused)
            if decision.step == "ask":
                answer, called = await self._status(payment), "status"
            elif decision.step == "send" and account is not None:
                answer, called = await self._send(payment, account), "send"
                refused = answer.word == "refused"
            elif decision.step == "question" and payment.answered and self._repeats(payment, answer):
                self._passed.repeated.append(payment)
                break
            else:
                await self._record(payment, decision)
                break
        else:  # no call is left: the answer counts as none, and a payment without one for too long is a question
            unclear = RailAnswer("unknown", why=answer.why)
            await self._record(payment, after_status(_state(payment), unclear, self._clock(), self._terms))
        self._count(answer)

    async def _send(self, payment: SentPayment, account: str) -> RailAnswer:
        answer = await self._rail.send(payment.key, account, payment.sent.amount // UNITS_PER_HUNDREDTH)
        self._told(payment.key, answer)
        return answer

    async def _status(self, payment: SentPayment) -> RailAnswer:
        answer = await self._rail.status(payment.key)
        self._told(payment.key, answer)
        return answer

    async def _record(self, payment: SentPayment, decision: Decision) -> None:
        about, number, node = payment.sent.payment, payment.number + 1, payment.sent.node
        if decision.step == "confirmed":
            await self._payments_book.record(CONFIRMED, PayoutEnded(payment=about, number=number, node=node))
            self._passed.confirmed += 1
        elif decision.step == "returned":
            await self._payments_book.record(RETURNED, PayoutEnded(payment=about, number=number, node=node))
            self._passed.returned += 1
        elif decision.step == "question":
            asked = PayoutQuestioned(payment=about, number=number, node=node, question=decision.question)
            await self._payments_book.record(QUESTIONED, asked)
            self._passed.questions.append(payment.key)

    def _count(self, answer: RailAnswer) -> None:
        unclear = answer.word in ("unknown", "busy")
        self._unclear = self._unclear + 1 if unclear else 0
        if unclear and answer.why not in self._passed.words:
            self._passed.words = [*self._passed.words, answer.why][:8]
        if self._unclear >= IN_A_ROW:
            self._passed.ended = f"{IN_A_ROW} payments in a row got no clear answer: {answer.why}"


def _state(payment: SentPayment) -> Payment:
    """Return a payment as the rails' rules see it."""
    state: State = payment.state  # type: ignore[assignment]  # one of the three, by ledger/payout_facts.py
    question: Question = payment.question  # type: ignore[assignment]  # one of the four
    return Payment(state, payment.sent.amount // UNITS_PER_HUNDREDTH, payment.at, question, payment.restored)
