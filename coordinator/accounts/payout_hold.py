"""Hold back payments in money after a ledger was restored from a copy.

Rules
1. The copy may lack payments that went out after it, so their sum may stand as payable a second time. `restore` records
   its time, and from then on nothing is planned or sent.
2. It ends when the operator says, of exactly this restore, that he compared the provider's statement with the ledger:
   `echo2-coord payout restored`. That is written to the run's `payouts/`, with his words. A further restore holds anew.
"""

from typing import Final

from echo2.coordinator.database.database import Database

_FACT: Final = "payouts_held"


def hold(database: Database, now: int) -> None:
    """Record that a copy took the ledger's place. `now`: ms."""
    database.set_fact(_FACT, now)


def held_since(database: Database) -> int | None:
    """Return when a copy last took the ledger's place, ms; None: never."""
    since: int | None = database.fact(_FACT)
    return since
