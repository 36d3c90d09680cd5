"""Verdicts by evidence, run again from the files of a run: to the bit, link by link, and each deviation named."""

from pathlib import Path

import msgspec
import pytest

from coordinator.database import Database
from coordinator.verification.verdict_replay import ReplayedVerdicts, replay_verdicts
from engines.engine import SampleScore
from p2p.envelope import document_hash
from p2p.identity import peer_id
from runtime.units import DAY
from tests.support.evidence_world import SEALED, TOLERANT, Bfloat16World
from tests.support.group_world import ALICE, group


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
        (undecided,) = bench.service.undecided()
        scores = [SampleScore(logprobs=[-0.5] * 4, margins=[0.0] * 4) for _ in range(2)]
        scores[0] = msgspec.structs.replace(scores[0], margins=[1e-5 * close, 0.0, 0.0, 0.0])
        codes.append(world.decide(undecided, scores).code)
    assert codes == ["ok"] * 6 + ["near-ties"] * 4 + ["ok"]
    result = replayed(bench)
    assert (result.counted, result.faults) == (len(codes), [])
    bench.service.database.do("UPDATE near_ties SET state = zeroblob(length(state))")
    (fault,) = replayed(bench).faults
    assert "near_ties" in fault


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


@pytest.mark.parametrize("mended", [True, False])
def test_the_end_of_a_quarantine_follows_from_the_evidence(bench: Bfloat16World, mended: bool) -> None:
    bench.until("quarantine")
    while mended and bench.service.verdicts.in_doubt(ALICE):
        bench.decide(0)
    bench.world.now += DAY
    bench.service.tick(bench.world.now)
    assert replayed(bench).faults == []
    other = msgspec.msgpack.encode({"node": peer_id(ALICE), "day": 0, "released": not mended})
    bench.service.database.do("DROP TRIGGER entries_are_never_changed")
    bench.service.database.do("UPDATE entries SET facts = ? WHERE kind = 'quarantine.ended'", (other,))
    (fault,) = replayed(bench).faults
    assert "does not lead to its end" in fault
