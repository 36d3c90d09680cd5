"""The facts of entries about payments in money, and what follows from them. Pure.

Rules
1. A `payout.planned` (key "payouts:<plan>") states a plan: its number, its rail, number and sum of its payments, the
   hash of its file, the LedgerHead on which it rests, and whether it was made before nodes had confirmed that the
   ledger is the newest (`unwitnessed`). It moves nothing. Numbers of plans rise; the first is 1 or more.
2. A payment's entries have the keys "payout:<payment>:0", ":1", ... in order. The first is its `payout.sent`, which
   belongs to the newest plan, or its `payout.restored` (rule 7). It moves the amount from the node's `payable` to
   `paid:<rail>`.
3. A `payout.returned` of money that counts as gone moves it back. A `payout.confirmed` of money that had come back
   moves it again: a person alone says so, as an answer to a question. Neither moves anything else.
4. A `payout.questioned` states that a person must look; it moves nothing. The next `confirmed` or `returned` closes it.
5. A plan's payments are at most as many, and add up to at most as much, as its `payout.planned` states. That is no more
   than all nodes' `payable` together.
6. Entries name accounts outside the run by commitments alone, and no words of a provider.
7. A `payout.restored` states a payment that was sent before a copy took the ledger's place, and of which the copy lacks
   the entries. It names the hash of its plan's file, which the ledger may lack as well. From then on nothing is sent of
   its plan, nor of an earlier one, and a later plan has a greater number.
"""

import hashlib
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from echo2.ledger.ledger_entries import Entry, LedgerFault, Posting, transfer
from echo2.protocol.payee_accounts import account_hash

RULES: Final = 1
PLANNED, SENT = "payout.planned", "payout.sent"
CONFIRMED, RETURNED, QUESTIONED = "payout.confirmed", "payout.returned", "payout.questioned"
PAYOUT_RESTORED_KIND = "payout.restored"
KINDS: Final = (PLANNED, SENT, CONFIRMED, RETURNED, QUESTIONED, PAYOUT_RESTORED_KIND)
RAILS: Final = ("csv", "command", "bank", "https")
PAYMENT_ANSWERERS: Final = ("provider", "operator")
PLANS, PAYMENTS = "payouts:", "payout:"
"""Prefixes of the keys of entries: of plans, and of payments."""
UNITS_PER_HUNDREDTH: Final = 10_000_000
"""Units of the ledger (10^-9 of the currency) in a hundredth of the currency: all that a rail can move."""


