"""Plan the trees of a broadcast: compute each peer's parents from the capacities of the links. Pure and seeded.

W: bytes of the payload. U: the source's uplink. u_i and d_i: a peer's uplink and downlink. All in bytes per second.
n: number of peers. c: bytes of a chunk. l: latency of a hop, seconds. B: the payload's flow rate, bytes per second.

1. The payload flows in K stripes (chunk i belongs to stripe i mod K), each at B / K down its own tree over all peers.
   The trees are interior-disjoint: a peer is an inner node in one stripe only, and a leaf in all others. An inner node
   has at most u_i K / B children (K where u_i is B). K = 1 with every u_i below 2 B gives a chain, in which no uplink
   carries two copies.
2. B is the greatest rate at which every stripe has room for all peers, found by bisection. Strong peers are near the
   root. A peer is a leaf everywhere if it cannot carry B / K once, receives less than 0.9 B, or cannot be dialled.
3. Of the K tried (`STRIPES`), the plan takes the one with the least predicted time; among equals the smallest.
4. A plan is a hint: only the speed of a broadcast depends on it.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from random import Random
from typing import NamedTuple

DEFAULT_LATENCY_SECONDS = 0.05
"""Seconds one way, if not measured."""
DEFAULT_UPLINK = 1_250_000.0
"""Bytes per second, if not measured: 10 Mbit/s."""
STRIPES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
"""Values of K that are tried, each at most n."""
_PRECISION = 2**-12
_ROUNDING_SHARE = 1e-9


class LinkCapacity(NamedTuple):
    """A peer's link: bytes per second up and down, seconds one way to the source. `dialable`: whether other peers can
    dial the peer."""

    uplink: float = DEFAULT_UPLINK
    downlink: float = math.inf
    latency: float = DEFAULT_LATENCY_SECONDS
    dialable: bool = True


class PayloadSize(NamedTuple):
    """Size of a payload: bytes in total, and bytes per chunk."""

    length: int
    chunk: int


@dataclass(frozen=True)
class Plan:
    """The trees of one broadcast. `stripes`: K. `parents`: each peer's parent in each stripe. `rate`: B. `seconds`: the
    predicted time."""

    source: str
    stripes: int
    parents: Mapping[str, tuple[str, ...]]
    rate: float
    seconds: float

    def children(self, stripe: int) -> dict[str, list[str]]:
        """Return each feeder (the source, or a peer with children) with its children in this stripe, in order."""
        children: dict[str, list[str]] = {}
        for peer, parents in self.parents.items():
            children.setdefault(parents[stripe], []).append(peer)
        return children


def lower_bound(uplink: float, links: Iterable[LinkCapacity], length: float) -> float:
    """Return T* = max(W / U, W / min d, n W / (U + sum u)), seconds: no scheme delivers a payload to all peers
    sooner."""
    known = list(links)
    if not known:
        return 0.0
    slowest = min(link.downlink for link in known)
    return length * max(1 / uplink, 1 / slowest, len(known) / (uplink + sum(link.uplink for link in known)))


def build(source: str, uplink: float, links: Mapping[str, LinkCapacity], load: PayloadSize, seed: int) -> Plan:
    """Build the fastest plan. `uplink`: the source's."""
    if not links:
        return Plan(source, 1, {}, uplink, 0.0)
    tried = (count for count in STRIPES if count <= len(links))
    plans = (_build_with_stripes(source, uplink, links, load, seed, count) for count in tried)
    return min(plans, key=lambda plan: (round(plan.seconds, 6), plan.stripes))


def fanout(uplink: float, stripes: int, rate: float, peers: int) -> int:
    """Return the number of children that an uplink carries in one stripe: u K / B, rounded down."""
    return min(peers, int(uplink * stripes / rate + _ROUNDING_SHARE))


def predict_seconds(plan: Plan, uplink: float, links: Mapping[str, LinkCapacity], load: PayloadSize) -> float:
    """Return the seconds until the last peer has the payload: the time of the slowest link, plus the longest path of a
    chunk. The former is max(W / min d, children W / (K u)), with the children in all stripes. Each step of the latter
    takes children c / u + l, with the children in that stripe: K c / u + l at a feeder with K children."""
    longest, busiest = 0.0, 0.0
    counts = dict.fromkeys((plan.source, *plan.parents), 0)
    for stripe in range(plan.stripes):
        children = plan.children(stripe)
        for feeder, fed in children.items():
            counts[feeder] = counts.get(feeder, 0) + len(fed)
        longest = max(longest, _longest_path(plan.source, uplink, links, load.chunk, children))
    for feeder, count in counts.items():
        up = uplink if feeder == plan.source else links[feeder].uplink
        if count:
            busiest = max(busiest, count * load.length / plan.stripes / up if up else math.inf)
    slowest = min((link.downlink for link in links.values()), default=math.inf)
    return max(busiest, load.length / slowest) + longest


