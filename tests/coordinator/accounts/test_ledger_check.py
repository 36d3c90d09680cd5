"""The whole ledger is verified beside the run."""

from pathlib import Path

import anyio
import pytest

from echo2.coordinator.accounts import ledger_check
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.accounts.ledger_check import LedgerCheck, LedgerChecked
from echo2.coordinator.database.database import Database
from echo2.ledger.ledger_entries import ESCROW, accrued_account, transfer
from echo2.ledger.ledger_facts import Remark
from echo2.p2p.identity import peer_id

NODE = peer_id(bytes(32))


def grown(path: Path, entries: int) -> None:
    with Database.open(path) as database:
        ledger = Ledger(database)
        ledger.issue_points(0, entries)
        for number in range(entries - 1):
            ledger.append(
                number, "test", f"test:{number}", Remark(node=NODE, why=""), transfer(ESCROW, accrued_account(NODE), 1)
            )


def checked(path: Path) -> tuple[LedgerCheck, list[str]]:
    """Run a verification to its end; return it, and the faults that it told."""
    told: list[str] = []
    check = LedgerCheck(path, told.append)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(check.run)
            with anyio.fail_after(30):
                while check.last is None:  # noqa: ASYNC110 (no event tells of it)
                    await anyio.sleep(0.001)
            group.cancel_scope.cancel()

    anyio.run(main)
    return check, told


def test_a_ledger_that_verifies_is_said_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_check, "AT_ONCE", 4)
    grown(tmp_path / "run.sqlite", 30)
    check, told = checked(tmp_path / "run.sqlite")
    assert check.last == LedgerChecked(entries=30)
    assert told == []
    assert not check.holds()


def test_a_ledger_that_was_edited_pauses_the_run_and_has_no_head_signed(tmp_path: Path) -> None:
    grown(tmp_path / "run.sqlite", 30)
    with Database.open(tmp_path / "run.sqlite") as database:
        database.do("DROP TRIGGER entries_are_never_changed")
        database.do("UPDATE entries SET at = 77 WHERE seq = 17")
    check, told = checked(tmp_path / "run.sqlite")
    assert told == [
        "ledger entry 17: the stored hash is not that of the stored content: restore a copy, and keep this run.sqlite"
    ]
    assert check.holds()


def test_before_the_first_outcome_nothing_is_known(tmp_path: Path) -> None:
    check = LedgerCheck(tmp_path / "run.sqlite", lambda why: None)
    assert check.last is None
    assert not check.holds()
