"""Verdicts on groups of a class that is not exact: from a closed class to a refusal, on a real file."""

import asyncio
from pathlib import Path

import msgspec
import numpy as np
import pytest

from coordinator.accounts.ledger import accrued, quarantined
from coordinator.rollouts.group_verifier import EvidenceSource, GroupVerifier
from coordinator.rollouts.verdicts import EvidencedOutcome
from coordinator.verification.calibration import Calibration
from coordinator.verification.token_evidence import BINS, ONE, STATISTICS
from engines.engine import Job, SampleScore
from engines.messages import PackedSample
from p2p.envelope import document_hash
from p2p.identity import peer_id, public_bytes
from p2p.wire_types import encode
from protocol.authority import RoleKeys
from protocol.leases import Lease, Receipt
from runtime.units import DAY
from tests.support.group_world import ALICE, KEYS, RUN, SPEC, World, group, opened, sealed_by_role

CLASS = "transformers/bfloat16/cpu"
LEDGER = RoleKeys(keys=[public_bytes(KEYS["ledger"])], threshold=1)
TABLES = {name: [ONE * 51 // 100 if name in ("above", "below") else ONE // 50] * BINS for name in STATISTICS}
SEALED = sealed_by_role(
    "calibration",
    encode(
        Calibration(
            run=RUN, engine_class=CLASS, builds=[], era=1, version=0, root=bytes(32), machines={}, tables=TABLES, at=1
        )
    ),
)  # fmt: skip
PEER = peer_id(ALICE)


class Scorer:
    """A scorer by which the first `wrong` tokens of each sample are not the seeded choice. `scored`: samples so far."""

    loaded = object()

    def __init__(self) -> None:
        self.wrong = 0
        self.gaps = 1.0
        self.scored = 0

    async def score(self, job: Job, samples: list[PackedSample]) -> list[SampleScore]:
        self.scored += len(samples)
        return [self._one(len(sample.logprobs) // 4) for sample in samples]

    def _one(self, tokens: int) -> SampleScore:
        margins = np.where(np.arange(tokens) < self.wrong, 0.3, 0.0).tolist()
        return SampleScore(logprobs=[-0.5] * tokens, margins=margins, gaps=[self.gaps] * tokens)


class Bench:
    """A world whose nodes compute in bfloat16, with a verifier."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder, spec=msgspec.structs.replace(SPEC, engines=["transformers"]), batch_groups=100)
        self.service = self.world.group_service
        self.scorer = Scorer()
        source = EvidenceSource(self.service.classes, self.service.verdicts.evidence.of)
        self.verifier = GroupVerifier(
            self.scorer,  # type: ignore[arg-type]
            eos=SPEC.eos, staleness=2, published=lambda era: [0], evidence=source,
        )  # fmt: skip

    def open(self) -> None:
        self.service.classes.add(SEALED, RUN, LEDGER)

    def lease(self) -> Lease:
        return self.world.lease(engine=CLASS)

    def decide(self, wrong: int, first: int | None = None) -> Receipt:
        """Hand in a group in which `wrong` tokens per sample differ; return its receipt."""
        self.scorer.wrong = wrong
        self.world.submit(group(self.lease()))
        (undecided,) = self.service.undecided()
        verdict = asyncio.run(self.verifier.verify(undecided, first))
        receipt: Receipt = opened("receipt", self.service.decide(undecided, verdict, self.world.now), Receipt)
        return receipt

    def until(self, code: str) -> list[str]:
        codes: list[str] = []
        while len(codes) < 60 and (not codes or codes[-1] != code):
            codes.append(self.decide(1).code)
        return codes


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_closed_class_gets_no_lease_and_is_told_why(bench: Bench) -> None:
    refused = bench.world.refusal(engine=CLASS)
    assert refused.code == "not-calibrated"
    assert "calibrate" in refused.sentence
    assert refused.retry_after is not None
    assert bench.world.lease(engine="transformers/float32/cpu").calibration is None


def test_a_calibration_opens_a_class_without_a_restart_and_leases_name_it(bench: Bench) -> None:
    bench.open()
    assert bench.lease().calibration == document_hash(SEALED)
    assert bench.world.lease(engine="transformers/float32/cpu").calibration is None


def test_an_honest_node_is_accepted_paid_and_trained_on(bench: Bench) -> None:
    bench.open()
    receipts = [bench.decide(0) for _ in range(5)]
    assert {(receipt.code, receipt.trainable) for receipt in receipts} == {("ok", True)}
    assert bench.service.ledger.balance(accrued(PEER)) == sum(receipt.weight for receipt in receipts)
    assert bench.service.buffered() == 5


def test_evidence_leads_over_quarantine_to_a_refusal(bench: Bench) -> None:
    bench.open()
    codes = bench.until("evidence")
    assert codes == sorted(codes, key=["ok", "quarantine", "evidence"].index)
    assert codes[0] == "ok"
    assert "quarantine" in codes
    assert bench.service.buffered() == codes.count("ok")
    assert bench.service.ledger.balance(quarantined(PEER)) > 0
    assert bench.service.accounts.of(ALICE, bench.world.now).rank == "new"
    bench.service.ledger.verify()


def test_what_is_in_quarantine_goes_back_to_escrow_at_the_end_of_a_bad_day(bench: Bench) -> None:
    bench.open()
    bench.until("quarantine")
    earned = bench.service.ledger.balance(accrued(PEER))
    bench.world.now += DAY
    bench.service.tick(bench.world.now)
    assert bench.service.ledger.balance(quarantined(PEER)) == 0
    assert bench.service.ledger.balance(accrued(PEER)) == earned


def test_what_is_in_quarantine_is_paid_once_the_evidence_has_fallen(bench: Bench) -> None:
    bench.open()
    bench.until("quarantine")
    kept = bench.service.ledger.balance(quarantined(PEER))
    while bench.service.verdicts.evidence.of(ALICE).conclusion() == "doubt":
        bench.decide(0)
    kept = bench.service.ledger.balance(quarantined(PEER))
    earned = bench.service.ledger.balance(accrued(PEER))
    bench.world.now += DAY
    bench.service.tick(bench.world.now)
    assert kept > 0
    assert bench.service.ledger.balance(quarantined(PEER)) == 0
    assert bench.service.ledger.balance(accrued(PEER)) == earned + kept


def test_verdicts_are_run_again_from_the_ledger_to_the_bit(bench: Bench) -> None:
    bench.open()
    bench.until("evidence")
    table, before = bench.service.verdicts.evidence, None
    entries = [entry for entry in bench.service.ledger.entries() if entry.kind == "lease.accepted"]
    for entry in entries:
        end = msgspec.msgpack.decode(entry.facts, type=EvidencedOutcome)
        again = table.run_again(end.lease, TABLES, entry.at)
        assert again is not None
        assert again.hashes == (end.tokens, end.before, end.after)
        assert end.calibration == document_hash(SEALED)
        assert before in (None, end.before)
        before = end.after


def test_a_fabricated_group_of_a_new_key_costs_one_sample(bench: Bench) -> None:
    bench.open()
    while bench.service.verdicts.evidence.of(ALICE).conclusion() == "honest":
        bench.decide(2)
    bench.scorer.scored = 0
    while (receipt := bench.decide(8, first=0)).code != "evidence":
        bench.scorer.scored = 0
    assert receipt.verdict == "refused"
    assert bench.scorer.scored == 1


def test_values_that_are_not_numbers_are_the_operators_fault(bench: Bench) -> None:
    bench.open()
    bench.scorer.gaps = float("nan")
    assert bench.decide(0).code == "not-scorable"


def test_exact_classes_leave_no_evidence(bench: Bench) -> None:
    bench.open()
    bench.world.accepted()
    assert bench.service.database.value("SELECT count(*) FROM bets") == 0
    assert bench.service.database.value("SELECT count(*) FROM compared") == 0
