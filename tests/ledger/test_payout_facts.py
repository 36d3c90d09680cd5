"""Entries about payments: what may follow what, what moves, and the golden vectors."""

import hashlib
import json
from pathlib import Path

import msgspec
import pytest

from echo2.ledger.ledger_entries import ORIGIN, Entry, LedgerFault, Posting, Tampered, canonical, chain_hash
from echo2.ledger.ledger_replay import LedgerReplay
from echo2.ledger.payout_facts import (
    CONFIRMED,
    KINDS,
    PAYOUT_RESTORED_KIND,
    PLANNED,
    QUESTIONED,
    RETURNED,
    SENT,
    UNITS_PER_HUNDREDTH,
    Fact,
    PayoutEnded,
    PayoutPlanned,
    PayoutQuestioned,
    PayoutRestored,
    Payouts,
    PayoutSent,
    commitment,
    paid_account,
    payable,
    payment_id,
)
from echo2.p2p.identity import peer_id
from tests.support import paths

RUN, NODE = b"r" * 32, peer_id(bytes([1]) * 32)
ID = payment_id(RUN, 1, NODE)
PLAN = PayoutPlanned(
    plan=1,
    rail="https",
    currency="USD",
    payments=1,
    total=500 * UNITS_PER_HUNDREDTH,
    file=b"f" * 32,
    head=7,
    head_hash=b"h" * 32,
)
SEND = PayoutSent(
    payment=ID, plan=1, node=NODE, rail="https", provider=b"p" * 16, account=commitment("alice", b"s" * 32),
    amount=500 * UNITS_PER_HUNDREDTH,
)  # fmt: skip
LOST = PayoutRestored(
    payment=ID, plan=1, node=NODE, rail="https", provider=b"p" * 16, account=SEND.account,
    amount=500 * UNITS_PER_HUNDREDTH, file=b"f" * 32,
)  # fmt: skip
GONE = (Posting(payable(NODE), -500 * UNITS_PER_HUNDREDTH), Posting(paid_account("https"), 500 * UNITS_PER_HUNDREDTH))
BACK = (Posting(paid_account("https"), -500 * UNITS_PER_HUNDREDTH), Posting(payable(NODE), 500 * UNITS_PER_HUNDREDTH))
Step = tuple[str, Fact | PayoutPlanned]


def ended(number: int, by: str = "provider") -> PayoutEnded:
    return PayoutEnded(payment=ID, number=number, node=NODE, by=by, why="the bank says so" if by != "provider" else "")


def asked(number: int, question: str = "amount") -> PayoutQuestioned:
    return PayoutQuestioned(payment=ID, number=number, node=NODE, question=question)


STEPS: list[Step] = [(PLANNED, PLAN), (SENT, SEND)]


def entries(steps: list[Step]) -> list[Entry]:
    """Return a ledger of these steps, with the keys and postings that follow."""
    payouts, before, made = Payouts(), ORIGIN, list[Entry]()
    for seq, (kind, fact) in enumerate(steps, start=1):
        facts = msgspec.msgpack.encode(fact)
        key, postings = payouts.take(Entry(seq, seq * 1000, kind, "", (), facts, b""))
        before = chain_hash(before, canonical(seq, seq * 1000, kind, key, postings, facts))
        made.append(Entry(seq, seq * 1000, kind, key, postings, facts, before))
    return made


def replay_of() -> LedgerReplay:
    """Return a replay in which the plan's amount is payable."""
    replay = LedgerReplay(())
    replay._balances[payable(NODE)] = PLAN.total
    return replay


FOLLOW: dict[str, tuple[list[Step], list[tuple[Posting, ...]]]] = {
    "confirmed": ([(CONFIRMED, ended(1))], [()]),
    "returned": ([(RETURNED, ended(1))], [BACK]),
    "returned days later": ([(CONFIRMED, ended(1)), (RETURNED, ended(2))], [(), BACK]),
    "a question answered": ([(QUESTIONED, asked(1)), (CONFIRMED, ended(2, "operator"))], [(), ()]),
    "a question that the provider answers": ([(QUESTIONED, asked(1, "silence")), (RETURNED, ended(2))], [(), BACK]),
    "it had arrived after all": (
        [(RETURNED, ended(1)), (QUESTIONED, asked(2, "contradiction")), (CONFIRMED, ended(3, "operator"))],
        [BACK, (), GONE],
    ),
    "it had not arrived": (
        [(RETURNED, ended(1)), (QUESTIONED, asked(2, "contradiction")), (RETURNED, ended(3, "operator"))],
        [BACK, (), ()],
    ),
}


