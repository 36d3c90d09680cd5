"""Test the judgement of the demo's payments: the provider's own record against the ledger's payments."""

import pytest

from benchmarks.payments.pay_trial import provider_flaws, provider_lines
from echo2.coordinator.demo.demo_settings import SLOW_LEARNER, DemoOptions, sections_of, settings_of
from echo2.coordinator.run.setup import settings_for
from echo2.coordinator.settings.config import parse
from echo2.ledger.payout_facts import UNITS_PER_HUNDREDTH, PayoutSent, SentPayment
from echo2.runtime.errors import LocalFault
from tests.support.payout_world import node


def payment(state: str = "confirmed", question: str = "") -> SentPayment:
    sent = PayoutSent(
        payment=bytes(16), plan=1, node=node(1), rail="https", provider=bytes(16), account=bytes(32),
        amount=649 * UNITS_PER_HUNDREDTH,
    )  # fmt: skip
    return SentPayment(sent, 1, state, 2, 1, question)


KEY = bytes(16).hex()
MOVED = {"transfer": KEY, "account": "acct", "amount": 649}


def test_a_payment_that_was_moved_once_and_has_ended_is_as_it_should_be() -> None:
    assert provider_flaws([MOVED], [payment()]) == []
    assert provider_flaws([MOVED, {"returned": KEY}], [payment("returned")]) == []


@pytest.mark.parametrize(
    ("rows", "payments", "flaw"),
    [
        ([], [], "nothing was paid out"),
        ([MOVED, MOVED], [payment()], f"payment {KEY} of 649 was moved as [649, 649]"),
        ([], [payment()], f"payment {KEY} of 649 was moved as []"),
        ([{**MOVED, "amount": 650}], [payment()], f"payment {KEY} of 649 was moved as [650]"),
        ([MOVED], [payment("sent")], f"payment {KEY} has no final answer"),
        ([MOVED], [payment("confirmed", "contradiction")], f"payment {KEY} has no final answer"),
        (
            [MOVED, {**MOVED, "transfer": "ff"}], [payment()],
            "the provider moved money for ff, which the ledger has not",
        ),
    ],
)  # fmt: skip
def test_all_else_is_a_flaw(rows: list[dict[str, object]], payments: list[SentPayment], flaw: str) -> None:
    assert provider_flaws(rows, payments) == [flaw]


def test_the_record_is_told_in_a_sentence() -> None:
    called = {"call": "POST", "key": KEY, "fault": "lost", "status": 200, "answers": 0}
    (sentence,) = provider_lines([MOVED, called, {"webhook": KEY, "delivered": False}], [payment()])
    assert "1 transfers for 1 payments, 0 returned; 1 calls, of which 1 lost went wrong; 1 webhooks lost" in sentence


def test_a_demo_that_pays_has_a_market_and_a_learner_that_fewer_nodes_satisfy() -> None:
    settings = settings_of(DemoOptions(pay=True))
    assert (settings.market, settings.pay, settings.whole) == (True, True, False)
    assert settings.learner.items() >= SLOW_LEARNER.items()
    config = settings_for(settings.model, sections_of(settings, 0), env={})
    assert config.market.enabled
    assert parse(sections_of(settings, 0), source="demo").payout.rail == "csv", "until the provider has its address"
    with pytest.raises(LocalFault, match="--pay are for the tiny model"):
        settings_of(DemoOptions(pay=True, model="smollm2"))
