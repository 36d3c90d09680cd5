"""How many leases the coordinator lets this node have open, learnt from its refusals. Pure.

Rules
1. A lease is open from its grant until its submission is received: while its group is under way, and while the
   submission is queued here.
2. After the refusal `too-many-leases` with n open leases, no lease is requested while n are open. So an engine that is
   quicker than the coordinator's `retry_after` is not kept waiting for it, and no request is made in vain.
3. After `KEPT` seconds one more is tried: the node's standing may have grown.
"""

import math
from typing import Final

KEPT: Final = 60.0


class LeaseBound:
    """The bound for one node. `now`: seconds from any moment."""

    def __init__(self) -> None:
        self._most, self._until = math.inf, -math.inf

    def refused(self, open_leases: int, now: float) -> None:
        """Record a refusal for too many leases; `open_leases` is above 0."""
        self._most, self._until = open_leases, now + KEPT

    def allows(self, open_leases: int, now: float) -> bool:
        """Tell whether another lease may be requested."""
        return open_leases < self._most or now >= self._until
