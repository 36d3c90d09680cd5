"""The ledger refuses wrong entries, and detects tampering."""

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.ledger.ledger_entries import (
    ESCROW,
    FUND,
    ORIGIN,
    LedgerFault,
    Posting,
    Tampered,
    Tip,
    accrued_account,
    canonical,
    transfer,
)
from echo2.p2p.identity import peer_id

ALICE = accrued_account(peer_id(bytes([1]) * 32))


class Note(msgspec.Struct, frozen=True):
    word: str


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path / "run.sqlite") as opened:
        yield opened


@pytest.fixture
def ledger(database: Database) -> Ledger:
    return Ledger(database)


def written(ledger: Ledger) -> Ledger:
    ledger.issue_points(5, 100)
    for number in range(4):
        ledger.append(number, "work", f"work:{number}", Note(f"n{number}"), transfer(ESCROW, ALICE, 10 + number))
    return ledger


def test_an_empty_ledger_ends_at_its_origin(ledger: Ledger) -> None:
    assert ledger.verify() == ledger.tip() == Tip(0, ORIGIN)


def test_balances_are_the_sums_of_postings(ledger: Ledger) -> None:
    written(ledger)
    issued = 1_000_000_000_100
    assert ledger.balances() == {ESCROW: issued - 46, FUND: -issued, ALICE: 46}
    assert ledger.verify() == ledger.tip()
    assert ledger.tip().entries == 5


def test_the_chain_of_known_entries_is_known(ledger: Ledger, repository: Path) -> None:
    """Entries that receipts refer to never change their bytes."""
    vector = json.loads((repository / "tests/vectors/ledger.json").read_text())
    previous = ORIGIN
    for entry, known in zip(written(ledger).entries(), vector, strict=True):
        assert canonical(*entry[:6]).hex() == known["canonical"]
        previous = hashlib.sha256(previous + bytes.fromhex(known["canonical"])).digest()
        assert entry.hash == previous == bytes.fromhex(known["hash"])


def test_the_same_entry_again_is_the_same_entry(ledger: Ledger) -> None:
    first = ledger.append(1, "fact", "k", Note("a"))
    assert ledger.append(2, "fact", "k", Note("a")) == first
    assert ledger.tip().entries == 1


@pytest.mark.parametrize(
    ("postings", "said"),
    [
        ([Posting(ESCROW, 1)], "sum to 0"),
        ([Posting(FUND, -2), Posting(ESCROW, 1)], "sum to 0"),
        ([Posting(ESCROW, -1), Posting("node:me", 1)], "no account"),
        ([Posting(ESCROW, -1), Posting(ALICE, 1)], "below zero"),
    ],
)
def test_a_wrong_entry_is_not_written(ledger: Ledger, postings: list[Posting], said: str) -> None:
    with pytest.raises(LedgerFault, match=said):
        ledger.append(1, "fact", "k", Note("a"), postings)
    assert ledger.tip().entries == 0
    assert ledger.balances() == {}


def test_another_entry_under_a_known_key_is_a_fault(ledger: Ledger) -> None:
    ledger.append(1, "fact", "k", Note("a"))
    with pytest.raises(LedgerFault, match="another entry has the key k"):
        ledger.append(1, "fact", "k", Note("b"))


@pytest.mark.parametrize("statement", ["UPDATE entries SET at = 0", "DELETE FROM entries"])
def test_the_database_itself_keeps_entries_as_they_are(ledger: Ledger, database: Database, statement: str) -> None:
    written(ledger)
    with pytest.raises(sqlite3.IntegrityError, match="only grows"):
        database.do(statement)


TAMPERING = {
    "another amount": ("UPDATE entries SET postings = (SELECT postings FROM entries WHERE seq = 4) WHERE seq = 3", 3),
    "another fact": ("UPDATE entries SET facts = x'91a161' WHERE seq = 2", 2),
    "another time": ("UPDATE entries SET at = 77 WHERE seq = 5", 5),
    "an entry gone from the middle": ("DELETE FROM entries WHERE seq = 3", 3),
    "the first entry gone": ("DELETE FROM entries WHERE seq = 1", 1),
    "the last entry gone": ("DELETE FROM entries WHERE seq = 5", 4),
    "entries exchanged": ("UPDATE entries SET seq = CASE seq WHEN 2 THEN -3 ELSE seq END", 1),
    "a balance made up": ("UPDATE balances SET amount = amount + 1 WHERE account LIKE 'node:%'", 5),
    "a leaf of the tree behind the last entry": ("INSERT INTO tree SELECT max(leaf) + 1, digests FROM tree", 5),
    "postings that are none": ("UPDATE entries SET postings = x'c1' WHERE seq = 4", 4),
}


@pytest.mark.parametrize(("statement", "seq"), TAMPERING.values(), ids=TAMPERING.keys())
def test_tampering_is_found(ledger: Ledger, database: Database, statement: str, seq: int) -> None:
    written(ledger)
    database.do("DROP TRIGGER entries_are_never_changed")
    database.do("DROP TRIGGER entries_are_never_removed")
    database.do(statement)
    with pytest.raises(Tampered) as caught:
        ledger.verify()
    assert caught.value.seq == seq


def test_a_reader_verifies_beside_the_writer(ledger: Ledger, database: Database) -> None:
    written(ledger)
    with Database.read(database.path) as reader:
        assert Ledger(reader).verify() == ledger.tip()


class _Counted(list[Posting]):
    """Postings that count how often they are gone through."""

    passes = 0

    def __iter__(self) -> Iterator[Posting]:
        self.passes += 1
        return super().__iter__()


def test_an_entry_of_many_accounts_is_gone_through_a_few_times_not_once_per_account(ledger: Ledger) -> None:
    """The pay of ten thousand nodes vests by one entry: once per account would be 3 seconds."""
    nodes = [accrued_account(peer_id(bytes([number]) * 32)) for number in range(200)]
    ledger.append(1, "work", "work", Note("n"), [Posting(FUND, -200), *(Posting(node, 1) for node in nodes)])
    back = _Counted([Posting(FUND, 200), *(Posting(node, -1) for node in nodes)])
    assert ledger._lacking(back) is None
    assert back.passes <= 2


def test_all_postings_of_an_account_count_together(ledger: Ledger) -> None:
    written(ledger)
    ledger.append(9, "work", "both", Note("n"), [Posting(ALICE, -60), Posting(ESCROW, 40), Posting(ALICE, 20)])
    assert ledger.balance(ALICE) == 6
    with pytest.raises(LedgerFault, match="below zero"):
        ledger.append(9, "work", "less", Note("n"), [Posting(ALICE, -4), Posting(ESCROW, 7), Posting(ALICE, -3)])
