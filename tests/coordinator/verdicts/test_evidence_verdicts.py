"""Verdicts on groups of a class that is not exact: from a closed class to a refusal, on a real file."""

import asyncio
import struct
from functools import partial
from pathlib import Path

import msgspec
import pytest
import structlog

from echo2.coordinator.database.database import Database
from echo2.coordinator.nodes.nodes_report import describe_key, format_report
from echo2.coordinator.verdicts import doubted_days
from echo2.coordinator.verdicts.lease_outcomes import EvidencedOutcome
from echo2.coordinator.verdicts.verdict_report import basis_of
from echo2.coordinator.verification.device_landings import KNOWN_AFTER, LANDINGS_OF_PARTY
from echo2.coordinator.verification.evidence import NodeEvidence, Tables
from echo2.coordinator.verification.evidence_table import RunAnew
from echo2.coordinator.verification.verdict_replay import replay_verdicts
from echo2.ledger.ledger_entries import accrued_account, quarantine_account
from echo2.ledger.ledger_facts import QuarantineEnded
from echo2.p2p.envelope import document_hash
from echo2.protocol.leases import Receipt, VerdictsRequest
from echo2.protocol.requests import Refusal
from echo2.runtime.units import DAY
from tests.support import sqlite_cost
from tests.support.evidence_world import (
    CLASS,
    PEER,
    SEALED,
    TABLES,
    TOLERANT,
    TOLERANT_BUT_BOUNDED,
    TOLERANT_LATER,
    Bfloat16World,
    calibration,
    name_of_ranges,
)
from tests.support.group_world import ALICE, T0, group, opened, rollout


@pytest.fixture
def bench(tmp_path: Path) -> Bfloat16World:
    return Bfloat16World(tmp_path)


def test_a_closed_class_gets_no_lease_and_is_told_why(bench: Bfloat16World) -> None:
    refused = bench.world.refusal(engine=CLASS)
    assert refused.code == "not-calibrated"
    assert "calibrate" in refused.sentence
    assert refused.retry_after is not None
    assert bench.world.lease(engine="transformers/float32/cpu").calibration is None


@pytest.mark.parametrize("tf32", [True, False])
def test_a_16_bit_group_may_be_scored_in_tf32_where_the_settings_say_so_and_an_exact_one_never(
    tmp_path: Path, tf32: bool
) -> None:
    bench = Bfloat16World(tmp_path, tf32=tf32)
    bench.open()
    assert bench.decide(0, before=1).verdict == "accepted"
    assert bench.scorer.tf32 == {tf32}
    bench.scorer.tf32.clear()
    bench.world.submit(group(bench.world.lease(engine="transformers/float32/cpu")))
    (exact,) = bench.service.list_undecided()
    asyncio.run(bench.verifier.verify(exact, None))
    assert bench.scorer.tf32 == {False}


def test_a_calibration_opens_a_class_without_a_restart_and_leases_name_it(bench: Bfloat16World) -> None:
    bench.open()
    assert bench.lease().calibration == document_hash(SEALED)
    assert bench.world.lease(engine="transformers/float32/cpu").calibration is None


def test_an_honest_node_is_accepted_paid_and_trained_on(bench: Bfloat16World) -> None:
    bench.open()
    receipts = [bench.decide(0) for _ in range(5)]
    assert {(receipt.code, receipt.trainable) for receipt in receipts} == {("ok", True)}
    assert bench.service.ledger.balance(accrued_account(PEER)) == sum(receipt.weight for receipt in receipts)
    assert bench.service.count_buffered() == 5


def test_evidence_leads_over_quarantine_to_a_refusal(bench: Bfloat16World) -> None:
    bench.open()
    codes = bench.until("evidence")
    assert codes == sorted(codes, key=["ok", "quarantine", "evidence"].index)
    assert codes[0] == "ok"
    assert "quarantine" in codes
    assert bench.service.count_buffered() == codes.count("ok")
    assert bench.service.ledger.balance(quarantine_account(PEER)) > 0
    assert bench.service.accounts.of(ALICE, bench.world.now).rank == "new"
    bench.service.ledger.verify()


