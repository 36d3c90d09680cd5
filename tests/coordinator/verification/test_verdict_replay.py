"""Verdicts by evidence, run again from the files of a run: to the bit, link by link, and each deviation named."""

from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.database.database import Database
from echo2.coordinator.verification.evidence import EProcess
from echo2.coordinator.verification.verdict_replay import ReplayedVerdicts, replay_verdicts
from echo2.engines.engine import SampleScore
from echo2.p2p.envelope import document_hash
from echo2.p2p.identity import peer_id
from echo2.p2p.limits.origin import Origin
from echo2.protocol.leases import Lease, Receipt
from echo2.runtime.units import DAY
from tests.support.evidence_world import SEALED, TOLERANT, Bfloat16World
from tests.support.group_world import ALICE, group, name, opened


@pytest.fixture
def bench(tmp_path: Path) -> Bfloat16World:
    bench = Bfloat16World(tmp_path)
    bench.open()
    return bench


def replayed(bench: Bfloat16World) -> ReplayedVerdicts:
    with Database.read(bench.world.path) as database:
        return replay_verdicts(database, bench.service.classes.tables)


def test_every_verdict_is_run_again_with_the_same_bits(bench: Bfloat16World) -> None:
    codes = [bench.decide(8, first=0).code, *bench.until("evidence"), bench.decide(0).code]
    assert codes[0] == "evidence"  # a new key's one sample was enough
    assert "quarantine" in codes
    result = replayed(bench)
    assert (result.again, result.linked, result.faults) == (len(codes), 0, [])
    assert result.evidence == {peer_id(ALICE): bench.service.verdicts.evidence.of(ALICE)}


def test_a_refusal_by_one_token_is_run_again(bench: Bfloat16World) -> None:
    bench.decide(0)
    bench.scorer.margin = 3.0
    assert bench.decide(1).code == "seeded-choice"
    bench.scorer.margin = 0.3
    bench.decide(0)
    assert replayed(bench)[:5] == (3, 0, 0, 0, [])


def test_a_restart_between_two_groups_breaks_no_chain(bench: Bfloat16World) -> None:
    bench.decide(0)
    bench.reopen()
    bench.decide(1)
    assert replayed(bench)[:5] == (2, 0, 0, 0, [])


def test_without_its_tokens_a_verdict_is_checked_by_its_place_in_the_chain(bench: Bfloat16World) -> None:
    for wrong in (0, 1, 0):
        bench.decide(wrong)
    bench.service.database.do("DELETE FROM compared WHERE rowid = 2")
    assert replayed(bench)[:5] == (2, 1, 0, 0, [])


def test_altered_tokens_and_a_missing_link_are_named(bench: Bfloat16World) -> None:
    receipts = [bench.decide(0) for _ in range(3)]
    database = bench.service.database
    database.do("UPDATE compared SET tokens = zeroblob(length(tokens)) WHERE lease = ?", (receipts[0].lease,))
    (fault,) = replayed(bench).faults
    assert receipts[0].lease.hex() in fault
    assert "other hashes" in fault
    database.do("PRAGMA foreign_keys = OFF")
    database.do("DROP TRIGGER entries_are_never_removed")
    database.do("DELETE FROM entries WHERE seq = ?", (receipts[1].entry,))
    assert "after the key's group before" in replayed(bench).faults[1]


def test_near_ties_are_counted_again_from_the_entries(bench: Bfloat16World) -> None:
    world, codes = bench.world, []
    for close in (0, *[1] * 9, 0):
        world.submit(group(world.lease()))
        (undecided,) = bench.service.list_undecided()
        scores = [SampleScore(logprobs=[-0.5] * 4, margins=[0.0] * 4) for _ in range(2)]
        scores[0] = msgspec.structs.replace(scores[0], margins=[1e-5 * close, 0.0, 0.0, 0.0])
        codes.append(world.decide(undecided, scores).code)
    assert codes == ["ok"] * 6 + ["near-ties"] * 4 + ["ok"]
    result = replayed(bench)
    assert (result.counted, result.faults) == (len(codes), [])
    bench.service.database.do("UPDATE near_ties SET state = zeroblob(length(state))")
    (fault,) = replayed(bench).faults
    assert "near_ties" in fault


