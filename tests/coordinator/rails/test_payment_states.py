"""Test every answer of a provider in every state of a payment."""

import pytest

from echo2.coordinator.rails.payment_states import (
    QUESTIONS,
    WAIT_DECISION,
    Decision,
    Payment,
    PaymentTerms,
    after_send,
    after_status,
)
from echo2.coordinator.rails.rail import RailAnswer

TERMS = PaymentTerms(resend=100, patience=1000)
SENT, CONFIRMED, RETURNED = (Payment(state, 500, 0) for state in ("sent", "confirmed", "returned"))
DONE, BACK = RailAnswer("done", 500), RailAnswer("returned", 500)
ASK, SEND = Decision("ask"), Decision("send")

STATUS = {
    "done confirms": (SENT, DONE, 5, Decision("confirmed")),
    "returned returns": (SENT, BACK, 5, Decision("returned")),
    "money may come back days later": (CONFIRMED, BACK, 900, Decision("returned")),
    "done again is no news": (CONFIRMED, DONE, 5, WAIT_DECISION),
    "returned again is no news": (RETURNED, BACK, 5, WAIT_DECISION),
    "another amount is a question": (SENT, RailAnswer("done", 499), 5, Decision("question", "amount")),
    "another amount that came back is a question": (
        CONFIRMED, RailAnswer("returned", 1), 5, Decision("question", "amount"),
    ),
    "no amount is a question": (SENT, RailAnswer("done"), 5, Decision("question", "amount")),
    "done after returned is a question": (RETURNED, DONE, 5, Decision("question", "contradiction")),
    "an absent payment is sent again": (SENT, RailAnswer("absent"), 99, SEND),
    "an old absent payment is a question": (SENT, RailAnswer("absent"), 100, Decision("question", "absent")),
    "an absent payment that was put back is a question": (
        SENT._replace(restored=True), RailAnswer("absent"), 5, Decision("question", "absent"),
    ),
    "a clock that was set back sends nothing again": (SENT, RailAnswer("absent"), -1, Decision("question", "absent")),
    "an absent confirmed payment is no news": (CONFIRMED, RailAnswer("absent"), 5, WAIT_DECISION),
    "unknown decides nothing": (SENT, RailAnswer("unknown"), 5, WAIT_DECISION),
    "silence becomes a question": (SENT, RailAnswer("unknown"), 1000, Decision("question", "silence")),
    "work without end becomes a question": (SENT, RailAnswer("taken", 500), 1000, Decision("question", "silence")),
    "busy without end becomes a question": (SENT, RailAnswer("busy"), 1000, Decision("question", "silence")),
    "an open question is not asked twice": (
        Payment("sent", 500, 0, "amount"), RailAnswer("done", 499), 5, WAIT_DECISION,
    ),
    "an open question is answered by the provider": (
        Payment("sent", 500, 0, "silence"), DONE, 5000, Decision("confirmed"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("payment", "answer", "now", "decision"), STATUS.values(), ids=STATUS.keys())
def test_after_the_status(payment: Payment, answer: RailAnswer, now: int, decision: Decision) -> None:
    assert after_status(payment, answer, now, TERMS) == decision


def test_an_unclear_answer_to_send_leads_to_the_status_and_never_to_another_key() -> None:
    for word in ("unknown", "refused", "absent"):
        assert after_send(SENT, RailAnswer(word)) == ASK
    assert after_send(SENT, DONE) == Decision("confirmed")
    assert after_send(SENT, RailAnswer("taken")) == WAIT_DECISION
    assert after_send(SENT, RailAnswer("busy")) == WAIT_DECISION


def test_a_refused_payment_is_returned_only_where_the_provider_has_none() -> None:
    assert after_status(SENT, RailAnswer("absent"), 5, TERMS, refused=True) == Decision("returned")
    assert after_status(SENT, RailAnswer("unknown"), 5, TERMS, refused=True) == WAIT_DECISION
    assert after_status(SENT, DONE, 5, TERMS, refused=True) == Decision("confirmed")


def test_each_question_has_words() -> None:
    asked = {decision.question for _, _, _, decision in STATUS.values() if decision.question}
    assert asked == QUESTIONS.keys()
