"""The choice of payments and the limits of sending."""

from echo2.coordinator.payouts.payout_plan import KnownPayees, Payee, PayoutLimits, SendingLimits, choose, payable_at
from echo2.coordinator.rails import account_text
from echo2.ledger.balance_waits import BalanceWait
from echo2.ledger.ledger_entries import Entry, Posting
from echo2.ledger.payout_facts import UNITS_PER_HUNDREDTH, PayoutSent, SentPayment, commitment, payable, payment_id
from tests.support.payout_world import node

RUN, NOW, DAY = b"r" * 32, 10_000_000_000, 24 * 3600_000
A, B, C = sorted(node(number) for number in (1, 2, 3))
LIMITS = PayoutLimits(day=1000, node=600, minimum=100)
SALT = b"s" * 32


def everybody(accounts: dict[str, Payee]) -> KnownPayees:
    return KnownPayees(accounts, {})


def payee(account: str = "alice@example.org") -> Payee:
    return Payee(account, SALT)


def sent(peer: str, state: str = "sent", *, at: int = NOW, amount: int = 100, question: str = "") -> SentPayment:
    fact = PayoutSent(
        payment=payment_id(RUN, 1, peer), plan=1, node=peer, rail="csv", provider=bytes(16), account=bytes(32),
        amount=amount * UNITS_PER_HUNDREDTH,
    )  # fmt: skip
    return SentPayment(fact, at, state, at, question=question)


def test_a_plan_pays_whole_hundredths_up_to_the_limit_and_leaves_the_rest() -> None:
    owed = {A: 250 * UNITS_PER_HUNDREDTH + 7, B: 601 * UNITS_PER_HUNDREDTH, C: 99 * UNITS_PER_HUNDREDTH + 9_999_999}
    chosen = choose(RUN, 3, owed, everybody(dict.fromkeys(owed, payee())), [], LIMITS, NOW, account_text.check)
    assert [(one.node, one.amount) for one in chosen.payments] == [
        (A, 250 * UNITS_PER_HUNDREDTH),
        (B, 600 * UNITS_PER_HUNDREDTH),
    ]
    assert [one.payment for one in chosen.payments] == [payment_id(RUN, 3, A), payment_id(RUN, 3, B)]
    assert {one.account for one in chosen.payments} == {commitment("alice@example.org", SALT)}
    assert chosen.rest == 7 + UNITS_PER_HUNDREDTH
    assert [(one.node, one.why) for one in chosen.left_out] == [(C, "less than the least payment, 1.00")]


def test_each_plan_and_node_has_a_key_of_its_own() -> None:
    assert len({payment_id(run, plan, peer) for run in (RUN, b"q" * 32) for plan in (1, 2) for peer in (A, B)}) == 8


def test_a_node_without_a_sound_account_is_left_out_with_the_reason() -> None:
    owed = dict.fromkeys((A, B, C), 200 * UNITS_PER_HUNDREDTH)
    payees = {A: payee("=1+1"), C: payee("x" * 10_240)}
    chosen = choose(RUN, 1, owed, everybody(payees), [], LIMITS, NOW, account_text.check)
    assert chosen.payments == []
    words = {one.node: one.why for one in chosen.left_out}
    assert "formula" in words[A]
    assert words[B] == "no account is known: its owner names one by `echo2-node payout set`"
    assert "10240 characters" in words[C]


def test_a_node_waits_while_a_payment_is_open_in_question_or_just_came_back() -> None:
    owed = {A: 200 * UNITS_PER_HUNDREDTH}

    def words(payment: SentPayment) -> str:
        chosen = choose(RUN, 2, owed, everybody({A: payee()}), [payment], LIMITS, NOW, account_text.check)
        return chosen.left_out[0].why if chosen.left_out else ""

    assert "no final answer" in words(sent(A))
    assert "in question" in words(sent(A, "returned", at=0, question="contradiction"))
    assert "came back" in words(sent(A, "returned", at=NOW - DAY + 1))
    assert words(sent(A, "returned", at=NOW - DAY)) == ""
    assert words(sent(A, "confirmed")) == ""
    assert words(sent(B)) == ""


def test_what_was_spent_after_the_head_or_earned_after_it_is_in_no_plan() -> None:
    balances = {payable(A): 50, payable(B): 70, payable(C): 0, "fund:operator": -120, f"node:{A}:accrued": 9}
    after = [Entry(1, 0, "x", "x", (Posting(payable(A), -30), Posting(payable(B), 60)), b"", b"")]
    assert payable_at(balances, after) == {A: 50, B: 10}


def test_the_limits_hold_within_any_24_hours_for_money_that_came_back_as_well() -> None:
    earlier = [sent(A, "returned", at=NOW - DAY + 1, amount=500), sent(B, at=NOW - DAY, amount=999)]
    limits = SendingLimits(LIMITS, earlier, NOW)
    assert "node" in limits.forbid(A, 101 * UNITS_PER_HUNDREDTH)
    assert limits.forbid(A, 100 * UNITS_PER_HUNDREDTH) == ""
    assert limits.forbid(B, 500 * UNITS_PER_HUNDREDTH) == ""
    limits.count(B, 500 * UNITS_PER_HUNDREDTH)
    assert "per day" in limits.forbid(C, 1 * UNITS_PER_HUNDREDTH)


def test_a_clock_that_was_set_back_raises_no_limit() -> None:
    limits = SendingLimits(LIMITS, [sent(A, at=NOW + 5 * DAY, amount=1000)], NOW)
    assert "per day" in limits.forbid(B, UNITS_PER_HUNDREDTH)


def test_a_successor_waits_while_a_payment_to_the_key_before_is_open() -> None:
    owed = {A: 200 * UNITS_PER_HUNDREDTH, B: 300 * UNITS_PER_HUNDREDTH}
    waits = {A: BalanceWait(B, NOW + 1, moved=True)}
    payees = {A: payee(), B: payee()}

    def chosen(state: str, waits: dict[str, BalanceWait]) -> tuple[list[str], dict[str, str]]:
        known = KnownPayees(payees, {}, waits)
        one = choose(RUN, 2, owed, known, [sent(A, state, at=0)], LIMITS, NOW, account_text.check)
        return [payment.node for payment in one.payments], {left.node: left.why for left in one.left_out}

    paid, left = chosen("sent", waits)
    assert paid == []
    assert "its balance moves to" in left[A]
    assert "no final answer" in left[B]
    assert chosen("confirmed", waits)[0] == [B]
    assert chosen("confirmed", {A: waits[A]._replace(disputed=True)})[0] == [B]
    assert chosen("confirmed", {A: waits[A]._replace(disputed=True, due=NOW)})[0] == sorted([A, B])
    assert chosen("sent", {A: waits[A]._replace(disputed=True, due=NOW)})[0] == [B]


def test_a_key_that_replaced_a_withheld_one_is_withheld_too() -> None:
    owed, waits = {A: 200 * UNITS_PER_HUNDREDTH, B: 300 * UNITS_PER_HUNDREDTH}, {A: BalanceWait(B, NOW - 1, moved=True)}
    known = KnownPayees({A: payee(), B: payee()}, {}, waits, withheld=[A])
    chosen = choose(RUN, 2, owed, known, [], LIMITS, NOW, account_text.check)
    assert {left.node for left in chosen.left_out} == {A, B}
    assert "you withhold its pay" in SendingLimits(LIMITS, [], NOW, waits, [A]).forbid(B, UNITS_PER_HUNDREDTH)
