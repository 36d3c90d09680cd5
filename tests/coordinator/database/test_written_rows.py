"""Test that remembered rows equal those of run.sqlite, whatever was undone."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.database.group_commit import GroupCommit
from echo2.coordinator.database.written_rows import MOST_WRITTEN_ROWS, WrittenRows
from echo2.ledger.ledger_entries import ESCROW, FUND, LedgerFault, accrued_account, transfer
from echo2.p2p.identity import peer_id
from echo2.runtime.errors import DiskFull

NODE = accrued_account(peer_id(b"n" * 32))


class Note(msgspec.Struct):
    text: str


def add(ledger: Ledger, number: int, amount: int = 1) -> bytes:
    return ledger.append(number, "fact", f"k{number}", Note("a"), transfer(FUND, ESCROW, amount)).hash


def fill(ledger: Ledger) -> None:
    for number in range(2, 10_000):
        add(ledger, number)


@contextlib.contextmanager
def undone(database: Database) -> Iterator[None]:
    """Run the block as a transaction that fails at its end."""
    with contextlib.suppress(InterruptedError), database.transaction():
        yield
        raise InterruptedError


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path / "run.sqlite") as opened:
        opened.do("PRAGMA synchronous = OFF")
        yield opened


@pytest.fixture
def ledger(database: Database) -> Ledger:
    ledger = Ledger(database)
    add(ledger, 1)
    return ledger


def test_a_table_that_grows_too_long_is_forgotten_and_remembered_anew() -> None:
    rows = WrittenRows()
    for number in range(MOST_WRITTEN_ROWS + 1):
        rows.put("table", number, number)
    assert (rows.get("table", 0), rows.get("table", MOST_WRITTEN_ROWS)) == (None, MOST_WRITTEN_ROWS)


def test_a_row_that_is_written_by_another_statement_is_forgotten_alone() -> None:
    rows = WrittenRows()
    rows.put("table", 1, "a")
    rows.put("table", 2, "b")
    rows.forget("table", 1)
    assert (rows.get("table", 1), rows.get("table", 2)) == (None, "b")


def test_entries_that_are_undone_with_a_part_of_a_transaction_leave_the_chain_as_it_was(
    database: Database, ledger: Ledger
) -> None:
    with database.transaction():
        add(ledger, 2)
        with undone(database):
            first = [add(ledger, number) for number in (3, 4, 5)]
        again = [add(ledger, number) for number in (3, 4, 5)]
    assert again == first
    assert ledger.verify().entries == 5
    assert ledger.balance(ESCROW) == 5


def test_an_entry_that_would_take_more_than_is_there_writes_nothing(ledger: Ledger) -> None:
    before = ledger.tip()
    with pytest.raises(LedgerFault, match="escrow:run would fall below zero by fact k2"):
        ledger.append(2, "fact", "k2", Note("a"), transfer(ESCROW, NODE, 2))
    assert ledger.tip() == before
    ledger.append(2, "fact", "k2", Note("a"), transfer(ESCROW, NODE, 1))
    assert (ledger.balance(ESCROW), ledger.balance(NODE)) == (0, 1)
    assert ledger.verify().entries == 2


def test_a_known_entry_is_returned_though_its_account_is_empty_by_now(ledger: Ledger) -> None:
    paid = ledger.append(2, "fact", "k2", Note("a"), transfer(ESCROW, NODE, 1))
    assert ledger.append(9, "fact", "k2", Note("a"), transfer(ESCROW, NODE, 1)) == paid
    assert ledger.verify().entries == 2


@pytest.mark.parametrize("table", ["entries", "tree", "balances"])
def test_an_entry_that_fails_in_the_middle_is_wholly_undone(database: Database, ledger: Ledger, table: str) -> None:
    database.do(f"CREATE TEMP TRIGGER fails BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'it fails'); END")
    before = ledger.tip()
    with pytest.raises(sqlite3.IntegrityError, match="it fails"):
        add(ledger, 2)
    database.do("DROP TRIGGER fails")
    assert ledger.tip() == before
    add(ledger, 2)
    assert ledger.verify().entries == 2


def test_a_transaction_that_the_full_disk_ends_is_forgotten(database: Database, ledger: Ledger) -> None:
    pages = database.value("PRAGMA page_count")
    database.value(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(DiskFull), database.transaction():
        fill(ledger)
    database.value(f"PRAGMA max_page_count = {1 << 20}")
    add(ledger, 2)
    assert ledger.verify().entries == 2


async def test_a_commit_of_an_iteration_that_fails_is_forgotten(database: Database, ledger: Ledger) -> None:
    with database.group_commits() as group:
        assert isinstance(group, GroupCommit)
        add(ledger, 2)
        await group.durable()
        with undone(database):
            add(ledger, 3)
        assert ledger.verify().entries == 2
        add(ledger, 3)
        await group.durable()
    assert ledger.verify().entries == 3
