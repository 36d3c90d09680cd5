"""Keep a plan up to date while peers come and go, by changing few edges. Pure.

1. A peer that joins, or loses a parent, gets a new parent in that stripe. The order of preference: an inner node of
   the stripe with room; a peer that feeds none yet; a peer with room left from its own stripe; the feeder that one more
   child overloads least. Among equals, the one nearest to the source goes first. The last two kinds may break
   interior-disjointness.
2. Only those edges change. The plan is built anew when more than the share `CHANGED_PEERS_SHARE` of the peers changed,
   or when its predicted time has become too long. Predicted times are compared as multiples of T* (`lower_bound`): that
   of the plan may be `REPAIRED_PLAN_FACTOR` times that of the last fresh plan.
3. The planner leaves a share of `SPARE` of the source's uplink unplanned, if that raises T* to at most `CHEAP` times
   its value. Chunks that a plan fails to deliver are requested from the source; an overloaded source would delay them.
4. A peer never gets a parent that it reported as not feeding it. Without any other, it gets the source.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count

from echo2.p2p.plan.trees import LinkCapacity, PayloadSize, Plan, build, fanout, lower_bound, predict_seconds

REPAIRED_PLAN_FACTOR = 1.3
CHANGED_PEERS_SHARE = 0.25
SPARE, CHEAP = 0.25, 1.03


class Planner:
    """Keeps one plan for one source. The same calls with the same seed give the same plans."""

    def __init__(self, source: str, seed: int) -> None:
        self._source = source
        self._seed = seed
        self._worth = 1.0
        """Predicted time of the last fresh plan, divided by its T* (rule 2)."""
        self.plan = Plan(source, 1, {}, 1.0, 0.0)

    def update(
        self,
        uplink: float,
        links: Mapping[str, LinkCapacity],
        load: PayloadSize,
        excluded: Mapping[str, Collection[str]] | None = None,
    ) -> Plan:
        """Return the plan for the peers in `links`. `uplink`: the source's. `excluded`: the parents that do not feed a
        peer, by peer."""
        excluded = excluded or {}
        old = self.plan
        uplink = _planned_uplink(uplink, links, load)
        changed = len(old.parents.keys() ^ links.keys())
        if changed <= CHANGED_PEERS_SHARE * len(links) and old.parents:
            plan = repair(old, uplink, links, load, excluded)
            if plan.seconds <= REPAIRED_PLAN_FACTOR * self._worth * lower_bound(uplink, links.values(), load.length):
                self.plan = plan
                return plan
        plan = build(self._source, uplink, links, load, self._seed)
        self._worth = plan.seconds / (lower_bound(uplink, links.values(), load.length) or 1.0)
        if excluded:
            plan = repair(plan, uplink, links, load, excluded)
        self.plan = plan
        return plan


def _planned_uplink(uplink: float, links: Mapping[str, LinkCapacity], load: PayloadSize) -> float:
    """Return the part of the source's uplink to plan with (rule 3)."""
    without = (1 - SPARE) * uplink
    soonest = lower_bound(uplink, links.values(), load.length)
    return without if lower_bound(without, links.values(), load.length) <= CHEAP * soonest else uplink


def repair(
    plan: Plan,
    uplink: float,
    links: Mapping[str, LinkCapacity],
    load: PayloadSize,
    excluded: Mapping[str, Collection[str]],
) -> Plan:
    """Return `plan` changed for the peers in `links`, by rules 1 and 4."""
    parents = {peer: list(plan.parents.get(peer, ("",) * plan.stripes)) for peer in links}
    for peer, ups in parents.items():
        for stripe, up in enumerate(ups):
            feeds = up == plan.source or (up in links and links[up].dialable)
            if not feeds or up in excluded.get(peer, ()):
                ups[stripe] = ""
    slots = _FreeSlots(plan, uplink, links, parents)
    for stripe in range(plan.stripes):
        _assign_parents(stripe, slots, parents, excluded)
    repaired = replace(plan, parents={peer: tuple(ups) for peer, ups in parents.items()})
    return replace(repaired, seconds=predict_seconds(repaired, uplink, links, load))