class PayoutPlanned(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `payout.planned`. `payments`, `total`: their number and sum, 10^-9 of `currency`. `file`: SHA-256 of the
    plan's file. `head`, `head_hash`: number and SHA-256 of the sealed LedgerHead. `unwitnessed`: the operator went on
    before nodes had told that the ledger is the newest."""

    rules: int = RULES
    plan: int
    rail: str
    currency: str
    payments: int
    total: int
    file: bytes
    head: int
    head_hash: bytes
    unwitnessed: bool = False


class PayoutSent(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `payout.sent`. `payment`: 16 bytes, the idempotency key. `account`: the commitment to the payee's
    account. `provider`: 16 bytes that name the provider. `amount`: 10^-9 of the currency."""

    rules: int = RULES
    payment: bytes
    plan: int
    node: str
    rail: str
    provider: bytes
    account: bytes
    amount: int


class PayoutRestored(PayoutSent, frozen=True, kw_only=True):
    """Facts of `payout.restored`. `plan`: plan to which the payment belonged. `file`: SHA-256 of that plan's file."""

    file: bytes


class PayoutEnded(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `payout.confirmed` and `payout.returned`. `number`: number of the entry among the payment's, from 1.
    `by`: "provider" or "operator". `why`: the operator's words."""

    rules: int = RULES
    payment: bytes
    number: int
    node: str
    by: str = "provider"
    why: str = ""


class PayoutQuestioned(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `payout.questioned`. `question`: amount, contradiction, absent or silence."""

    rules: int = RULES
    payment: bytes
    number: int
    node: str
    question: str


class SentPayment(NamedTuple):
    """A payment, as its entries make it. `state`: sent, confirmed or returned. `at`: time of its first entry, ms.
    `changed`: time of its last entry, ms. `number`: number of its last entry. `question`: that is open; empty: none.
    `answered`: its last entry is the operator's answer to a question."""

    sent: PayoutSent
    at: int
    state: str
    changed: int
    number: int = 0
    question: str = ""
    answered: bool = False

    @property
    def key(self) -> str:
        """The idempotency key, as rails and people name it."""
        return self.sent.payment.hex()

    @property
    def restored(self) -> bool:
        """Whether it was put back after a restore: nobody knows when its key was used first (rule 7)."""
        return isinstance(self.sent, PayoutRestored)


class PlanSums(NamedTuple):
    """The newest plan, and how many of its payments were sent, with their sum. `ended`: no more may be (rule 7)."""

    planned: PayoutPlanned
    payments: int = 0
    total: int = 0
    ended: bool = False


class PaymentChange(NamedTuple):
    """The effect of an entry on its payment: the payment after it, the entry's key and postings."""

    payment: SentPayment
    key: str
    postings: tuple[Posting, ...]


class PayoutChange(NamedTuple):
    """The effect of an entry: its key and postings, and what stands after it. `plan`, `number`: the same as in
    `Payouts`. `payment`: None: the entry is about a plan."""

    key: str
    postings: tuple[Posting, ...]
    plan: PlanSums | None
    number: int
    payment: SentPayment | None = None


Fact = PayoutSent | PayoutEnded | PayoutQuestioned


def payable(node: str) -> str:
    """Return the account of what may be paid to a node. `node`: its peer id."""
    return f"node:{node}:payable"


def paid_account(rail: str) -> str:
    return f"paid:{rail}"


def payment_id(run: bytes, plan: int, node: str) -> bytes:
    """Return the id of a plan's payment to a node, which is its idempotency key."""
    return hashlib.sha256(b"echo2/payout" + run + plan.to_bytes(8, "big") + node.encode()).digest()[:16]


def commitment(account: str, salt: bytes) -> bytes:
    """Return the commitment to an account outside the run. `salt`: 32 random bytes, kept with the account."""
    return account_hash(account, salt)


def _apply_plan(number: int, fact: PayoutPlanned) -> PayoutChange:
    """Return what a plan changes (rule 1). `number`: the greatest so far. Raises `LedgerFault`."""
    if fact.plan <= number or fact.rail not in RAILS or fact.payments < 1 or fact.total < fact.payments:
        raise LedgerFault(f"this is no plan behind plan {number} of payments over one of {', '.join(RAILS)}")
    return PayoutChange(f"{PLANS}{fact.plan}", (), PlanSums(fact), fact.plan)


def check_total(fact: PayoutPlanned, balances: Mapping[str, int]) -> None:
    """Check that a plan pays out no more than is payable. `balances`: balances before it. Raises `LedgerFault`."""
    most = sum(amount for account, amount in balances.items() if account.endswith(":payable"))
    if fact.total > most:
        raise LedgerFault(f"a plan of {fact.total}, where {most} is payable")


def _count_payment(newest: PlanSums | None, fact: PayoutSent) -> PlanSums:
    """Count a payment in the newest plan (rules 2 and 5). Raises `LedgerFault`."""
    if newest is None or newest.ended or (fact.plan, fact.rail) != (newest.planned.plan, newest.planned.rail):
        raise LedgerFault("a payment belongs to the newest plan, and goes over its rail")
    sums = newest._replace(payments=newest.payments + 1, total=newest.total + fact.amount)
    if sums.payments > newest.planned.payments or sums.total > newest.planned.total:
        raise LedgerFault(f"plan {fact.plan} has fewer payments, or a smaller sum")
    return sums


def _change(before: SentPayment | None, kind: str, fact: Fact, at: int) -> PaymentChange:
    """Return what an entry changes of its payment (rules 2 to 4). `before`: the payment; None: it is its first entry.
    Raises `LedgerFault` for an entry that cannot follow."""
    if isinstance(fact, PayoutSent):
        return _apply_sending(before, kind, fact, at)
    if before is None or (fact.payment, fact.node) != (before.sent.payment, before.sent.node):
        raise LedgerFault(f"a {kind} follows the first entry of its payment")
    if fact.number != before.number + 1:
        raise LedgerFault(f"entry {before.number + 1} of this payment is next, not {fact.number}")
    key = f"{PAYMENTS}{before.key}:{fact.number}"
    if isinstance(fact, PayoutQuestioned):
        if kind != QUESTIONED or before.question or not fact.question:
            raise LedgerFault("one question about a payment is open at a time")
        asked = before._replace(changed=at, number=fact.number, question=fact.question, answered=False)
        return PaymentChange(asked, key, ())
    return PaymentChange(*_apply_end(before, kind, fact, at, key))


def _apply_sending(before: SentPayment | None, kind: str, fact: PayoutSent, at: int) -> PaymentChange:
    sound = before is None and fact.amount > 0 and fact.amount % UNITS_PER_HUNDREDTH == 0 and fact.rail in RAILS
    if isinstance(fact, PayoutRestored):
        sound = sound and kind == PAYOUT_RESTORED_KIND and fact.plan > 0 and len(fact.file) == 32
    else:
        sound = sound and kind == SENT
    if not sound or (len(fact.payment), len(fact.provider), len(fact.account)) != (16, 16, 32):
        raise LedgerFault("this is no first entry of a payment, or its amount is not one that a rail can move")
    postings = transfer(payable(fact.node), paid_account(fact.rail), fact.amount)
    return PaymentChange(SentPayment(fact, at, "sent", at), f"{PAYMENTS}{fact.payment.hex()}:0", postings)


def _apply_end(
    before: SentPayment, kind: str, fact: PayoutEnded, at: int, key: str
) -> tuple[SentPayment, str, tuple[Posting, ...]]:
    state = {CONFIRMED: "confirmed", RETURNED: "returned"}.get(kind)
    answers = bool(before.question) and fact.by == "operator"
    follows = before.state == "sent" or (before.state, state) == ("confirmed", "returned")
    if state is None or fact.by not in PAYMENT_ANSWERERS or not (follows or answers):
        raise LedgerFault(f"a {kind} by the {fact.by} cannot follow: the payment is {before.state}")
    after = before._replace(state=state, changed=at, number=fact.number, question="", answered=answers)
    source, target = payable(before.sent.node), paid_account(before.sent.rail)
    if state == "returned" and before.state != "returned":
        return after, key, transfer(target, source, before.sent.amount)
    if state == "confirmed" and before.state == "returned":
        return after, key, transfer(source, target, before.sent.amount)
    return after, key, ()


_FACTS: Final[dict[str, type[Fact | PayoutPlanned]]] = {
    PLANNED: PayoutPlanned,
    SENT: PayoutSent, CONFIRMED: PayoutEnded, RETURNED: PayoutEnded, QUESTIONED: PayoutQuestioned,
    PAYOUT_RESTORED_KIND: PayoutRestored,
}  # fmt: skip


def fact_of(kind: str, facts: bytes) -> Fact | PayoutPlanned:
    """Return the facts of an entry about a payment or a plan. Raises `msgspec.MsgspecError`."""
    return msgspec.msgpack.decode(facts, type=_FACTS[kind])


class Payouts:
    """All payments of a ledger, from its entries in order. `plan`: the newest; None: there is none yet. `number`: the
    greatest number of a plan so far; 0: there is none. `files`: the hashes of the files of all plans."""

    def __init__(self) -> None:
        self.plan: PlanSums | None = None
        self.number = 0
        self.files: set[bytes] = set()
        self.payments: dict[bytes, SentPayment] = {}

    def change(self, kind: str, fact: Fact | PayoutPlanned, at: int) -> PayoutChange:
        """Return what an entry would change, and change nothing. `at`: ms. Raises `LedgerFault` for one that cannot
        follow."""
        if isinstance(fact, PayoutPlanned):
            return _apply_plan(self.number, fact)
        changed = _change(self.payments.get(fact.payment), kind, fact, at)
        plan, number = self.plan, self.number
        if isinstance(fact, PayoutRestored):
            ends = plan is not None and fact.plan >= number
            plan, number = plan._replace(ended=True) if plan and ends else plan, max(number, fact.plan)
        elif isinstance(fact, PayoutSent):
            plan = _count_payment(plan, fact)
        return PayoutChange(changed.key, changed.postings, plan, number, changed.payment)

    def accept(self, changed: PayoutChange) -> None:
        """Let a change count."""
        self.plan, self.number = changed.plan, changed.number
        if changed.payment is not None:
            self.payments[changed.payment.sent.payment] = changed.payment
        elif changed.plan is not None:
            self.files.add(changed.plan.planned.file)

    def restored_files(self) -> set[bytes]:
        """Return the hashes of the files of plans of which payments were put back."""
        return {one.sent.file for one in self.payments.values() if isinstance(one.sent, PayoutRestored)}

    def take(self, entry: Entry) -> tuple[str, tuple[Posting, ...]]:
        """Take an entry of one of `KINDS`; return the key and the postings that it must have. Raises `LedgerFault`,
        `msgspec.MsgspecError`."""
        changed = self.change(entry.kind, fact_of(entry.kind, entry.facts), entry.at)
        self.accept(changed)
        return changed.key, changed.postings
