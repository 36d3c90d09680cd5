"""Choose how long a lease lasts, from measured turnarounds. Pure; times in milliseconds.

Rules
1. A lease lasts min(3 x the node's own p90 + 5 s, fleet lifetime), within the bounds of the run. The *fleet lifetime*
   is 4 x the p90 over the proven nodes, one value per node, + 5 s. With fewer than `ENOUGH_PROVEN_NODES` proven nodes
   it is the `first_ms` of the run's terms, which `first_lifetime` chooses: answers of thousands of tokens take a CPU
   many minutes. A node that has submitted fewer than `ENOUGH_PROVEN_NODES` groups gets the fleet lifetime.
   a. A node that has submitted none may say how long a group at the limit takes it. Its lease then lasts that time, or
      3 x that of a group of the mean length, if that is less, + 5 s. The word of a node makes no lease shorter, and
      counts until the node is measured; of a party's new keys while fewer than `FREE_OF_PARTY` of their open leases
      are longer by it: the party's budget is charged once they end.
   b. The run's bound for the longest life is the operator's, else `longest_lifetime`.
2. A node that has submitted groups is *slow* if 1.5 x its p90 + 5 s exceeds the fleet lifetime. Its leases last
   3 x its p90 + 5 s, and all slow nodes share a tenth of the room (coordinator/leases/room_shares.py). So no honest
   node's leases expire because others are faster, and slow nodes do not take the room of the others.
3. A node is refused as `too-slow` if it has at least `ENOUGH_PROVEN_NODES` measured groups, and all of them came late
   and took more than the longest lifetime. It may try again `TRY_AGAIN` after the lease of its newest group was sent.
   A node that has submitted none is refused so if a group of the mean length takes it longer than the longest lifetime
   by its own word: it never has a group that it cannot finish.
4. A proven node counts in the fleet for `FLEET_MEMORY_MS` after its last lease.
5. A lease is *late* once it has been open for `LATE` x its node's p90: its node may be gone. It takes no room any more;
   its group is welcome all the same until the lease expires. The leases of a node with fewer than
   `ENOUGH_PROVEN_NODES` groups are never late, but for one that lasts longer by the node's word alone: it is late after
   the fleet lifetime. So a false word keeps no room, nor the share of new keys, for longer than none.
"""

import bisect
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from echo2.runtime.quantiles import quantile
from echo2.runtime.units import DAY

ENOUGH_PROVEN_NODES: Final = 3
OWN_LIFETIME_FACTOR: Final = 3
FLEET_LIFETIME_FACTOR: Final = 4
LATE: Final = 2
LIFETIME_SLACK_MS: Final = 5_000
FIRST_LIFETIME_MS: Final = 300_000
FIRST_PER_TOKEN: Final = 200
LONGEST_LIFETIME_MS: Final = 900_000
LONGEST_PER_TOKEN: Final = 30
"""Milliseconds for each token of a group: a device of 33 tokens per second finishes any group in time."""
TRY_AGAIN: Final = 3_600_000
FLEET_MEMORY_MS: Final = DAY


def first_lifetime(limit: int) -> int:
    """Return the fleet lifetime while too few nodes are proven. `limit`: most sampled tokens of a rollout."""
    return max(FIRST_LIFETIME_MS, FIRST_PER_TOKEN * limit)


def longest_lifetime(limit: int, group: int) -> int:
    """Return the longest lifetime in a run whose operator sets none. `limit`: see above. `group`: rollouts of one."""
    return max(LONGEST_LIFETIME_MS, LONGEST_PER_TOKEN * limit * group)


class LifetimeBounds(NamedTuple):
    """Bounds of every lifetime in a run. `first`: the fleet lifetime while too few nodes are proven."""

    first: int
    least: int
    most: int

    def within(self, life: float) -> int:
        """Return a lifetime cut to these bounds."""
        return int(max(self.least, min(life, self.most)))


class LeaseLifetime(NamedTuple):
    """The lifetime of a lease. `slow`: whether its node is slow by rule 2. `late_after`: milliseconds by rule 5."""

    lasts: int
    slow: bool
    late_after: int | None = None


def lease_duration(
    turnarounds: Sequence[int],
    fleet: int | None,
    bounds: LifetimeBounds,
    stated: int | None = None,
    expected: int | None = None,
) -> LeaseLifetime:
    """Return the lifetime of a node's next lease (rules 1 and 2). `turnarounds`: turnarounds of its last groups, from
    lease sent to group received. `fleet`: p90 over the proven nodes; None: too few are proven. `stated`: time that a
    group at the limit takes the node by its own word; None: it says nothing. `expected`: that of one of the mean
    length; None: not known."""
    longest = fleet_lifetime(fleet, bounds)
    if not turnarounds:
        if stated is None:
            return LeaseLifetime(longest, False)
        own = stated if expected is None else min(stated, OWN_LIFETIME_FACTOR * expected)
        lasts = max(longest, bounds.within(own + LIFETIME_SLACK_MS))
        return LeaseLifetime(lasts, False, longest if lasts > longest else None)
    p90 = quantile(turnarounds, 0.9)
    own = bounds.within(OWN_LIFETIME_FACTOR * p90 + LIFETIME_SLACK_MS)
    late = int(LATE * p90) if len(turnarounds) >= ENOUGH_PROVEN_NODES else None
    if p90 > quick_turnaround(fleet, bounds):
        return LeaseLifetime(own, True, late)
    return LeaseLifetime(longest if len(turnarounds) < ENOUGH_PROVEN_NODES else min(own, longest), False, late)


def fleet_lifetime(fleet: int | None, bounds: LifetimeBounds) -> int:
    """Return the fleet lifetime of rule 1. `fleet`: p90 over the proven nodes; None: too few are proven."""
    return bounds.within(bounds.first if fleet is None else FLEET_LIFETIME_FACTOR * fleet + LIFETIME_SLACK_MS)


def quick_turnaround(fleet: int | None, bounds: LifetimeBounds) -> float:
    """Return the longest p90 of a node that is not slow by rule 2. `fleet`: see `fleet_lifetime`."""
    return (2 * fleet_lifetime(fleet, bounds) - 2 * LIFETIME_SLACK_MS) / 3


def too_slow(late: Sequence[int], last: int, now: int, bounds: LifetimeBounds) -> bool:
    """Tell whether rule 3 refuses a node. `late`: turnarounds of its last groups, all of them late. `last`: when the
    lease of its newest group was sent."""
    return len(late) >= ENOUGH_PROVEN_NODES and min(late) > bounds.most and 0 <= now - last < TRY_AGAIN


class FleetTurnarounds:
    """The p90 of each proven node. No call costs more than a search in a sorted list."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        self._sorted: list[int] = []

    def note(self, node: bytes, p90: int, now: int) -> None:
        """Note the p90 of a proven node."""
        self._forget(node)
        self._known[node] = p90, now
        bisect.insort(self._sorted, p90)

    def leave(self, node: bytes) -> None:
        """Drop a node that is no longer proven."""
        self._forget(node)

    def p90(self, now: int) -> int | None:
        """Return the p90 over the proven nodes; None while there are fewer than `ENOUGH_PROVEN_NODES`."""
        while self._known:
            node, (_, at) = next(iter(self._known.items()))
            if now - at <= FLEET_MEMORY_MS:
                break
            self._forget(node)
        count = len(self._sorted)
        return self._sorted[-(-9 * count // 10) - 1] if count >= ENOUGH_PROVEN_NODES else None

    def _forget(self, node: bytes) -> None:
        known = self._known.pop(node, None)
        if known is not None:
            del self._sorted[bisect.bisect_left(self._sorted, known[0])]
