"""The parts of accounting over one database: an entry of one part shows in the others."""

from pathlib import Path

from echo2.coordinator.accounts.accounting import Accounting
from echo2.coordinator.database.database import Database
from tests.support.group_world import ALICE, T0


def test_a_suspension_is_an_entry_of_the_ledger_and_shows_in_the_standing(tmp_path: Path) -> None:
    with Database.open(tmp_path / "run.sqlite") as database:
        accounting = Accounting(database)
        entry = accounting.accounts.suspend(ALICE, "drift", bytes(32), T0, T0 + 1_000)
        assert accounting.ledger.tip() == (1, entry.hash)
        assert accounting.accounts.of(ALICE, T0).code == "drift"
        assert accounting.strikes.of(ALICE) == 0
        assert accounting.lease_ends.write_entry(T0) == 0
        assert accounting.ledger.verify() == accounting.ledger.tip()
    with Database.open(tmp_path / "run.sqlite") as database:
        assert Accounting(database).accounts.of(ALICE, T0).suspended_until == T0 + 1_000
