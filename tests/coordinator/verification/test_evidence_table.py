"""Evidence against keys in a file: one row per key, and verdicts that come out the same when they are run again."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from echo2.coordinator.database.database import Database
from echo2.coordinator.verification import evidence_table
from echo2.coordinator.verification.evidence import BOUND, IDLE_DAYS, NodeEvidence, products
from echo2.coordinator.verification.evidence_table import EvidenceTable, evidence_hash
from echo2.coordinator.verification.token_evidence import BINS, DIFFERS, ONE, STATISTICS, TOKEN, TokenArray
from echo2.runtime.units import DAY

NODE, OTHER = bytes(32), bytes([1]) * 32
TABLES = {BOUND: [65_535]} | {
    name: [ONE * 51 // 100 if name in ("above", "below") else ONE // 50] * BINS for name in STATISTICS
}


def tokens(every: int) -> TokenArray:
    array = np.zeros(200, TOKEN)
    array["flags"][::every] = DIFFERS
    return array


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path / "run.sqlite") as database:
        database.do("PRAGMA foreign_keys = OFF")  # no lease is needed here
        yield database


def test_a_key_has_one_row_of_one_size_however_many_groups_it_had(database: Database) -> None:
    table = EvidenceTable(database)
    sizes = set()
    for number in range(5):
        table.take(NODE, bytes([number]) * 16, tokens(40), TABLES, 1)
        sizes.add(database.value("SELECT length(state) FROM bets"))
    assert database.value("SELECT count(*) FROM bets") == 1
    assert len(sizes) == 1
    assert table.of(NODE).lifelong.groups == 5
    assert table.of(OTHER) == NodeEvidence()


@pytest.mark.slow
def test_ten_thousand_free_identities_leave_no_row(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    table, once = EvidenceTable(database), products(tokens(3), TABLES)
    table.take(NODE, NODE[:16], tokens(100), TABLES, 1)
    monkeypatch.setattr(evidence_table, "products", lambda *_: once)
    with database.transaction():
        for number in range(10_000):
            key = b"%032d" % number
            table.take(key, key, tokens(3)[:1], TABLES, 1, refused=True)
    assert database.value("SELECT count(*) FROM bets") == 1
    assert database.value("SELECT sum(length(before)) FROM compared") == 0


def test_a_key_whose_only_group_is_refused_begins_again_without_evidence(database: Database) -> None:
    table, bad = EvidenceTable(database), np.concatenate([tokens(1)] * 2)
    steps = [table.take(NODE, bytes([number]) * 16, bad, TABLES, 1) for number in range(2)]
    assert [(step.conclusion, step.stored) for step in steps] == [("refusal", False)] * 2
    assert steps[0].hashes.before == steps[1].hashes.before == evidence_hash(b"")
    table.take(NODE, b"good", tokens(100), TABLES, 1)
    refused = table.take(NODE, b"bad", bad, TABLES, 1)
    assert refused.stored
    assert evidence_hash(table.of(NODE).encode()) == refused.hashes.after


def test_evidence_of_keys_that_stay_away_is_forgotten_but_not_where_there_is_doubt(database: Database) -> None:
    table = EvidenceTable(database)
    table.take(NODE, b"honest", tokens(100), TABLES, 1)
    number = 0
    while table.of(OTHER).conclusion() != "doubt":
        table.take(OTHER, b"doubted %d" % (number := number + 1), tokens(12), TABLES, 1)
    assert table.forget(IDLE_DAYS * DAY - 1) == 0
    kept, gone = table.of(OTHER), table.of(NODE)
    assert table.forget(IDLE_DAYS * DAY) == 1
    assert table.forget(IDLE_DAYS * DAY) == 0
    assert table.of(NODE) == NodeEvidence()
    assert table.of(OTHER) == kept
    once_more = products(tokens(100), TABLES)
    assert gone.after(once_more, IDLE_DAYS * DAY) == NodeEvidence().after(once_more, IDLE_DAYS * DAY)


def test_the_entries_of_a_key_are_a_chain_and_each_verdict_is_run_again_alone(database: Database) -> None:
    table = EvidenceTable(database)
    steps = [table.take(NODE, bytes([number]) * 16, tokens(100 >> number), TABLES, number) for number in range(4)]
    assert [step.hashes.before for step in steps[1:]] == [step.hashes.after for step in steps[:-1]]
    for number in (2, 0, 3, 1):
        again = table.run_again(bytes([number]) * 16, TABLES, number)
        assert again.hashes == steps[number].hashes
        assert again.after.conclusion() == steps[number].conclusion
    assert table.run_again(bytes([9]) * 16, TABLES, 0) is None


def test_other_tokens_or_another_calibration_show_when_a_verdict_is_run_again(database: Database) -> None:
    table = EvidenceTable(database)
    step = table.take(NODE, NODE[:16], tokens(9), TABLES, 1)
    other = TABLES | {"differs": [ONE // 10] * BINS}
    again = table.run_again(NODE[:16], other, 1)
    assert again.hashes.after != step.hashes.after
    database.do("UPDATE compared SET tokens = ?", (tokens(10).tobytes(),))
    altered = table.run_again(NODE[:16], TABLES, 1)
    assert altered.hashes.tokens != step.hashes.tokens


def test_a_bad_key_is_refused_and_another_is_not(database: Database) -> None:
    table = EvidenceTable(database)
    steps = [table.take(NODE, bytes([number]) * 16, tokens(3), TABLES, 1) for number in range(8)]
    honest = [table.take(OTHER, bytes([10 + number]) * 16, tokens(100), TABLES, 1) for number in range(8)]
    assert steps[-1].conclusion == "refusal"
    assert {step.conclusion for step in honest} == {"honest"}


@pytest.mark.parametrize("margin", [16384, 16385])
def test_a_token_beyond_the_bound_leads_to_no_verdict_but_its_own(database: Database, margin: int) -> None:
    table, group = EvidenceTable(database), tokens(100)
    group["margin"][0] = margin
    bounded = TABLES | {BOUND: [16384]}  # 1 nat
    table.take(NODE, NODE[:16], group, bounded, 1)
    again = table.run_again(NODE[:16], bounded, 1)
    assert again.agrees("seeded-choice", doubted=False) == (margin > 16384)
    assert again.agrees("ok", doubted=False) == (margin <= 16384)
    assert not again.agrees("version-lie", doubted=False) or margin <= 16384