@pytest.mark.parametrize("rules", [1, 2])
def test_what_a_party_refuses_follows_from_the_entries_under_their_rules(
    bench: Bfloat16World, rules: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no key's own groups spoke against it, a party would refuse by the first rules alone."""

    def decide(node: bytes, close: int) -> Receipt:
        world, origin = bench.world, Origin("connection", "198.51.100.0/24")
        answer = bench.service.lease(node, world.ask(0), world.now, origin)
        world.submit(group(opened("lease", answer, Lease)), node)
        (undecided,) = bench.service.list_undecided()
        scores = [SampleScore(logprobs=[-0.5] * 4, margins=[1e-5 * tie, 0.0, 0.0, 0.0]) for tie in (close, 0)]
        return world.decide(undecided, scores)

    assert [decide(ALICE, 0).code for _ in range(3)] == ["ok"] * 3
    number = 0
    for known in range(10):
        bench.service.accounts.remark(name("key", known, 32), "node.vouched", "", 1)  # so that each end has an entry
    while (receipt := decide(name("key", number, 32), 1)).code == "ok":
        number += 1
    assert receipt.code == "party-near-ties"
    result = replayed(bench)
    assert (result.counted, result.faults) == (number + 4, [])
    change_facts(bench, receipt.entry, rules=rules)
    monkeypatch.setattr(EProcess, "has_risen", lambda process: False)
    faults = [fault for fault in replayed(bench).faults if receipt.lease.hex() in fault]
    assert len(faults) == rules - 1


def test_passes_under_two_versions_are_counted_again_from_the_entries(bench: Bfloat16World) -> None:
    bench.open(TOLERANT)
    codes = [bench.decide(1, before=0).code for _ in range(24)]
    assert {*codes} == {"ok", "version-lie"}
    result = replayed(bench)
    assert (result.paired, result.faults) == (len(codes), [])
    bench.service.database.do("UPDATE version_pairs SET state = zeroblob(length(state))")
    (fault,) = replayed(bench).faults
    assert "version_pairs" in fault


def test_a_refused_group_of_a_known_key_without_evidence_begins_no_chain(bench: Bfloat16World) -> None:
    bench.service.accounts.remark(ALICE, "node.vouched", "", 1)
    assert [bench.decide(8).code, bench.decide(0).code] == ["evidence", "ok"]
    assert replayed(bench).faults == []


def test_a_release_by_a_re_run_follows_from_the_calibration_that_it_names(bench: Bfloat16World) -> None:
    bench.until("quarantine")
    bench.open(TOLERANT)
    bench.world.now += DAY
    bench.service.tick(bench.world.now)
    assert replayed(bench).faults == []
    facts = bench.service.database.value("SELECT facts FROM entries WHERE kind = 'quarantine.ended'")
    other = msgspec.msgpack.encode(msgspec.msgpack.decode(facts) | {"calibration": document_hash(SEALED)})
    bench.service.database.do("DROP TRIGGER entries_are_never_changed")
    bench.service.database.do("UPDATE entries SET facts = ? WHERE kind = 'quarantine.ended'", (other,))
    (fault,) = replayed(bench).faults
    assert "does not lead to its end" in fault


def change_facts(bench: Bfloat16World, entry: int, **facts: object) -> None:
    """Alter the facts of an entry in the file. `None` removes one."""
    database = bench.service.database
    (packed,) = database.one("SELECT facts FROM entries WHERE seq = ?", (entry,)) or (b"",)
    changed = msgspec.msgpack.decode(packed) | facts
    left = {name: value for name, value in changed.items() if value is not None}
    database.do("DROP TRIGGER IF EXISTS entries_are_never_changed")
    database.do("UPDATE entries SET facts = ? WHERE seq = ?", (msgspec.msgpack.encode(left), entry))


def doubted_and_honest(bench: Bfloat16World) -> Receipt:
    """Bring the key into doubt and out of it; return the receipt of its next honest group on the same day."""
    bench.into_doubt()
    while bench.service.verdicts.days.in_doubt(ALICE):
        bench.decide(0)
    return bench.decide(0)


@pytest.mark.parametrize("stored", [True, False])
def test_the_rest_of_a_day_in_doubt_is_in_quarantine_by_the_replay_as_well(bench: Bfloat16World, stored: bool) -> None:
    receipt = doubted_and_honest(bench)
    if not stored:
        bench.service.database.do("DELETE FROM compared")
    assert (receipt.code, replayed(bench).faults) == ("quarantine", [])
    change_facts(bench, receipt.entry, code="ok")
    (fault,) = replayed(bench).faults
    assert receipt.lease.hex() in fault


def test_entries_of_the_first_rules_are_run_again_under_these(bench: Bfloat16World) -> None:
    receipt = doubted_and_honest(bench)
    change_facts(bench, receipt.entry, rules=1, peak=None)
    (fault,) = replayed(bench).faults
    assert "does not lead to quarantine" in fault
    change_facts(bench, receipt.entry, code="ok")
    assert replayed(bench).faults == []


def test_an_altered_peak_is_named_and_a_high_one_withholds_the_pay(bench: Bfloat16World) -> None:
    bench.into_doubt()
    high = bench.decide(1)
    while bench.service.verdicts.days.in_doubt(ALICE):
        bench.decide(0)
    bench.end_day()
    assert replayed(bench).faults == []
    ended = bench.service.database.value("SELECT seq FROM entries WHERE kind = 'quarantine.ended'")
    change_facts(bench, ended, released=True)
    (fault,) = replayed(bench).faults
    assert "does not lead to its end" in fault
    change_facts(bench, ended, released=False, decided="window")
    assert "does not lead to its end" in replayed(bench).faults[0]
    change_facts(bench, ended, released=False, decided="rerun")
    change_facts(bench, high.entry, peak=3)
    assert "another peak" in replayed(bench).faults[0]


@pytest.mark.parametrize("mended", [True, False])
def test_the_end_of_a_quarantine_follows_from_the_evidence(bench: Bfloat16World, mended: bool) -> None:
    bench.into_doubt()
    while mended and bench.service.verdicts.days.in_doubt(ALICE):
        bench.decide(0)
    bench.end_day()
    assert replayed(bench).faults == []
    other = msgspec.msgpack.encode({"node": peer_id(ALICE), "day": 0, "released": not mended})
    bench.service.database.do("DROP TRIGGER entries_are_never_changed")
    bench.service.database.do("UPDATE entries SET facts = ? WHERE kind = 'quarantine.ended'", (other,))
    (fault,) = replayed(bench).faults
    assert "does not lead to its end" in fault
