"""Who feeds whom in a broadcast. Pure and seeded: from what is known of the lines, to each peer's parents.

W: bytes of the payload. U: the source's uplink, u_i and d_i a peer's uplink and downlink, bytes per second. n: peers.
c: bytes of a chunk. l: latency of a hop, seconds. B: the rate at which the payload flows, bytes per second.

1. The payload flows in K stripes (chunk i is of stripe i mod K), each down a tree of its own over all peers, at B / K.
   Interior-disjoint: a peer is an inner node in one stripe only, where it has at most u_i K / B children (K where u_i
   is B); in all others it is a leaf. K = 1 is a chain where no uplink carries two.
2. B is the greatest rate at which every stripe has room for all peers, found by bisection; strong peers stand near the
   root, and a peer that cannot carry B / K once, receives less than B, or cannot be dialled, is a leaf everywhere.
3. Of the K tried the plan takes the one that its predicted time says is soonest; between equals the smaller one.
4. A plan is a hint. Nothing depends on it but speed.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heapreplace
from random import Random
from typing import NamedTuple

LATENCY = 0.05
"""Seconds one way, where it was not measured."""
UPLINK = 1_250_000.0
"""Bytes per second, where it was not measured: 10 Mbit/s."""
STRIPES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
_PRECISION = 2**-12
_ROUNDING = 1e-9


class LinkCapacity(NamedTuple):
    """A peer's line: bytes per second up and down, seconds one way to the source. `dialable`: others reach it."""

    uplink: float = UPLINK
    downlink: float = math.inf
    latency: float = LATENCY
    dialable: bool = True


class PayloadSize(NamedTuple):
    """What is to be brought: bytes, and bytes of a chunk."""

    length: int
    chunk: int


@dataclass(frozen=True)
class Plan:
    """`parents`: each peer's parent in each stripe. `rate`: B. `seconds`: the predicted time."""

    source: str
    stripes: int
    parents: Mapping[str, tuple[str, ...]]
    rate: float
    seconds: float

    def children(self, stripe: int) -> dict[str, list[str]]:
        """Feeder -> whom it feeds in this stripe, in order."""
        children: dict[str, list[str]] = {}
        for peer, parents in self.parents.items():
            children.setdefault(parents[stripe], []).append(peer)
        return children

    def edges(self) -> set[tuple[int, str, str]]:
        """(stripe, parent, child) of all stripes."""
        return {(stripe, up, peer) for peer, ups in self.parents.items() for stripe, up in enumerate(ups)}


def lower_bound(uplink: float, links: Iterable[LinkCapacity], length: float) -> float:
    """T* = max(W / U, W / min d, n W / (U + sum u)), seconds: no scheme brings a payload to all of them sooner."""
    known = list(links)
    if not known:
        return 0.0
    slowest = min(link.downlink for link in known)
    return length * max(1 / uplink, 1 / slowest, len(known) / (uplink + sum(link.uplink for link in known)))


def star(uplink: float, peers: int, length: float) -> float:
    """Seconds in which the source alone serves everybody: n W / U."""
    return peers * length / uplink


def build(source: str, uplink: float, links: Mapping[str, LinkCapacity], load: PayloadSize, seed: int) -> Plan:
    """The soonest plan. `uplink`: the source's."""
    if not links:
        return Plan(source, 1, {}, uplink, 0.0)
    tried = (count for count in STRIPES if count <= len(links))
    plans = (_of(source, uplink, links, load, seed, count) for count in tried)
    return min(plans, key=lambda plan: (round(plan.seconds, 6), plan.stripes))


def fanout(uplink: float, stripes: int, rate: float, peers: int) -> int:
    """Children that an uplink carries in one stripe: u K / B, rounded down."""
    return min(peers, int(uplink * stripes / rate + _ROUNDING))