@pytest.mark.parametrize(("steps", "postings"), FOLLOW.values(), ids=FOLLOW.keys())
def test_what_may_follow_and_what_it_moves(steps: list[Step], postings: list[tuple[Posting, ...]]) -> None:
    made = entries([*STEPS, *steps])
    assert [entry.postings for entry in made] == [(), GONE, *postings]
    keys = ["payouts:1", f"payout:{ID.hex()}:0"] + [f"payout:{ID.hex()}:{n + 1}" for n in range(len(steps))]
    assert [entry.key for entry in made] == keys
    replay = replay_of()
    for entry in made:
        replay.take(entry)


OTHER = msgspec.structs.replace
NEXT = OTHER(PLAN, plan=2, payments=2)
LATER = OTHER(SEND, payment=b"l" * 16, plan=2, amount=UNITS_PER_HUNDREDTH)
BACK_AGAIN: dict[str, tuple[list[Step], list[tuple[Posting, ...]]]] = {
    "of a plan that the ledger lacks, and it arrived": (
        [(PAYOUT_RESTORED_KIND, LOST), (CONFIRMED, ended(1))], [GONE, ()],
    ),
    "of one that it has, and it came back": (
        [(PLANNED, PLAN), (PAYOUT_RESTORED_KIND, LOST), (RETURNED, ended(1))], [(), GONE, BACK],
    ),
    "of an earlier plan than the one that is sent": (
        [(PLANNED, NEXT), (SENT, LATER), (PAYOUT_RESTORED_KIND, LOST), (SENT, OTHER(LATER, payment=b"m" * 16))],
        [(), (Posting(payable(NODE), -UNITS_PER_HUNDREDTH), Posting(paid_account("https"), UNITS_PER_HUNDREDTH)), GONE,
         (Posting(payable(NODE), -UNITS_PER_HUNDREDTH), Posting(paid_account("https"), UNITS_PER_HUNDREDTH))],
    ),
    "and a later plan is made": (
        [(PAYOUT_RESTORED_KIND, OTHER(LOST, plan=6)), (PLANNED, OTHER(PLAN, plan=7))], [GONE, ()],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("steps", "postings"), BACK_AGAIN.values(), ids=BACK_AGAIN.keys())
def test_a_payment_is_put_back(steps: list[Step], postings: list[tuple[Posting, ...]]) -> None:
    made = entries(steps)
    assert [entry.postings for entry in made] == postings
    replay = replay_of()
    replay._balances[payable(NODE)] *= 2
    for entry in made:
        replay.take(entry)


CANNOT: dict[str, list[Step]] = {
    "a payment without a plan": [(SENT, SEND)],
    "a second plan 1": [(PLANNED, PLAN), (PLANNED, PLAN)],
    "a plan of nothing": [(PLANNED, OTHER(PLAN, payments=0))],
    "a plan of points": [(PLANNED, OTHER(PLAN, rail="points"))],
    "a payment sent twice": [*STEPS, (SENT, SEND)],
    "a payment of an earlier plan": [(PLANNED, PLAN), (PLANNED, OTHER(PLAN, plan=2)), (SENT, SEND)],
    "more than planned": [(PLANNED, OTHER(PLAN, total=499 * UNITS_PER_HUNDREDTH)), (SENT, SEND)],
    "more payments than planned": [*STEPS, (SENT, OTHER(SEND, payment=bytes(16), amount=UNITS_PER_HUNDREDTH))],
    "another rail": [(PLANNED, PLAN), (SENT, OTHER(SEND, rail="csv"))],
    "a part of a hundredth": [(PLANNED, PLAN), (SENT, OTHER(SEND, amount=UNITS_PER_HUNDREDTH + 1))],
    "nothing": [(PLANNED, PLAN), (SENT, OTHER(SEND, amount=0))],
    "a negative amount": [(PLANNED, PLAN), (SENT, OTHER(SEND, amount=-UNITS_PER_HUNDREDTH))],
    "a short key": [(PLANNED, PLAN), (SENT, OTHER(SEND, payment=b"x"))],
    "an end before the sending": [(PLANNED, PLAN), (CONFIRMED, ended(1))],
    "a number too high": [*STEPS, (CONFIRMED, ended(2))],
    "another node": [*STEPS, (CONFIRMED, OTHER(ended(1), node=peer_id(bytes([2]) * 32)))],
    "confirmed twice": [*STEPS, (CONFIRMED, ended(1)), (CONFIRMED, ended(2))],
    "returned twice": [*STEPS, (RETURNED, ended(1)), (RETURNED, ended(2))],
    "arrived after it came back": [*STEPS, (RETURNED, ended(1)), (CONFIRMED, ended(2))],
    "by a person without a question": [*STEPS, (RETURNED, ended(1)), (CONFIRMED, ended(2, "operator"))],
    "by somebody else": [*STEPS, (CONFIRMED, ended(1, "node"))],
    "two questions": [*STEPS, (QUESTIONED, asked(1)), (QUESTIONED, asked(2))],
    "a question of nothing": [*STEPS, (QUESTIONED, asked(1, ""))],
    "a payment put back that the ledger has": [*STEPS, (PAYOUT_RESTORED_KIND, LOST)],
    "a payment put back twice": [(PAYOUT_RESTORED_KIND, LOST), (PAYOUT_RESTORED_KIND, LOST)],
    "a payment sent that was put back": [(PLANNED, PLAN), (PAYOUT_RESTORED_KIND, LOST), (SENT, SEND)],
    "more of a plan of which one was put back": [
        (PLANNED, NEXT),
        (PAYOUT_RESTORED_KIND, OTHER(LOST, plan=2)),
        (SENT, LATER),
    ],
    "more of a plan behind which one was put back": [
        (PLANNED, NEXT),
        (PAYOUT_RESTORED_KIND, OTHER(LOST, plan=3)),
        (SENT, LATER),
    ],
    "a plan of a number that was put back": [(PAYOUT_RESTORED_KIND, OTHER(LOST, plan=2)), (PLANNED, NEXT)],
    "put back of no plan": [(PAYOUT_RESTORED_KIND, OTHER(LOST, plan=0))],
    "put back of no file": [(PAYOUT_RESTORED_KIND, OTHER(LOST, file=b""))],
    "put back over no rail": [(PAYOUT_RESTORED_KIND, OTHER(LOST, rail="points"))],
}


@pytest.mark.parametrize("steps", CANNOT.values(), ids=CANNOT.keys())
def test_what_may_not_follow(steps: list[Step]) -> None:
    before = len(entries(steps[:-1]))
    with pytest.raises(LedgerFault):
        entries(steps)
    made = entries(steps[:-1])
    kind, fact = steps[-1]
    replay = replay_of()
    for entry in made:
        replay.take(entry)
    with pytest.raises(Tampered) as caught:
        replay.take(Entry(before + 1, 0, kind, "k", (), msgspec.msgpack.encode(fact), b""))
    assert caught.value.seq == before + 1


def test_a_replay_finds_a_payment_that_moves_another_amount() -> None:
    first, second = entries(STEPS)
    replay = replay_of()
    replay.take(first)
    with pytest.raises(Tampered, match="another amount"):
        replay.take(second._replace(postings=(Posting(payable(NODE), -1), Posting(paid_account("https"), 1))))


def test_a_plan_of_more_than_is_payable_is_none() -> None:
    facts = msgspec.msgpack.encode(msgspec.structs.replace(PLAN, total=PLAN.total + UNITS_PER_HUNDREDTH))
    with pytest.raises(Tampered, match="a plan of 5010000000, where 5000000000 is payable"):
        replay_of().take(Entry(1, 0, PLANNED, "payouts:1", (), facts, b""))


def test_the_account_is_hidden_and_bound() -> None:
    assert commitment("alice", b"s" * 32) == hashlib.sha256(b"s" * 32 + b"alice").digest()
    assert len({commitment(who, salt * 32) for who in ("alice", "bob") for salt in (b"s", b"t")}) == 4


def test_the_golden_entries_of_payments(repository: Path) -> None:
    """A change here is a change of the ledger's format."""
    steps = [*STEPS, (CONFIRMED, ended(1)), (RETURNED, ended(2)), (QUESTIONED, asked(3, "contradiction"))]
    steps.append((PAYOUT_RESTORED_KIND, OTHER(LOST, payment=payment_id(RUN, 2, NODE), plan=2)))
    made = entries(steps)
    assert {entry.kind for entry in made} == set(KINDS)
    told = [{"canonical": canonical(*entry[:6]).hex(), "hash": entry.hash.hex()} for entry in made]
    assert told == json.loads((paths.VECTORS / "payouts.json").read_text())["entries"]