def _longest_path(
    source: str, uplink: float, links: Mapping[str, LinkCapacity], chunk: int, children: Mapping[str, list[str]]
) -> float:
    """Return the seconds that a chunk takes to the farthest peer of a tree."""
    farthest, waiting = 0.0, deque([(source, 0.0)])
    while waiting:
        feeder, at = waiting.popleft()
        fed = children.get(feeder, ())
        link = LinkCapacity(uplink, latency=0.0) if feeder == source else links[feeder]
        sending = len(fed) * chunk / link.uplink if fed and link.uplink else 0.0
        for peer in fed:
            # Between two peers l is the mean of their latencies to the source: no pair is measured.
            own = links[peer].latency
            there = at + sending + (own if feeder == source else (link.latency + own) / 2)
            farthest = max(farthest, there)
            if peer in children:
                waiting.append((peer, there))
    return farthest


def _build_with_stripes(
    source: str, uplink: float, links: Mapping[str, LinkCapacity], load: PayloadSize, seed: int, stripes: int
) -> Plan:
    """Build the plan with this number of stripes."""
    order = list(links)
    Random(seed).shuffle(order)
    order.sort(key=lambda peer: (-_carried_rate(links[peer]), links[peer].latency))
    rate = _rate(uplink, [links[peer] for peer in order], stripes)
    homes = _assign_stripes(uplink, [links[peer] for peer in order], stripes, rate)
    parents: dict[str, list[str]] = {peer: [""] * stripes for peer in order}
    for stripe in range(stripes):
        inner = [(peer, room) for peer, (home, room) in zip(order, homes.rooms, strict=True) if room and home == stripe]
        inside = {peer for peer, _ in inner}
        open_ = deque([(source, homes.source[stripe])])
        # Leaves start at another peer in each stripe: else the source would feed the same few in all of them.
        first = len(order) * stripe // stripes
        leaves = [(peer, 0) for peer in (*order[first:], *order[:first]) if peer not in inside]
        for peer, room in [*inner, *leaves]:
            feeder, left = open_[0]
            parents[peer][stripe] = feeder
            if left > 1:
                open_[0] = (feeder, left - 1)
            else:
                open_.popleft()
            if room:
                open_.append((peer, room))
    plan = Plan(source, stripes, {peer: tuple(ups) for peer, ups in parents.items()}, rate, 0.0)
    return replace(plan, seconds=predict_seconds(plan, uplink, links, load))


class _StripeAssignment(NamedTuple):
    rooms: list[tuple[int, int]]
    """(stripe in which the peer may be an inner node, children that it may have there), in the order of the peers."""
    source: list[int]
    """Children of the source in each stripe."""
    suffices: bool
    """Whether every stripe has room for all peers."""


def _rate(uplink: float, links: list[LinkCapacity], stripes: int) -> float:
    """Return B of rule 2. At U / n the source alone feeds every peer, so that rate always works."""
    low = uplink / len(links)
    high = max(low, min(uplink, (uplink + sum(map(_carried_rate, links))) / len(links)))
    if _assign_stripes(uplink, links, stripes, high).suffices:
        return high
    while high / low > 1 + _PRECISION:
        middle = math.sqrt(low * high)
        if _assign_stripes(uplink, links, stripes, middle).suffices:
            low = middle
        else:
            high = middle
    return low


def _assign_stripes(uplink: float, links: list[LinkCapacity], stripes: int, rate: float) -> _StripeAssignment:
    """Share the feeders among the stripes: the strongest first, each to the stripe with the least room."""
    peers = len(links)
    own = fanout(uplink, stripes, rate, peers * stripes)
    source = [own // stripes + (stripe < own % stripes) for stripe in range(stripes)]
    # A link that receives less than B cannot forward B / K of every stripe in time; a tenth is measurement error.
    rooms = [
        fanout(link.uplink, stripes, rate, peers) if link.dialable and link.downlink >= 0.9 * rate else 0
        for link in links
    ]
    if sum(rooms) + own < peers * stripes:
        return _StripeAssignment([], source, False)
    least = [(room, stripe) for stripe, room in enumerate(source)]
    heapify(least)
    homes = []
    for room in rooms:
        have, stripe = least[0]
        if room and have < peers:
            heapreplace(least, (have + room, stripe))
            homes.append((stripe, room))
        else:
            homes.append((stripe, 0))
    return _StripeAssignment(homes, source, least[0][0] >= peers and min(source) > 0)


def _carried_rate(link: LinkCapacity) -> float:
    return link.uplink if link.dialable else 0.0
