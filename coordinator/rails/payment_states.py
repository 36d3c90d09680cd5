"""The states of a payment, and what follows from a provider's answer. Pure.

    PENDING ──> SENT ──> CONFIRMED ──> RETURNED
                  └────────────────────────^

Rules
1. A payment in a plan is PENDING. The entry that makes it SENT is durable before the rail is called first: from then on
   its money counts as gone.
2. SENT becomes CONFIRMED once the provider says that the whole amount arrived, and RETURNED once it says that the
   money is back. A CONFIRMED payment becomes RETURNED in the same way, days later.
3. No answer is no decision: after `unknown` and `refused` the provider is asked for the status.
4. Where it then has no such payment, a refused one is RETURNED. Any other is sent again under the same key, while the
   rail's provider remembers keys (`Terms.resend`), and never under another key. A payment that was put back after a
   restore is never sent: nobody knows since when its key is in use.
5. A question goes to a person where the provider states another amount, where it says that RETURNED money arrived,
   where it does not know a payment that is not sent again, and where a payment is SENT for longer than
   `Terms.patience`.
6. A question stays until a person answers it. A clear answer of the provider about a SENT payment does so as well.
"""

from typing import Final, Literal, NamedTuple

from echo2.coordinator.rails.rail import RailAnswer

State = Literal["sent", "confirmed", "returned"]
Question = Literal["", "amount", "contradiction", "absent", "silence"]
Step = Literal["wait", "ask", "send", "confirmed", "returned", "question"]

QUESTIONS: Final[dict[str, str]] = {
    "amount": "the provider states another amount than was sent: ask it what arrived",
    "contradiction": "the provider says that the money arrived, and it had said that the money came back",
    "absent": "the provider does not know the payment, and it may be too late to send it again under its key",
    "silence": "the provider has given no final answer for too long: ask it what became of the payment",
}
"""The words for each question that a person must answer."""


class PaymentTerms(NamedTuple):
    """The terms of a rail. `resend`: ms after SENT for which its provider recognises a key. `patience`: ms after SENT
    from which a payment without a final answer is a question."""

    resend: int
    patience: int


class Payment(NamedTuple):
    """A payment that was sent. `amount`: minor units. `at`: when it became SENT, ms. `question`: that is open.
    `restored`: it was put back after a restore."""

    state: State
    amount: int
    at: int
    question: Question = ""
    restored: bool = False


class Decision(NamedTuple):
    """The next step: an entry (`confirmed`, `returned`, `question`), a call (`ask`, `send`), or `wait`: none now."""

    step: Step
    question: Question = ""


WAIT_DECISION: Final = Decision("wait")


def after_send(payment: Payment, answer: RailAnswer) -> Decision:
    """Decide after the answer to `send`."""
    if answer.word in ("unknown", "refused", "absent"):
        return Decision("ask")
    return _decide_answer(payment, answer)


def after_status(
    payment: Payment, answer: RailAnswer, now: int, terms: PaymentTerms, *, refused: bool = False
) -> Decision:
    """Decide after the answer to `status` or `cancel`. `refused`: the call to `send` just before was refused."""
    if answer.word == "absent" and payment.state == "sent":
        return _absent(payment, now, terms, refused=refused)
    decision = _decide_answer(payment, answer)
    late = payment.state == "sent" and now - payment.at >= terms.patience
    return _decide_question(payment, "silence") if late and decision is WAIT_DECISION else decision


def _decide_answer(payment: Payment, answer: RailAnswer) -> Decision:
    if answer.word not in ("done", "returned"):
        return WAIT_DECISION
    if answer.amount != payment.amount:
        return _decide_question(payment, "amount")
    if payment.state == "returned":
        return _decide_question(payment, "contradiction") if answer.word == "done" else WAIT_DECISION
    if answer.word == "returned":
        return Decision("returned")
    return Decision("confirmed") if payment.state == "sent" else WAIT_DECISION


def _absent(payment: Payment, now: int, terms: PaymentTerms, *, refused: bool) -> Decision:
    if refused:
        return Decision("returned")
    again = 0 <= now - payment.at < terms.resend and not payment.restored
    return Decision("send") if again else _decide_question(payment, "absent")


def _decide_question(payment: Payment, question: Question) -> Decision:
    return WAIT_DECISION if payment.question else Decision("question", question)
