"""List the parties with accepted work: the network reserves places for their connections
(p2p/limits/connection_places.py)."""

from typing import Final

from coordinator.database import Database

LOOKED_AT: Final = 1_000
"""The number of last accepted groups that are read."""


def parties_with_accepted_work(database: Database, looked_at: int = LOOKED_AT) -> list[str]:
    """Return the parties of the last accepted groups, each once. The cost does not grow with history."""
    rows = database.all(
        "SELECT DISTINCT l.party"
        " FROM (SELECT lease FROM verdicts WHERE verdict = 'accepted' ORDER BY entry DESC LIMIT ?) v"
        " JOIN leases l ON l.id = v.lease WHERE l.party != '' ORDER BY l.party",
        (looked_at,),
    )
    return [party for (party,) in rows]
