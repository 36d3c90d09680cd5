"""What a node has handed in lately: how long a group takes it, and how many it delivers. Read from run.sqlite."""

from typing import Final, NamedTuple

from coordinator.capacity import union
from coordinator.database import Database

SAMPLE: Final = 20
LOOKED_AT: Final = 4 * SAMPLE
"""Last leases of a node among which its groups are looked for."""


class Record(NamedTuple):
    """`turnarounds`: milliseconds from lease sent to group received, the newest first. `rate`: groups a millisecond
    while the node holds leases. `last`: when the lease of its newest group was sent; 0: it has none."""

    turnarounds: list[int]
    rate: float
    last: int


def record_of(database: Database, node: bytes) -> Record:
    """Return the record of a node's last `SAMPLE` groups."""
    rows: list[tuple[int, int]] = database.all(
        "SELECT l.sent, s.at FROM (SELECT id, sent FROM leases WHERE node = ? ORDER BY sent DESC, id LIMIT ?) l"
        " JOIN submissions s ON s.lease = l.id ORDER BY l.sent DESC LIMIT ?",
        (node, LOOKED_AT, SAMPLE),
    )
    busy = union(rows)
    return Record([at - sent for sent, at in rows], len(rows) / busy if busy > 0 else 0.0, rows[0][0] if rows else 0)