def test_what_is_in_quarantine_goes_back_to_escrow_at_the_end_of_a_bad_day(bench: Bfloat16World) -> None:
    bench.open()
    bench.until("quarantine")
    earned = bench.service.ledger.balance(accrued_account(PEER))
    assert bench.end_day() == ["quarantine"]
    assert bench.service.ledger.balance(quarantine_account(PEER)) == 0
    assert bench.service.ledger.balance(accrued_account(PEER)) == earned


def test_what_is_in_quarantine_is_paid_once_the_evidence_has_fallen(bench: Bfloat16World) -> None:
    bench.open()
    bench.into_doubt()
    while bench.service.verdicts.days.in_doubt(ALICE):
        bench.decide(0)
    kept = bench.service.ledger.balance(quarantine_account(PEER))
    earned = bench.service.ledger.balance(accrued_account(PEER))
    bench.world.now += DAY
    bench.service.tick(bench.world.now)
    assert kept > 0
    assert bench.service.ledger.balance(quarantine_account(PEER)) == 0
    assert bench.service.ledger.balance(accrued_account(PEER)) == earned + kept


def test_a_key_in_doubt_stays_in_quarantine_until_the_day_ends_however_honest_it_becomes(bench: Bfloat16World) -> None:
    bench.open()
    bench.into_doubt()
    while bench.service.verdicts.days.in_doubt(ALICE):
        bench.decide(0)
    trained = bench.service.count_buffered()
    bench.reopen()
    rest = [bench.decide(0) for _ in range(5)]
    assert {(receipt.code, receipt.trainable) for receipt in rest} == {("quarantine", False)}
    assert bench.service.accounts.of(ALICE, bench.world.now).rank == "new"
    bench.world.now += DAY
    assert bench.decide(0).code == "ok"
    assert bench.service.count_buffered() == trained + 1
    assert bench.service.accounts.of(ALICE, bench.world.now).rank == "known"


@pytest.mark.slow
def test_a_group_that_the_evidence_refused_leaves_the_rest_of_the_day_in_quarantine_too(bench: Bfloat16World) -> None:
    """One honest group of many tokens brings E from a refusal below doubt."""
    bench.open()
    bench.decide(0)
    assert bench.decide(6).code == "evidence"
    assert not bench.service.ledger.balance(quarantine_account(PEER))
    codes = [bench.decide(0).code for _ in range(300)]
    assert {*codes} == {"evidence", "quarantine"}
    assert not bench.service.verdicts.days.in_doubt(ALICE)
    assert codes[-1] == "quarantine"


def test_a_day_on_which_the_evidence_rose_too_high_is_not_paid_although_it_fell(bench: Bfloat16World) -> None:
    bench.open()
    bench.into_doubt()
    assert bench.decide(1).code == "quarantine"
    while bench.service.verdicts.days.in_doubt(ALICE):
        bench.decide(0)
    earned = bench.service.ledger.balance(accrued_account(PEER))
    assert bench.end_day() == ["quarantine"]
    assert bench.service.ledger.balance(quarantine_account(PEER)) == 0
    assert bench.service.ledger.balance(accrued_account(PEER)) == earned
    bench.service.ledger.verify()


@pytest.mark.slow
def test_a_key_that_cheats_whenever_it_is_not_in_doubt_earns_and_trains_by_its_first_spell_alone(
    bench: Bfloat16World,
) -> None:
    bench.open()
    cheated = 0
    for _ in range(200):
        doubted = bench.service.verdicts.days.in_doubt(ALICE)
        receipt = bench.decide(0 if doubted else 1)
        cheated += not doubted
    spell = bench.service.count_buffered()
    earned = bench.service.ledger.balance(accrued_account(PEER))
    bench.world.now += DAY
    bench.service.tick(bench.world.now)
    assert bench.service.ledger.balance(accrued_account(PEER)) == earned == spell * receipt.weight
    assert spell == 3
    assert cheated > 20


