"""Read a node's recent groups from run.sqlite: its time per group, and its groups per time.

Rule: a late group counts for the node's turnaround only if no group came in time. So a node that was offline for a
while does not count as slow.
"""

from typing import Final, NamedTuple

from coordinator.database import Database
from coordinator.metrics.statistics import union

SAMPLE: Final = 20
"""The number of last groups that are measured."""
LOOKED_AT: Final = 4 * SAMPLE
"""Most recent leases of a node that are searched for its groups."""


class DeliveryRecord(NamedTuple):
    """The measurements of a node's last groups.

    `turnarounds`: milliseconds from lease sent to group received, newest first. `late`: no group came before its
    lease's end. `rate`: groups in time, per millisecond in which the node had a lease of one of its groups. `last`:
    when the lease of its newest group was sent, ms; 0: it has no group."""

    turnarounds: list[int]
    late: bool
    rate: float
    last: int


def read_delivery_record(database: Database, node: bytes) -> DeliveryRecord:
    """Return the delivery record of a node's last `SAMPLE` groups."""
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
