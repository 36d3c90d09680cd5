"""The market's entries in a real ledger: it takes their postings, verifies, and replays to the same state."""

from pathlib import Path

import msgspec

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.market.entries import FACTS, StatedEnd
from echo2.coordinator.market.market_replay import replay_market
from tests.support.market import RUN, told


def test_the_ledger_takes_the_entries_of_two_epochs_and_replays_to_the_same_state(tmp_path: Path) -> None:
    book = told()
    with Database.open(tmp_path / "run.sqlite") as database:
        ledger = Ledger(database)
        for entry in book.entries:
            facts = msgspec.msgpack.decode(entry.facts, type=FACTS.get(entry.kind, StatedEnd))
            with database.transaction():
                written = ledger.append(entry.at, entry.kind, entry.key, facts, entry.postings)
            assert written == entry, "the same canonical bytes, the same chain"
        ledger.verify()
        assert {name: amount for name, amount in ledger.balances().items() if amount} == {
            name: amount for name, amount in book.balances.items() if amount
        }
        assert vars(replay_market(RUN, ledger.entries())) == vars(book.state)
