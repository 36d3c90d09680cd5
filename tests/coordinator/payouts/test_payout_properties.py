"""For any answers at any times: one key, no call beyond its life, no money lost, and no payment left in silence."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.coordinator.payouts.payout_plan import PayoutLimits, PlannedPayment, SendingLimits
from echo2.coordinator.payouts.payout_sender import PayoutSender
from echo2.coordinator.payouts.plan_files import PlanFile
from echo2.coordinator.rails.payment_states import PaymentTerms
from echo2.coordinator.rails.rail import Quote, RailAnswer
from echo2.ledger.payout_facts import (
    PAYOUT_RESTORED_KIND,
    PLANNED,
    UNITS_PER_HUNDREDTH,
    Fact,
    PayoutPlanned,
    PayoutRestored,
    Payouts,
    commitment,
    paid_account,
    payable,
    payment_id,
)
from tests.support.payout_world import node

HOUR, DAY = 3600_000, 24 * 3600_000
TERMS = PaymentTerms(resend=20 * HOUR, patience=7 * DAY)
ME, ALICE = b"p" * 16, node(1)
ROW = PlannedPayment(payment_id(b"r" * 32, 1, ALICE), ALICE, 500 * UNITS_PER_HUNDREDTH, commitment("a", ME * 2))
PLAN = PlanFile(run=b"r" * 32, plan=1, rail="https", currency="USD", head=1, head_hash=bytes(32), payments=[ROW])
WORDS = st.sampled_from(["taken", "done", "returned", "refused", "busy", "absent", "unknown"])
ANSWERS = st.builds(RailAnswer, word=WORDS, amount=st.sampled_from([None, 0, 499, 500, 500, 500, 501]))


class Books:
    """The entries of a ledger in memory, by the ledger's own rules."""

    def __init__(self) -> None:
        self.payouts, self.now = Payouts(), 100 * DAY
        self.balances = Counter({payable(ALICE): 700 * UNITS_PER_HUNDREDTH})

    async def record(self, kind: str, fact: Fact | PayoutPlanned) -> None:
        changed = self.payouts.change(kind, fact, self.now)
        for account, amount in changed.postings:
            self.balances[account] += amount
        self.payouts.accept(changed)


class Fickle:
    """A rail that gives the drawn answers in turn, and then `taken`. `sent`: the times of its calls to send."""

    def __init__(self, answers: list[RailAnswer], books: Books) -> None:
        self.answers, self.books = answers, books
        self.sent: list[int] = []
        self.keys: set[str] = set()

    def _next(self, key: str) -> RailAnswer:
        self.keys.add(key)
        return self.answers.pop(0) if self.answers else RailAnswer("taken")

    async def quote(self, account: str, amount: int) -> Quote:
        return Quote(0)

    async def send(self, idempotency_key: str, account: str, amount: int) -> RailAnswer:
        assert self.books.payouts.payments, "the entry comes before the call"
        assert (account, amount) == ("acct", 500)
        self.sent.append(self.books.now)
        return self._next(idempotency_key)

    async def status(self, idempotency_key: str) -> RailAnswer:
        return self._next(idempotency_key)

    async def cancel(self, idempotency_key: str) -> RailAnswer:
        return self._next(idempotency_key)


async def no_sleep(seconds: float) -> None:
    assert 0 <= seconds <= 60


async def live(books: Books, rail: Fickle, pauses: list[int]) -> None:
    """Send the payment unless it was put back, and ask about it until it cannot be in silence any more."""
    sender = PayoutSender(rail, books, TERMS, ME, lambda: books.now, no_sleep)
    if not books.payouts.payments:
        await books.record(PLANNED, PLAN.entry_facts())
        limits = SendingLimits(PayoutLimits(10**9, 10**9, 1), [], books.now)
        await sender.send(PLAN, {ROW.payment: "acct"}, limits)
    for pause in [*pauses, 8 * DAY + 12 * DAY]:
        books.now += pause
        await sender.reconcile(list(books.payouts.payments.values()), {ROW.payment: "acct"})


def check_end(books: Books, rail: Fickle) -> None:
    (payment,) = books.payouts.payments.values()
    assert rail.keys == {payment.key}
    assert payment.state != "sent" or payment.question, "no payment is left in silence"
    assert books.balances[payable(ALICE)] + books.balances[paid_account("https")] == 700 * UNITS_PER_HUNDREDTH
    assert books.balances[paid_account("https")] == (0 if payment.state == "returned" else 500 * UNITS_PER_HUNDREDTH)
    assert min(books.balances.values()) >= 0


@settings(max_examples=50, deadline=None)
@given(answers=st.lists(ANSWERS, max_size=16), pauses=st.lists(st.integers(-DAY, 3 * DAY), max_size=8))
@pytest.mark.slow
def test_whatever_a_provider_answers(answers: list[RailAnswer], pauses: list[int]) -> None:
    books = Books()
    rail, first = Fickle(answers, books), books.now
    asyncio.run(live(books, rail, pauses))
    assert all(0 <= at - first < TERMS.resend for at in rail.sent)
    check_end(books, rail)


@settings(max_examples=50, deadline=None)
@given(answers=st.lists(ANSWERS, max_size=16), pauses=st.lists(st.integers(-DAY, 3 * DAY), max_size=8))
def test_whatever_a_provider_answers_a_payment_that_was_put_back_is_never_sent(
    answers: list[RailAnswer], pauses: list[int]
) -> None:
    books = Books()
    lost = PayoutRestored(
        payment=ROW.payment, plan=1, node=ALICE, rail="https", provider=ME, account=ROW.account, amount=ROW.amount,
        file=bytes(32),
    )  # fmt: skip
    asyncio.run(books.record(PAYOUT_RESTORED_KIND, lost))
    rail = Fickle(answers, books)
    asyncio.run(live(books, rail, pauses))
    assert rail.sent == []
    check_end(books, rail)
