"""Verdicts by evidence, run again from the files of a run: to the bit, link by link, and each deviation named."""

from pathlib import Path

import pytest

from coordinator.database import Database
from coordinator.verification.verdict_replay import ReplayedVerdicts, replay_verdicts
from p2p.identity import peer_id
from tests.support.evidence_world import Bfloat16World
from tests.support.group_world import ALICE


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
    assert replayed(bench)[:3] == (2, 0, [])


def test_without_its_tokens_a_verdict_is_checked_by_its_place_in_the_chain(bench: Bfloat16World) -> None:
    for wrong in (0, 1, 0):
        bench.decide(wrong)
    bench.service.database.do("DELETE FROM compared WHERE rowid = 2")
    assert replayed(bench)[:3] == (2, 1, [])


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
