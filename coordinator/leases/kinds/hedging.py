"""Decide which open leases are covered by a twin, and to which nodes those go. Pure; times in milliseconds.

Rules
1. A lease is *overdue* once its node, by the distribution of its own last turnarounds, would have brought the group
   with a chance of 0.99. The distribution is taken as log-normal, with a deviation of the logarithm of at least
   `LEAST`, and a lease is not overdue before the longest of these turnarounds. A node with fewer than `ENOUGH`
   groups has no distribution: its leases expire as they always did.
2. An overdue lease is covered once, by a lease of the kind "hedge" (twin_sets.py), under the same version. It goes to
   a proven node that is not slow, from another subnet. Both classes are exact: both bring the same tokens.
3. A hedge is given only to a node that gets no other lease for lack of room (`SPARE`). As long as there is room, a new
   prompt serves the learner as well, and no group is generated twice.
4. Hedges are at most `share` of all leases that a process gives (`HedgeShare`), at most `BURST` in a row.
5. Each subnet may have the hedge of a lease from a moment of its own on, drawn at random by a secret of the process
   within half of the time after which the lease was overdue. So the subnet that asks most often gets no more hedges.
6. A lease that is covered counts as expired in the budget of its node, also if its group comes at last, and the node
   gives up another lease for it (expiry_budgets.py). Both groups are paid in full if they come in time.
"""

import hashlib
import math
import statistics
from collections.abc import Sequence
from typing import Final

ENOUGH: Final = 8
LEAST: Final = 0.25
DEVIATIONS: Final = 2.3263
"""Standard deviations below which 0.99 of a normal distribution lie."""
UNSURE: Final = 2.5
"""Of n turnarounds, `DEVIATIONS` is raised by `UNSURE` / n: close to Student's quantile for one further value."""
SPARE: Final = ("no-room", "later")
"""Codes of the refusals in place of which a hedge is given (rule 3)."""
BURST: Final = 8
SPREAD: Final = 0.5


def overdue_after(turnarounds: Sequence[int]) -> int | None:
    """Return the time after which a lease is overdue (rule 1). `turnarounds`: of its node's last groups."""
    if len(turnarounds) < ENOUGH:
        return None
    logs = [math.log(max(1, turnaround)) for turnaround in turnarounds]
    deviations = DEVIATIONS * (1 + UNSURE / len(logs))
    usual = math.exp(statistics.fmean(logs) + deviations * max(LEAST, statistics.stdev(logs)))
    return max(math.ceil(usual), *turnarounds)


def may_have(lease: bytes, sent: int, overdue: int, subnet: str, secret: bytes) -> int:
    """Return from when on a subnet may have the hedge of a lease (rule 5)."""
    digest = hashlib.blake2b(lease + subnet.encode(), key=secret, digest_size=8).digest()
    return overdue + int(SPREAD * (overdue - sent) * int.from_bytes(digest) / 2**64)


class HedgeShare:
    """The count by which hedges stay within their share (rule 4); in memory alone, from 0 at each start."""

    def __init__(self, share: float) -> None:
        """`share`: of all leases; 0: none is given."""
        self._cost = 1 / share - 1 if share > 0 else math.inf
        """Other leases for each hedge."""
        self._credit = 0.0

    def may(self) -> bool:
        """Tell whether the next lease may be a hedge."""
        return self._credit >= self._cost

    def note(self, *, hedge: bool) -> None:
        """Note a lease that was given."""
        self._credit = self._credit - self._cost if hedge else min(self._credit + 1, BURST * self._cost)
