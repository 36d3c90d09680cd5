"""The ledger of a run with entries of one node, and signed heads over them."""

import msgspec

from echo2.coordinator.accounts.head_signing import LedgerHeads
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.run.sealing import Sealer
from echo2.coordinator.run.setup import Run
from echo2.ledger.ledger_entries import ESCROW, accrued_account, transfer
from echo2.p2p.identity import peer_id
from tests.support.run_folders import NOW

ALICE = accrued_account(peer_id(bytes([1]) * 32))


class Fact(msgspec.Struct, frozen=True):
    number: int


def work(run: Run, first: int, count: int, signed_at: int | None = None) -> None:
    """Add entries to the ledger of a run, and a head over all."""
    with Database.open(run.folder.database) as database:
        ledger, sealer = Ledger(database), Sealer(run)
        ledger.issue_points(NOW, 1_000)
        for number in range(first, first + count):
            ledger.append(NOW + number, "work", f"work:{number}", Fact(number), transfer(ESCROW, ALICE, 10))
        if signed_at is not None:
            LedgerHeads(database, ledger, run.id, sealer, sealer.note, every=1).sign(signed_at)
