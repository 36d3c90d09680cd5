"""A run with a market, made in a folder, with a generated history under signed heads."""

from pathlib import Path

import msgspec

from echo2.coordinator.accounts.head_signing import LedgerHeads
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.run import root_keys
from echo2.coordinator.run.sealing import Sealer
from echo2.coordinator.run.setup import Run
from echo2.p2p.envelope import seal
from echo2.p2p.wire_types import encode
from tests.support.generated_ledger import START, GeneratedLedger
from tests.support.run_folders import make_run, write_model


def market_run(folder: Path) -> Run:
    """Make a run whose RunSpec says that it pays money."""
    run = make_run(folder / "run", write_model(folder / "model"))
    keys = root_keys.present(run.folder.path / "keys", run.root.roles["root"].keys, None)
    spec = msgspec.structs.replace(run.runspec, price_mode="market", currency="USD")
    run.folder.runspec.write_bytes(seal("runspec", run.id, encode(spec), *keys))
    return run


def heads_over(run: Run, database: Database) -> LedgerHeads:
    sealer = Sealer(run)
    return LedgerHeads(database, Ledger(database), run.id, sealer, sealer.note, every=1)


def write_history(run: Run, seed: int, entries: int, *, market: bool) -> None:
    """Append a generated history to a run's ledger, two heads over it, and one more entry."""
    with Database.open(run.folder.database) as database, database.transaction():
        history = GeneratedLedger(seed, database, run.id, run.keys.ledger, market=market)
        heads = heads_over(run, database)
        history.write(entries // 2)
        assert heads.sign(START)
        history.write(entries)
        assert heads.sign(START + 1)
        history.refusal()
