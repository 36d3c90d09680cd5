"""Delete rows of evidence that no longer count, a few at a time (evidence.py, rule 7)."""

from typing import Any, Final

from echo2.coordinator.database.database import Database
from echo2.coordinator.verification.evidence import IDLE_DAYS, NodeEvidence
from echo2.runtime.units import DAY

FORGOTTEN_AT_ONCE: Final = 32


def forget_lapsed(database: Database, table: str, column: str, now: int) -> list[Any]:
    """Delete at most `FORGOTTEN_AT_ONCE` rows of keys that were idle; return their names. `column`: column of the names
    in `table`. `now`: ms."""
    today, gone = now // DAY, list[Any]()
    query = f"SELECT {column}, state FROM {table} WHERE day <= ? ORDER BY day LIMIT ?"
    for name, state in database.all(query, (today - IDLE_DAYS, FORGOTTEN_AT_ONCE)):
        if (NodeEvidence.decode(state) if state else NodeEvidence()).has_lapsed(today):
            database.do(f"DELETE FROM {table} WHERE {column} = ?", (name,))
            gone.append(name)
        else:  # in doubt: it is looked at again after as long
            database.do(f"UPDATE {table} SET day = ? WHERE {column} = ?", (today, name))
    return gone