def predicted(plan: Plan, uplink: float, links: Mapping[str, LinkCapacity], load: PayloadSize) -> float:
    """Seconds until the last peer has all: what the busiest feeder needs to send, max(W / min d, children W / (K u)),
    and the longest way of one chunk, where each step takes children x c / u + l: K c / u + l at a feeder with K."""
    longest, busiest = 0.0, 0.0
    counts = dict.fromkeys((plan.source, *plan.parents), 0)
    for stripe in range(plan.stripes):
        children = plan.children(stripe)
        for feeder, fed in children.items():
            counts[feeder] = counts.get(feeder, 0) + len(fed)
        longest = max(longest, _deepest(plan.source, uplink, links, load.chunk, children))
    for feeder, count in counts.items():
        up = uplink if feeder == plan.source else links[feeder].uplink
        if count:
            busiest = max(busiest, count * load.length / plan.stripes / up if up else math.inf)
    slowest = min((link.downlink for link in links.values()), default=math.inf)
    return max(busiest, load.length / slowest) + longest


def _deepest(
    source: str, uplink: float, links: Mapping[str, LinkCapacity], chunk: int, children: Mapping[str, list[str]]
) -> float:
    """Seconds that a chunk takes to the farthest peer of a tree."""
    farthest, waiting = 0.0, deque([(source, 0.0)])
    while waiting:
        feeder, at = waiting.popleft()
        fed = children.get(feeder, ())
        link = LinkCapacity(uplink, latency=0.0) if feeder == source else links[feeder]
        sending = len(fed) * chunk / link.uplink if fed and link.uplink else 0.0
        for peer in fed:
            # Between two peers l is the mean of their ways to the source: no pair is measured.
            own = links[peer].latency
            there = at + sending + (own if feeder == source else (link.latency + own) / 2)
            farthest = max(farthest, there)
            if peer in children:
                waiting.append((peer, there))
    return farthest


def _of(
    source: str, uplink: float, links: Mapping[str, LinkCapacity], load: PayloadSize, seed: int, stripes: int
) -> Plan:
    """The plan with so many stripes."""
    order = list(links)
    Random(seed).shuffle(order)
    order.sort(key=lambda peer: (-_carried(links[peer]), links[peer].latency))
    rate = _rate(uplink, [links[peer] for peer in order], stripes)
    homes = _assign_stripes(uplink, [links[peer] for peer in order], stripes, rate)
    parents: dict[str, list[str]] = {peer: [""] * stripes for peer in order}
    for stripe in range(stripes):
        inner = [(peer, room) for peer, (home, room) in zip(order, homes.rooms, strict=True) if room and home == stripe]
        inside = {peer for peer, _ in inner}
        open_ = deque([(source, homes.source[stripe])])
        # Leaves begin elsewhere in each stripe: else the source would feed the same few in all of them.
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
    seconds = predicted(plan, uplink, links, load)
    return Plan(source, stripes, plan.parents, rate, seconds)


class _StripeAssignment(NamedTuple):
    rooms: list[tuple[int, int]]
    """(stripe in which the peer may be an inner node, children that it may have there), in the order of the peers."""
    source: list[int]
    """Children of the source in each stripe."""
    enough: bool


def _rate(uplink: float, links: list[LinkCapacity], stripes: int) -> float:
    """B of rule 2. At U / n the source alone feeds everybody, so that much always works."""
    low = uplink / len(links)
    high = max(low, min(uplink, (uplink + sum(map(_carried, links))) / len(links)))
    if _assign_stripes(uplink, links, stripes, high).enough:
        return high
    while high / low > 1 + _PRECISION:
        middle = math.sqrt(low * high)
        if _assign_stripes(uplink, links, stripes, middle).enough:
            low = middle
        else:
            high = middle
    return low


def _assign_stripes(uplink: float, links: list[LinkCapacity], stripes: int, rate: float) -> _StripeAssignment:
    """Share the feeders among the stripes, the strongest first, each to the stripe that has least room."""
    peers = len(links)
    own = min(peers * stripes, int(uplink * stripes / rate + _ROUNDING))
    source = [own // stripes + (stripe < own % stripes) for stripe in range(stripes)]
    # A line that receives less than B cannot pass on B / K in every stripe in time; a tenth is measurement.
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


def _carried(link: LinkCapacity) -> float:
    return link.uplink if link.dialable else 0.0
