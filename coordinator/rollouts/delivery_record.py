"""The groups that a node has handed in lately: how long a group takes it, and how many it delivers. Read from
run.sqlite.

A group that came late tells how long the node needs only where none came in time: a node that was cut off for a while
is no slow one."""

from typing import Final, NamedTuple

from coordinator.database import Database
from coordinator.metrics.statistics import union

SAMPLE: Final = 20
LOOKED_AT: Final = 4 * SAMPLE
"""Last leases of a node among which its groups are looked for."""


class DeliveryRecord(NamedTuple):
    """`turnarounds`: milliseconds from lease sent to group received, newest first. `late`: whether all of these came
    after their leases' ends. `rate`: groups a millisecond while the node holds leases. `last`: when the lease of its
    newest group was sent; 0: it has none."""

    turnarounds: list[int]
    late: bool
    rate: float
    last: int


def read_delivery_record(database: Database, node: bytes) -> DeliveryRecord:
    """Return the record of a node's last `SAMPLE` groups."""
    rows: list[tuple[int, int, int]] = database.all(
        "SELECT l.sent, s.at, l.expires FROM"
        " (SELECT id, sent, expires FROM leases WHERE node = ? ORDER BY sent DESC, id LIMIT ?) l"
        " JOIN submissions s ON s.lease = l.id ORDER BY l.sent DESC LIMIT ?",
        (node, LOOKED_AT, SAMPLE),
    )
    last = rows[0][0] if rows else 0
    in_time = [row for row in rows if row[1] <= row[2]]
    busy = union((sent, at) for sent, at, _ in rows)
    rate = len(in_time) / busy if busy > 0 else 0.0
    return DeliveryRecord([at - sent for sent, at, _ in in_time or rows], not in_time, rate, last)
