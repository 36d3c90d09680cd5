"""The bound on this node's open leases, learnt from the coordinator's answers. Pure.

Rules
1. A lease is open from its grant until its submission is received: while its group is under way, and while the
   submission is queued here.
2. A lease says how many may be open (`Lease.at_once`): no more are requested. At least one is: a node that requests
   none would never hear of another number, nor why.
3. After the refusal `too-many-leases` with n open leases, no lease is requested while n are open. So an engine that is
   quicker than the coordinator's `retry_after` is not kept waiting for it, and no request is made in vain. After
   `BOUND_SECONDS` seconds one more is tried: the node's measured rate may have grown.
"""

import math
from typing import Final

BOUND_SECONDS: Final = 60.0


class LeaseBound:
    """The bound for one node. `now`: seconds from any moment."""

    def __init__(self) -> None:
        self._most, self._until = math.inf, -math.inf

    def note_bound(self, most: int | None) -> None:
        """Record the bound that a lease states (rule 2); None: it states none."""
        if most is not None:
            self._most, self._until = max(1, most), math.inf

    def on_refusal(self, open_leases: int, now: float) -> None:
        """Record a refusal for too many leases; `open_leases` is above 0."""
        self._most, self._until = open_leases, now + BOUND_SECONDS

    def free(self, open_leases: int, now: float) -> float:
        """Return how many more leases may be requested; infinity: no bound is known."""
        left = max(0, self._most - open_leases)
        return 1 if left == 0 and now >= self._until else left
