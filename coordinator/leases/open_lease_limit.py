"""Decide how many leases one node may have open at a time. Pure; times in milliseconds.

Rules
1. Every node may have `per_node` leases open (`leases.per_node`), measured or not.
2. A measured node whose key is known may have what it delivers in twice its usual turnaround: the median of its last
   ones. By Little's law a node that delivers `rate` groups per millisecond, each in `turnaround`, had rate x
   turnaround leases open. So the limit doubles about once per turnaround. It bounds how soon a need is believed, and no
   queue: the node's own queue is in its turnaround.
3. It may never have more than it delivers in the longest turnaround at which it is not slow (`quick_turnaround`), by
   the turnarounds of all. More leases than a device can take further together only lengthen the turnaround of each, and
   their groups come late. Where all nodes do so, the window is the bound, which follows from no turnaround
   (lease_window.py).
4. Rule 2 gives no more than the node says that it can use (`LeaseRequest.at_once`), and no more than
   `MOST_OPEN_LEASES`.
5. A lease that expires counts as time without a group (delivery_record.py, rule 3). So leases that are not returned
   lower the limit, and it must be earned again. A silent node (delivery_record.py, rule 4) may have one.

A claimed need alone gives nothing. A new key has `per_node` at most, within the shares of room_shares.py.
"""

import math
from typing import Final

from echo2.coordinator.leases.delivery_record import USUAL_TURNAROUND_QUANTILE, DeliveryRecord
from echo2.ledger.standing import Rank
from echo2.runtime.quantiles import quantile

MOST_OPEN_LEASES: Final = 256
"""Leases: 2,048 rollouts in groups of 8."""
LIMIT_GROWTH: Final = 2


def most_open(per_node: int, at_once: int, rank: Rank, record: DeliveryRecord, quick_turnaround: float) -> int:
    """Return how many leases a node may have open. `at_once`: groups that it says it can use. `record`: record of its
    last groups. `quick_turnaround`: the longest at which it is not slow."""
    if record.silent:
        return 1
    if rank == "new" or not record.turnarounds:
        return per_node
    earned = record.rate * min(LIMIT_GROWTH * quantile(record.turnarounds, USUAL_TURNAROUND_QUANTILE), quick_turnaround)
    return max(per_node, min(math.ceil(earned), at_once, MOST_OPEN_LEASES))
