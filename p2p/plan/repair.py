"""A plan that follows its peers as they come and go, with few edges changed. Pure.

1. Who loses a parent, and who comes, is given the feeder with room that stands nearest to the source in that stripe: an
   inner node of the stripe, else one that feeds nobody yet, else one with room left from its own stripe (the one
   way in which a repaired plan is less than interior-disjoint), else the one that is least overloaded by it.
2. Only those edges change. When the predicted time has risen by more than `WORSE` over what a fresh plan gave (both by
   the bound T* of their day), or more than `MANY` of the peers changed, the plan is made afresh.
3. The planner counts on all of the source's uplink but `SPARE` of it, where the bound T* grows to `CHEAP` times at most
   by that: what a plan leaves undone is asked of the source, and where that has no time for it, the plan suffers.
4. Nobody is given a parent that it said does not feed it, while there is another.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from heapq import heapify, heappop, heappush

from p2p.plan.trees import Line, Load, Plan, bound, fresh, predicted, slots

WORSE = 1.3
MANY = 0.25
SPARE, CHEAP = 0.25, 1.03


class Planner:
    """Keeps one plan for one source. The same calls with the same seed give the same plans."""

    def __init__(self, source: str, seed: int) -> None:
        self._source, self._seed = source, seed
        self._worth = 1.0
        self.plan = Plan(source, 1, {}, 1.0, 0.0)

    def update(
        self, uplink: float, lines: Mapping[str, Line], load: Load, apart: Mapping[str, Collection[str]] | None = None
    ) -> Plan:
        """The plan for these peers. `uplink`: the source's. `apart`: peer -> parents that do not feed it."""
        apart = apart or {}
        old = self.plan
        uplink = _planned(uplink, lines, load)
        changed = len(old.parents.keys() ^ lines.keys())
        if changed <= MANY * len(lines) and old.parents:
            plan = repaired(old, uplink, lines, load, apart)
            if plan.seconds <= WORSE * self._worth * bound(uplink, lines.values(), load.length):
                self.plan = plan
                return plan
        plan = fresh(self._source, uplink, lines, load, self._seed)
        self._worth = plan.seconds / (bound(uplink, lines.values(), load.length) or 1.0)
        if apart:
            plan = repaired(plan, uplink, lines, load, apart)
        self.plan = plan
        return plan


def _planned(uplink: float, lines: Mapping[str, Line], load: Load) -> float:
    """Rule 3."""
    without = (1 - SPARE) * uplink
    soonest = bound(uplink, lines.values(), load.length)
    return without if bound(without, lines.values(), load.length) <= CHEAP * soonest else uplink


def repaired(
    plan: Plan, uplink: float, lines: Mapping[str, Line], load: Load, apart: Mapping[str, Collection[str]]
) -> Plan:
    """`plan` for other peers, by rule 1."""
    parents = {peer: list(plan.parents.get(peer, ("",) * plan.stripes)) for peer in lines}
    for peer, ups in parents.items():
        for stripe, up in enumerate(ups):
            feeds = up == plan.source or (up in lines and lines[up].dialable)
            if not feeds or up in apart.get(peer, ()):
                ups[stripe] = ""
    rooms = _Rooms(plan, uplink, lines, parents)
    for stripe in range(plan.stripes):
        _adopt(stripe, rooms, parents, apart)
    made = replace(plan, parents={peer: tuple(ups) for peer, ups in parents.items()})
    return replace(made, seconds=predicted(made, uplink, lines, load))


class _Rooms:
    """How many more each peer can feed, in all stripes together."""

    def __init__(self, plan: Plan, uplink: float, lines: Mapping[str, Line], parents: Mapping[str, list[str]]) -> None:
        most = len(lines) * plan.stripes
        self.source, self._lines, self._uplink = plan.source, lines, uplink
        self.homes: dict[str, int] = {}
        self.feeds = Counter(up for ups in parents.values() for up in ups)
        for ups in parents.values():
            for stripe, up in enumerate(ups):
                self.homes.setdefault(up, stripe)
        self._most = {
            peer: slots(line.uplink, plan.stripes, plan.rate, most) if line.dialable else 0
            for peer, line in lines.items()
        }
        self._most[plan.source] = slots(uplink, plan.stripes, plan.rate, most)

    def left(self, feeder: str) -> int:
        return self._most[feeder] - self.feeds[feeder]

    def rank(self, feeder: str, stripe: int) -> tuple[int, float] | None:
        """Lower is better: (class of rule 1, load); None: it can feed nobody."""
        if feeder != self.source and not self._lines[feeder].dialable:
            return None
        home = self.homes.get(feeder, stripe) if feeder != self.source else stripe
        if self.left(feeder) > 0:
            if home != stripe:
                return 2, 0.0
            return (0 if self.feeds[feeder] else 1), 0.0
        up = self._uplink if feeder == self.source else self._lines[feeder].uplink
        return (3, (self.feeds[feeder] + 1) / up) if up else None


def _adopt(stripe: int, rooms: _Rooms, parents: dict[str, list[str]], apart: Mapping[str, Collection[str]]) -> None:
    """Give each orphan of a stripe a parent. Only who hangs on the source can be one, so no circle can close."""
    children: dict[str, list[str]] = {}
    for peer, ups in parents.items():
        children.setdefault(ups[stripe], []).append(peer)
    # Whole branches first: their peers then have room for the rest.
    orphans = sorted(children.pop("", []), key=lambda peer: -len(children.get(peer, ())))
    heap: list[tuple[int, float, int, int, str]] = []
    count = 0

    def offer(feeders: Iterator[tuple[str, int]]) -> None:
        nonlocal count
        for feeder, depth in feeders:
            rank = rooms.rank(feeder, stripe)
            count += 1
            if rank is not None:
                heap.append((*rank, depth, count, feeder))

    offer(_attached(rooms.source, 0, children))
    heapify(heap)
    for peer in orphans:
        found = _best(heap, rooms, stripe, apart.get(peer, ()))
        if found is None:
            found = (rooms.source, 0)
        feeder, depth = found
        parents[peer][stripe] = feeder
        rooms.feeds[feeder] += 1
        rooms.homes.setdefault(feeder, stripe)
        for one, at in [(feeder, depth), *_attached(peer, depth + 1, children)]:
            rank = rooms.rank(one, stripe)
            count += 1
            if rank is not None:
                heappush(heap, (*rank, at, count, one))


def _best(
    heap: list[tuple[int, float, int, int, str]], rooms: _Rooms, stripe: int, but: Collection[str]
) -> tuple[str, int] | None:
    """The best feeder and its depth, taken from the heap; entries that are no longer true are put right on the way."""
    put_back = []
    found = None
    while heap and found is None:
        entry = heappop(heap)
        kind, load, depth, count, feeder = entry
        rank = rooms.rank(feeder, stripe)
        if rank is None:
            continue
        if rank != (kind, load):
            heappush(heap, (*rank, depth, count, feeder))
        elif feeder in but:
            put_back.append(entry)
        else:
            found = (feeder, depth)
    for entry in put_back:
        heappush(heap, entry)
    return found


def _attached(root: str, depth: int, children: Mapping[str, list[str]]) -> Iterator[tuple[str, int]]:
    """(peer, depth) of a branch, from its root down."""
    waiting = deque([(root, depth)])
    while waiting:
        peer, at = waiting.popleft()
        yield peer, at
        waiting.extend((child, at + 1) for child in children.get(peer, ()))
