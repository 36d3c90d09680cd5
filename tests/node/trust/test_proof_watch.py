"""Test from when a ledger counts as unproven, and from when no new lease is requested for that."""

from echo2.node.trust.proof_watch import (
    DEFAULT_PERIOD_MS,
    LONGEST_PERIOD_MS,
    ROUNDS,
    STOP_MS,
    Missing,
    Proofs,
    ProofWatch,
)
from echo2.runtime.units import DAY

MINUTE = 60_000
START = 1_700_000_000_000


def judged(watch: ProofWatch, missing: Missing, now: int, every: int | None = None, rounds: int = ROUNDS) -> Proofs:
    """Return the judgement after so many rounds, a minute apart, the last at `now`."""
    for left in range(rounds - 1, -1, -1):
        proofs = watch.judge(missing, every, now - left * MINUTE)
    return proofs


def test_a_receipt_of_just_now_waits_for_the_next_head() -> None:
    watch = ProofWatch()
    assert judged(watch, Missing(3, START), START + DEFAULT_PERIOD_MS) == Proofs()
    assert judged(watch, Missing(), START + DEFAULT_PERIOD_MS) == Proofs()


def test_a_proof_that_is_missing_for_two_periods_is_said_and_work_goes_on() -> None:
    proofs = judged(ProofWatch(), Missing(3, START), START + 2 * DEFAULT_PERIOD_MS + 3 * MINUTE)
    assert "unproven for 0.55 h: 3 of this node's receipts have no proof" in proofs.unproven
    assert proofs.withheld == ""


def test_a_node_that_was_off_for_days_asks_before_it_judges() -> None:
    watch, now = ProofWatch(), START + 9 * DAY
    assert judged(watch, Missing(3, START), now, rounds=ROUNDS - 1) == Proofs()
    assert judged(watch, Missing(), now, rounds=1) == Proofs()
    assert judged(watch, Missing(3, START), now, rounds=ROUNDS - 1) == Proofs()


def test_after_a_day_no_new_lease_is_requested_until_the_proof_comes() -> None:
    watch = ProofWatch()
    began = START + 2 * DEFAULT_PERIOD_MS + 5 * MINUTE
    assert judged(watch, Missing(1, START), began).unproven
    assert judged(watch, Missing(1, START), START + STOP_MS + 1).withheld == "", "looked for less than a day"
    withheld = judged(watch, Missing(1, START), began + STOP_MS + 1).withheld
    assert withheld.startswith("no new lease is requested: the run's")
    assert watch.judge(Missing(), None, began + STOP_MS + 2) == Proofs()


def test_after_an_outage_of_days_work_goes_on_while_the_coordinator_proves_again() -> None:
    watch, now = ProofWatch(), START + 9 * DAY
    proofs = judged(watch, Missing(3, START), now, rounds=60)
    assert proofs.unproven
    assert proofs.withheld == ""


def test_a_head_that_cannot_be_taken_counts_from_the_first_round_that_found_it() -> None:
    watch, head = ProofWatch(), Missing(heads="LedgerHead 4 is not proved to continue 3")
    assert judged(watch, head, START) == Proofs()
    assert "LedgerHead 4 is not proved" in judged(watch, head, START + 2 * DEFAULT_PERIOD_MS + 4 * MINUTE).unproven
    assert watch.judge(Missing(), None, START + DAY) == Proofs()
    assert watch.judge(head, None, START + DAY) == Proofs()


def test_the_coordinators_period_counts_within_a_bound() -> None:
    assert judged(ProofWatch(), Missing(1, START), START + DEFAULT_PERIOD_MS, every=MINUTE).unproven
    assert not judged(ProofWatch(), Missing(1, START), START + DAY, every=LONGEST_PERIOD_MS).unproven
    watch, began = ProofWatch(), START + 2 * LONGEST_PERIOD_MS + 3 * MINUTE
    assert judged(watch, Missing(1, START), began, every=1 << 50).unproven
    assert judged(watch, Missing(1, START), began + 2 * LONGEST_PERIOD_MS, every=1 << 50).withheld


def test_a_clock_that_was_set_back_says_nothing() -> None:
    assert judged(ProofWatch(), Missing(1, START), START - DAY) == Proofs()