@pytest.mark.parametrize("mended", [True, False])
def test_the_node_gets_a_receipt_that_says_how_its_quarantine_ended(bench: Bfloat16World, mended: bool) -> None:
    bench.open()
    bench.into_doubt()
    first = bench.decide(0 if mended else 1)
    while mended and bench.service.verdicts.days.in_doubt(ALICE):
        bench.decide(0)
    assert first.code == "quarantine"
    bench.service.verdicts.receipts.confirm(ALICE, [first.lease])
    bench.end_day()
    bench.reopen()
    (sealed,) = bench.service.submissions.verdicts(ALICE, VerdictsRequest(leases=[first.lease])).receipts
    assert sealed is not None
    told: Receipt = opened("receipt", sealed, Receipt)
    assert told.code == ("quarantine-paid" if mended else "quarantine-unpaid")
    assert "not paid" not in told.reason if mended else "not paid" in told.reason
    changed = {"code": first.code, "reason": first.reason, "at": first.at}
    assert msgspec.structs.replace(told, **changed) == first  # type: ignore[arg-type]


@pytest.mark.parametrize("again", ["agrees", "does not agree", "has lost the tokens"])
def test_a_bad_day_is_run_again_against_a_newer_calibration_and_paid_if_that_agrees(
    bench: Bfloat16World, again: str
) -> None:
    bench.open()
    bench.until("quarantine")
    kept, earned = (bench.service.ledger.balance(account(PEER)) for account in (quarantine_account, accrued_account))
    newer = calibration(TABLES, 2) if again == "does not agree" else TOLERANT
    bench.open(newer)
    if again == "has lost the tokens":
        bench.service.database.do("DELETE FROM compared")
    bench.end_day()
    bench.world.now += 2 * DAY * (again == "has lost the tokens")
    bench.service.tick(bench.world.now)
    (entry,) = [entry for entry in bench.service.ledger.entries() if entry.kind == "quarantine.ended"]
    told = msgspec.msgpack.decode(entry.facts, type=QuarantineEnded)
    released, by = again != "does not agree", document_hash(newer) if again == "agrees" else b""
    decided = {"agrees": "", "does not agree": "rerun", "has lost the tokens": "window"}[again]
    assert (told.released, told.calibration, told.decided) == (released, by, decided)
    assert bench.service.ledger.balance(accrued_account(PEER)) == earned + kept * released
    assert bench.service.verdicts.days.in_doubt(ALICE)
    bench.service.ledger.verify()


def test_a_bad_day_that_a_second_check_does_not_confirm_is_paid(bench: Bfloat16World) -> None:
    """The scorer's own memory was at fault."""
    bench.open()
    bench.until("quarantine")
    kept, earned = (bench.service.ledger.balance(account(PEER)) for account in (quarantine_account, accrued_account))
    assert bench.end_day(wrong=0) == ["ok"]
    assert bench.service.ledger.balance(accrued_account(PEER)) == earned + kept
    assert bench.service.accounts.account(ALICE).doubted == 0