class _FreeSlots:
    """The room of each feeder: the number of further children that it can feed, in all stripes together."""

    def __init__(
        self, plan: Plan, uplink: float, links: Mapping[str, LinkCapacity], parents: Mapping[str, list[str]]
    ) -> None:
        most = len(links) * plan.stripes
        self.source = plan.source
        self._links = links
        self._uplink = uplink
        self.inner_stripe: dict[str, int] = {}
        self.feeds = Counter(up for ups in parents.values() for up in ups)
        for ups in parents.values():
            for stripe, up in enumerate(ups):
                self.inner_stripe.setdefault(up, stripe)
        self._fanout = {
            peer: fanout(link.uplink, plan.stripes, plan.rate, most) if link.dialable else 0
            for peer, link in links.items()
        }
        self._fanout[plan.source] = fanout(uplink, plan.stripes, plan.rate, most)

    def rank(self, feeder: str, stripe: int) -> tuple[int, float] | None:
        """Return (place in the order of rule 1, load): lower is better. Return None for a peer that can feed none."""
        if feeder != self.source and not self._links[feeder].dialable:
            return None
        inner = self.inner_stripe.get(feeder, stripe) if feeder != self.source else stripe
        if self._fanout[feeder] > self.feeds[feeder]:
            if inner != stripe:
                return 2, 0.0
            return (0 if self.feeds[feeder] else 1), 0.0
        up = self._uplink if feeder == self.source else self._links[feeder].uplink
        return (3, (self.feeds[feeder] + 1) / up) if up else None


def _assign_parents(
    stripe: int, slots: _FreeSlots, parents: dict[str, list[str]], excluded: Mapping[str, Collection[str]]
) -> None:
    """Give each orphan of a stripe a parent. Only peers connected to the source qualify, so no cycle can arise."""
    children: dict[str, list[str]] = {}
    for peer, ups in parents.items():
        children.setdefault(ups[stripe], []).append(peer)
    # Whole branches first: their peers then have room for the remaining orphans.
    orphans = sorted(children.pop("", []), key=lambda peer: -len(children.get(peer, ())))
    heap: list[tuple[int, float, int, int, str]] = []
    counter = count()

    def offer(feeders: Iterable[tuple[str, int]]) -> None:
        for feeder, depth in feeders:
            if (rank := slots.rank(feeder, stripe)) is not None:
                heappush(heap, (*rank, depth, next(counter), feeder))

    offer(_branch(slots.source, 0, children))
    for peer in orphans:
        feeder, depth = _best_feeder(heap, slots, stripe, excluded.get(peer, ())) or (slots.source, 0)
        parents[peer][stripe] = feeder
        slots.feeds[feeder] += 1
        slots.inner_stripe.setdefault(feeder, stripe)
        offer([(feeder, depth), *_branch(peer, depth + 1, children)])


def _best_feeder(
    heap: list[tuple[int, float, int, int, str]], slots: _FreeSlots, stripe: int, excluded: Collection[str]
) -> tuple[str, int] | None:
    """Take the best feeder and its depth from the heap, updating outdated entries on the way."""
    put_back, feeder_at = [], None
    while heap and feeder_at is None:
        entry = heappop(heap)
        kind, load, depth, number, feeder = entry
        rank = slots.rank(feeder, stripe)
        if rank is None:
            continue
        if rank != (kind, load):
            heappush(heap, (*rank, depth, number, feeder))
        elif feeder in excluded:
            put_back.append(entry)
        else:
            feeder_at = (feeder, depth)
    for entry in put_back:
        heappush(heap, entry)
    return feeder_at


def _branch(root: str, depth: int, children: Mapping[str, list[str]]) -> Iterator[tuple[str, int]]:
    """Yield (peer, depth) of a branch, from its root down."""
    waiting = deque([(root, depth)])
    while waiting:
        peer, at = waiting.popleft()
        yield peer, at
        waiting.extend((child, at + 1) for child in children.get(peer, ()))
