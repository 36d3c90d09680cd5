"""Read a node's recent groups from run.sqlite: its time per group, its groups per time, and whether any came lately.

Rules
1. A late group counts for the node's turnaround only if no group came in time. So a node that was offline for a while
   does not count as slow.
2. The rate is measured over the last `MEASURED_GROUPS` groups, or twice as many groups as the node has leases open, if
   that is more. Groups that were under way together end together: fewer of them would not show how long they took.
3. A lease that ended without a group counts as no group, and as time in which the node had a lease, at most for as long
   as its groups usually take: then it takes no room for much longer (lease_lifetime.py, rule 5), and a crash, which
   ends all leases at once, costs a node the groups that it lost. With the whole life of the leases as such time a node
   of eight places had three to five after a crash. A superseded lease counts as nothing (superseded_leases.py, rule 6).
4. Whatever a node did before, its last lease *was lost* if it ended without a group in time: until another one comes,
   it shares the room of slow nodes (room_shares.py, rule 5). A node is *silent* if that is so of its last `LAST_LEASES`
   leases, or of all where `LEAST_LEASES` or more have ended: it has one at a time (open_lease_limit.py, rule 5).
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from echo2.coordinator.database.database import Database
from echo2.runtime.quantiles import quantile, union

MEASURED_GROUPS: Final = 20
"""The number of last groups that are measured."""
USUAL_TURNAROUND_QUANTILE: Final = 0.5
"""The share of a node's last turnarounds that its usual one exceeds. At 0.1 engines that batch stay half empty."""
LAST_LEASES: Final = 8
LEAST_LEASES: Final = 3
MOST_SEARCHED_LEASES: Final = 3 * MEASURED_GROUPS
"""Most ended leases of a node that are searched for its groups, beyond the number of groups to find."""


class DeliveryRecord(NamedTuple):
    """The measurements of a node's last groups.

    `turnarounds`: milliseconds from lease sent to group received, newest first, at most `MEASURED_GROUPS`. `late`: no
    group came before its lease's end. `rate`: groups in time, per millisecond in which the node had one of these
    leases. `last`: when the lease of its newest group was sent, ms; 0: it has no group. `lost`, `silent`: rule 4."""

    turnarounds: list[int]
    late: bool
    rate: float
    last: int
    lost: bool = False
    silent: bool = False


UNMEASURED_RECORD: Final = DeliveryRecord([], True, 0.0, 0)
"""The record of a node that has handed in no group, and let fewer than `LEAST_LEASES` leases end."""


class PastLease(NamedTuple):
    """A lease that has ended: when it was sent, when its group came, and its end, ms. `came` is None if none did."""

    sent: int
    came: int | None
    expires: int


def measured_groups(open_leases: int) -> int:
    """Return how many groups of a node are measured (rule 2)."""
    return max(MEASURED_GROUPS, 2 * open_leases)


def read_delivery_record(database: Database, node: bytes, open_leases: int = 0) -> DeliveryRecord:
    """Return the delivery record of a node's last groups. `open_leases`: how many it has open (rule 2)."""
    groups = measured_groups(open_leases)
    ended: list[tuple[int, int | None, int]] = database.all(
        "SELECT l.sent, s.at, l.expires FROM"
        " (SELECT id, sent, expires FROM leases WHERE node = ? AND state != 'open'"
        " AND NOT EXISTS (SELECT 1 FROM superseded WHERE lease = id) ORDER BY sent DESC, id LIMIT ?) l"
        " LEFT JOIN submissions s ON s.lease = l.id ORDER BY l.sent DESC",
        (node, groups + MOST_SEARCHED_LEASES),
    )
    return delivery_record([PastLease(*row) for row in ended], groups)


def delivery_record(ended: Sequence[PastLease], groups: int) -> DeliveryRecord:
    """Return the record of a node's ended leases, newest first. `groups`: how many of its groups are measured."""
    came = [one.came is not None and one.came <= one.expires for one in ended[:LAST_LEASES]]
    lost, silent = came[:1] == [False], len(came) >= LEAST_LEASES and not any(came)
    delivered = [(one.sent, one.came, one.expires) for one in ended if one.came is not None][:groups]
    if not delivered:
        return UNMEASURED_RECORD._replace(lost=lost, silent=silent)
    in_time = [row for row in delivered if row[1] <= row[2]]
    turnarounds = [at - sent for sent, at, _ in in_time or delivered][:MEASURED_GROUPS]
    usual, oldest = int(quantile(turnarounds, USUAL_TURNAROUND_QUANTILE)), delivered[-1][0]
    busy = union(
        (one.sent, min(one.expires, one.sent + usual) if one.came is None else one.came)
        for one in ended
        if one.sent >= oldest
    )
    rate = len(in_time) / busy if busy > 0 else 0.0
    return DeliveryRecord(turnarounds, not in_time, rate, delivered[0][0], lost, silent)