def test_a_bad_day_without_a_check_is_decided_for_the_node_when_its_window_has_ended(bench: Bfloat16World) -> None:
    bench.open()
    bench.until("quarantine")
    kept, earned = (bench.service.ledger.balance(account(PEER)) for account in (quarantine_account, accrued_account))
    midnight = (bench.world.now // DAY + 1) * DAY
    for now, there in ((midnight, kept), (midnight + DAY - 1, kept), (midnight + DAY, 0)):
        bench.service.tick(now)
        assert bench.service.ledger.balance(quarantine_account(PEER)) == there
    assert bench.service.ledger.balance(accrued_account(PEER)) == earned + kept
    bench.service.ledger.verify()


@pytest.mark.parametrize("comes", ["and agrees", "and does not agree", "not, since it fails"])
def test_a_bad_day_that_a_check_confirmed_waits_for_the_operators_own_engines_of_the_class(
    bench: Bfloat16World, comes: str
) -> None:
    bench.open()
    bench.until("quarantine")
    kept, earned = (bench.service.ledger.balance(account(PEER)) for account in (quarantine_account, accrued_account))
    asked: list[tuple[str, int]] = []
    bench.world.to_come = lambda rounding, since: not asked.append((rounding, since))
    assert bench.end_day() == ["quarantine"]
    for _ in range(3):
        bench.service.tick(bench.world.now)
    assert bench.service.ledger.balance(quarantine_account(PEER)) == kept
    assert {*asked} == {("bfloat16", (T0 // DAY + 1) * DAY)}
    bench.world.to_come = lambda rounding, since: False
    if not comes.startswith("not"):
        bench.open(TOLERANT if comes == "and agrees" else calibration(TABLES, 2))
    bench.service.tick(bench.world.now)
    assert bench.service.ledger.balance(quarantine_account(PEER)) == 0
    assert bench.service.ledger.balance(accrued_account(PEER)) == earned + kept * (comes == "and agrees")
    bench.service.ledger.verify()


def in_doubt_at_the_end_of_a_day(bench: Bfloat16World, groups: int) -> None:
    """Let a day end in doubt, with so many groups in quarantine at least, and ask for its check."""
    bench.open()
    bench.until("quarantine")
    for _ in range(groups):
        bench.decide(0)
    while not bench.service.verdicts.days.in_doubt(ALICE):
        bench.decide(1)
    bench.world.now += DAY
    bench.service.tick(bench.world.now)


@pytest.mark.slow
def test_a_day_that_waits_for_its_check_is_looked_at_for_little_however_many_groups_it_has(tmp_path: Path) -> None:
    """It is looked at every second, for up to 24 hours."""
    costs = []
    for groups in (0, 60):
        (folder := tmp_path / str(groups)).mkdir()
        bench = Bfloat16World(folder)
        in_doubt_at_the_end_of_a_day(bench, groups)
        assert len(bench.service.reviews.of(bench.service.verdicts._quarantine.leases(ALICE, T0 // DAY)[0])) == 1
        looks = partial(bench.service.tick, bench.world.now)
        looks()
        costs.append(sqlite_cost.instructions(bench.service.database, looks, every=1))
    assert costs[1] <= 1.1 * costs[0]


def count_bets(bench: Bfloat16World, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the list to which each group is added that is bet on anew from now on."""
    leases: list[bytes] = []
    anew = bench.service.verdicts.evidence.bet_anew

    def counted(before: RunAnew | None, lease: bytes, at: int, tables: Tables) -> RunAnew | None:
        leases.append(lease)
        return anew(before, lease, at, tables)

    monkeypatch.setattr(bench.service.verdicts.evidence, "bet_anew", counted)
    return leases


@pytest.mark.parametrize("ends", ["by the re-run", "by the check, as the re-run does not agree"])
def test_a_large_day_is_run_again_in_slices_and_meanwhile_the_evidence_moves_on(
    bench: Bfloat16World, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """All of the most tokens at once take seconds, in which no request is answered."""
    monkeypatch.setattr(doubted_days, "DAY_SLICE_TOKENS", 1)
    bench.open()
    bench.until("quarantine")
    for _ in range(5):
        bench.decide(0)
    while not bench.service.verdicts.days.in_doubt(ALICE):
        bench.decide(1)
    groups = bench.service.verdicts._quarantine.leases(ALICE, T0 // DAY)
    assert len(groups) > 4
    agrees = ends == "by the re-run"
    same = calibration({name: [p + 1 for p in table] for name, table in TABLES.items()}, 2)
    newer = TOLERANT if agrees else same
    bench.open(newer)
    bench.world.now += DAY
    runs = count_bets(bench, monkeypatch)
    bench.service.tick(bench.world.now)
    assert runs == groups[:1]
    for _ in range(2):
        bench.decide(0)  # each verdict settles what can be settled before it: one slice more
    assert runs == groups[:3]
    bench.reopen()
    bench.open(newer)
    runs = count_bets(bench, monkeypatch)
    assert bench.check_again() == ["quarantine"]  # the check is answered before the re-run is
    for number in range(1, len(groups)):
        bench.service.tick(bench.world.now)
        assert runs == groups[:number]
        assert bench.service.verdicts._quarantine.leases(ALICE, T0 // DAY) == groups
    bench.service.tick(bench.world.now)
    assert runs == groups
    assert bench.service.verdicts._quarantine.leases(ALICE, T0 // DAY) == []
    (ended,) = [entry for entry in bench.service.ledger.entries() if entry.kind == "quarantine.ended"]
    told = msgspec.msgpack.decode(ended.facts, type=QuarantineEnded)
    assert told.released is agrees
    assert told.calibration == (document_hash(TOLERANT) if agrees else b"")
    bench.service.ledger.verify()


def test_a_day_that_waits_for_its_check_is_run_again_once_per_newer_calibration(
    bench: Bfloat16World, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_doubt_at_the_end_of_a_day(bench, 0)
    groups = len(bench.service.verdicts._quarantine.leases(ALICE, T0 // DAY))
    runs = count_bets(bench, monkeypatch)
    for at in (3, 4):
        bench.open(calibration({name: [p + at for p in table] for name, table in TABLES.items()}, at))
        for _ in range(5):
            bench.service.tick(bench.world.now)
    assert len(runs) == 2 * groups
    assert bench.service.ledger.balance(quarantine_account(PEER)) > 0
    bench.open(TOLERANT_LATER)
    bench.service.tick(bench.world.now)
    assert bench.service.ledger.balance(quarantine_account(PEER)) == 0
    (ended,) = [entry for entry in bench.service.ledger.entries() if entry.kind == "quarantine.ended"]
    assert msgspec.msgpack.decode(ended.facts, type=QuarantineEnded).calibration == document_hash(TOLERANT_LATER)


def test_a_day_with_a_group_that_the_evidence_refused_is_not_run_again(bench: Bfloat16World) -> None:
    """The groups in quarantine alone may agree with a newer Calibration, where all of the day's do not."""
    bench.open()
    bench.until("evidence")
    kept, earned = (bench.service.ledger.balance(account(PEER)) for account in (quarantine_account, accrued_account))
    assert kept
    bench.open(TOLERANT)
    bench.end_day()
    assert bench.service.ledger.balance(accrued_account(PEER)) == earned
    assert bench.service.ledger.balance(quarantine_account(PEER)) == 0
    bench.service.ledger.verify()


def test_a_day_is_judged_by_how_it_ended_also_after_a_restart_at_the_first_group_of_the_next(
    bench: Bfloat16World,
) -> None:
    bench.open()
    bench.until("quarantine")
    while bench.service.verdicts.days.in_doubt(ALICE):
        bench.decide(0)
    bench.until("quarantine")
    bench.reopen()  # a kill in the evening, a start in the morning, and a group before the first tick
    bench.world.now += DAY
    bench.decide(0)
    assert bench.service.reviews.next(appeals=False) is not None
    for _ in range(20):  # the evidence moves on while the check waits
        bench.decide(0)
    assert bench.check_again() == ["quarantine"]
    bench.service.tick(bench.world.now)
    (ended,) = [entry for entry in bench.service.ledger.entries() if entry.kind == "quarantine.ended"]
    assert msgspec.msgpack.decode(ended.facts)["released"] is False
    bench.service.tick(bench.world.now)
    bench.reopen()
    bench.service.tick(bench.world.now)
    assert [entry.seq for entry in bench.service.ledger.entries() if entry.kind == "quarantine.ended"] == [ended.seq]
    bench.service.ledger.verify()


def test_the_operator_sees_what_is_in_quarantine_and_until_when(bench: Bfloat16World) -> None:
    bench.open()
    bench.until("quarantine")
    report = describe_key(bench.world.path, PEER, bench.world.now)
    (day,) = report.quarantined
    assert day.weight == bench.service.ledger.balance(quarantine_account(PEER))
    assert day.until == (bench.world.now // DAY + 1) * DAY
    assert report.key.rank == "new"
    assert any(line.startswith("quarantine   1 group,") for line in format_report(report))


def test_verdicts_are_run_again_from_the_ledger_to_the_bit(bench: Bfloat16World) -> None:
    bench.open()
    bench.until("evidence")
    table, before = bench.service.verdicts.evidence, None
    entries = [entry for entry in bench.service.ledger.entries() if entry.kind == "lease.accepted"]
    for entry in entries:
        end = msgspec.msgpack.decode(entry.facts, type=EvidencedOutcome)
        again = table.run_again(end.lease, TABLES, entry.at)
        assert again.hashes == (end.tokens, end.before, end.after)
        assert end.calibration == document_hash(SEALED)
        assert before in (None, end.before)
        before = end.after


def test_a_fabricated_group_of_a_new_key_costs_one_sample(bench: Bfloat16World) -> None:
    bench.open()
    while bench.service.verdicts.evidence.of(ALICE).conclusion() == "honest":
        bench.decide(2)
    bench.scorer.scored = 0
    while (receipt := bench.decide(8, first=0)).code != "evidence":
        bench.scorer.scored = 0
    assert receipt.verdict == "refused"
    assert bench.scorer.scored == 1


def test_one_token_beyond_the_bound_refuses_its_group_with_a_strike_and_three_suspend(bench: Bfloat16World) -> None:
    bench.open()
    honest = bench.decide(0)
    bench.scorer.margin = 0.5
    assert bench.decide(1).code != "seeded-choice"  # at the bound
    bench.scorer.margin = 0.5 + 2.0**-14
    receipts = [bench.decide(1) for _ in range(3)]
    assert {(receipt.verdict, receipt.code) for receipt in receipts} == {("refused", "seeded-choice")}
    assert receipts[0].reason.startswith(
        "Sample 0, sampled token 0: the seeded choice is another token, better by 0.500"
    )
    assert bench.service.accounts.of(ALICE, bench.world.now).suspended_until is not None
    assert bench.service.ledger.balance(accrued_account(PEER)) >= honest.weight
    bench.service.ledger.verify()


def test_a_token_beyond_the_bound_is_reported_with_the_bound_and_not_with_e(bench: Bfloat16World) -> None:
    bench.open()
    bench.decide(0)
    bench.scorer.margin = 3.0
    receipt = bench.decide(1)
    basis = basis_of(bench.service.database, bench.service.classes, receipt.lease)
    assert basis.statistic == receipt.reason
    assert "the bound of the Calibration" in basis.threshold


def test_a_new_keys_sample_that_is_beyond_the_bound_ends_the_check(bench: Bfloat16World) -> None:
    bench.open()
    bench.scorer.margin = 3.0
    receipt = bench.decide(1, first=1)
    assert (receipt.code, bench.scorer.scored) == ("seeded-choice", 1)
    assert receipt.reason.startswith("Sample 1,")


def test_a_second_pass_by_which_no_token_is_beyond_the_bound_answers_an_appeal_for_the_node(
    bench: Bfloat16World,
) -> None:
    bench.open(TOLERANT_BUT_BOUNDED)
    bench.decide(0)
    bench.scorer.margin = 3.0
    receipt = bench.decide(1)
    assert receipt.code == "seeded-choice"
    assert not isinstance(bench.service.reviews.appeal(ALICE, receipt.lease, bench.world.now), Refusal)
    assert bench.check_again(0) == ["ok"]


def test_values_that_are_not_numbers_are_the_operators_fault(bench: Bfloat16World) -> None:
    bench.open()
    bench.scorer.gaps = float("nan")
    assert bench.decide(0).code == "not-scorable"


def test_a_node_that_shows_bytes_of_another_version_is_refused_before_the_scorers_pass(bench: Bfloat16World) -> None:
    bench.open()
    assert bench.lease().ranges_asked
    receipt = bench.decide(0, shown=bytes(32))
    assert (receipt.verdict, receipt.code) == ("refused", "other-weights")
    assert bench.scorer.scored == 0
    assert bench.service.strikes.of(ALICE) == 1
    assert bench.decide(0).code == "ok"


def test_a_submission_that_shows_nothing_is_refused_at_receipt_and_exact_classes_are_not_asked(
    bench: Bfloat16World,
) -> None:
    bench.open()
    refused = bench.world.refused(group(bench.lease()))
    assert refused.code == "other-weights"
    assert "shows none" in refused.reason
    assert not bench.world.lease(engine="transformers/float32/cpu").ranges_asked


def test_a_node_of_the_version_before_is_refused_with_a_strike_and_each_of_its_groups_is_passed_twice(
    bench: Bfloat16World,
) -> None:
    bench.open(TOLERANT)
    receipts = [bench.decide(1, before=0)]
    while receipts[-1].code == "ok":
        receipts.append(bench.decide(1, before=0))
    assert (receipts[-1].verdict, receipts[-1].code) == ("refused", "version-lie")
    assert "the version before" in receipts[-1].reason
    assert len(receipts) > 5
    assert bench.service.strikes.of(ALICE) == 1
    bench.world.submit(group(lease := bench.lease(), ranges=name_of_ranges(lease.id)))
    (undecided,) = bench.service.list_undecided()
    assert all(bench.service.draw_pass_before(undecided) for _ in range(20))


@pytest.mark.slow
def test_one_honest_group_in_a_hundred_is_passed_twice_and_none_of_an_exact_class(bench: Bfloat16World) -> None:
    bench.open()
    bench.world.submit(group(lease := bench.lease(), ranges=name_of_ranges(lease.id)))
    (undecided,) = bench.service.list_undecided()
    drawn = sum(bench.service.draw_pass_before(undecided) for _ in range(20_000))
    assert 100 < drawn < 300
    exact = undecided._replace(lease=bench.world.lease(engine="transformers/float32/cpu"))
    assert not any(bench.service.draw_pass_before(exact) for _ in range(1_000))


def test_a_new_key_that_is_refused_leaves_no_row(bench: Bfloat16World) -> None:
    bench.open()
    assert bench.decide(8, before=0).code == "evidence"
    assert bench.service.database.value("SELECT count(*) FROM version_pairs") == 0


def test_bytes_that_the_coordinator_cannot_read_are_the_operators_fault(bench: Bfloat16World) -> None:
    bench.open()
    bench.damaged = True
    assert bench.decide(0).code == "not-scorable"
    assert bench.service.strikes.of(ALICE) == 0


NOT_LOG_PROBABILITIES = {
    "not a number": struct.pack("<4f", -0.5, float("nan"), -0.5, -0.5),
    "infinite": struct.pack("<4f", -0.5, -0.5, float("-inf"), -0.5),
    "above 0": struct.pack("<4f", -0.5, 0.5, -0.5, -0.5),
    "one too few": struct.pack("<3f", -0.5, -0.5, -0.5),
    "one too many": struct.pack("<5f", *[-0.5] * 5),
    "none": b"",
}


@pytest.mark.parametrize("logprobs", NOT_LOG_PROBABILITIES.values(), ids=NOT_LOG_PROBABILITIES)
def test_values_that_are_no_log_probabilities_are_named_at_receipt_and_cost_no_pass(
    bench: Bfloat16World, logprobs: bytes
) -> None:
    bench.open()
    lease = bench.lease()
    bad = [rollout(lease, "000"), rollout(lease, "111", logprobs=logprobs)]
    refused = bench.world.refused(group(lease, rollouts=bad, ranges=name_of_ranges(lease.id)))
    assert refused.code == "logprobs"
    assert refused.reason.startswith("Sample 1: ")
    assert bench.scorer.scored == 0
    assert bench.service.verdicts.evidence.of(ALICE) == NodeEvidence()
    assert bench.decide(0).code == "ok"


def test_a_calibration_opens_its_own_number_format_alone_on_every_device(bench: Bfloat16World) -> None:
    bench.open()
    assert bench.world.lease(engine="transformers/bfloat16/cuda").calibration == document_hash(SEALED)
    assert bench.world.refusal(engine="transformers/float16/cpu").code == "not-calibrated"


def test_a_calibration_that_is_gone_is_the_operators_fault_and_comes_back_with_its_file(bench: Bfloat16World) -> None:
    bench.open()
    lease = bench.lease()
    bench.world.submit(group(lease, ranges=name_of_ranges(lease.id)))
    bench.reopen(calibrated=False)
    (undecided,) = bench.service.list_undecided()
    verdict = asyncio.run(bench.verifier.verify(undecided, None))
    assert verdict.code == "not-scorable"
    assert "Calibration" in verdict.reason
    bench.open()
    assert asyncio.run(bench.verifier.verify(undecided, None)).accepted
    assert bench.service.strikes.of(ALICE) == 0


def test_exact_classes_leave_no_evidence(bench: Bfloat16World) -> None:
    bench.open()
    bench.world.accepted()
    assert bench.service.database.value("SELECT count(*) FROM bets") == 0
    assert bench.service.database.value("SELECT count(*) FROM compared") == 0


def of_a_card(bench: Bfloat16World, device: str = "a card") -> None:
    """Let the node say what it computes on."""
    bench.service.database.do(
        "INSERT OR REPLACE INTO nodes (key, name, software, engine, device, addresses, first_seen, last_seen)"
        " VALUES (?, '', '', ?, ?, x'', 0, 0)",
        (ALICE, CLASS, device),
    )


@pytest.mark.parametrize(("wrong", "margin", "code"), [(8, 0.3, "evidence"), (1, 1.0, "seeded-choice")])
def test_first_groups_of_an_unknown_device_that_are_outside_the_bounds_count_for_nothing(
    bench: Bfloat16World, wrong: int, margin: float, code: str
) -> None:
    bench.open()
    of_a_card(bench)
    bench.scorer.margin = margin
    with structlog.testing.capture_logs() as logs:
        receipts = [bench.decide(wrong) for _ in range(LANDINGS_OF_PARTY)]
    assert {one.code for one in receipts} == {"unknown-device"}
    assert all((one.verdict, one.weight, one.trainable) == ("refused", 0, False) for one in receipts)
    assert f"({CLASS}, a card)" in receipts[0].reason
    assert [one["device"] for one in logs if one["log_level"] == "warning"] == [f"{CLASS}, a card"] * len(receipts)
    assert bench.service.database.value("SELECT count(*) FROM strikes") == 0
    assert bench.service.verdicts.evidence.of(ALICE) == NodeEvidence()
    assert bench.service.ledger.balance(accrued_account(PEER)) == 0
    assert bench.decide(wrong).code == code
    assert bench.service.database.value("SELECT count(*) FROM strikes") == 1
    with Database.read(bench.world.path) as database:
        assert replay_verdicts(database, bench.service.classes.tables).faults == []


def test_a_known_device_is_judged_by_the_bounds_as_before(bench: Bfloat16World) -> None:
    bench.open()
    of_a_card(bench)
    for _ in range(KNOWN_AFTER + 1):
        assert bench.decide(0).code == "ok"
    bench.scorer.margin = 1.0
    assert bench.decide(1).code == "seeded-choice"


def test_a_device_that_the_evidence_names_after_some_groups_lands_too_and_its_evidence_goes_on(
    bench: Bfloat16World,
) -> None:
    bench.open()
    of_a_card(bench)
    assert bench.decide(0).code == "ok"
    codes = bench.until("unknown-device")
    assert {*codes} <= {"ok", "quarantine", "unknown-device"}
    assert bench.service.verdicts.evidence.of(ALICE).lifelong.groups == 1 + len(codes)
    assert bench.service.database.value("SELECT count(*) FROM strikes") == 0
    with Database.read(bench.world.path) as database:
        assert replay_verdicts(database, bench.service.classes.tables).faults == []
