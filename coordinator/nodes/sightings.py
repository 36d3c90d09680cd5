"""This process's memory of nodes: when each was seen, by which route, with which version. Pure; `now` in ms.

Rules
1. Keys are free, so the memory is bounded: `MOST_WORKED` nodes with accepted work, and `MOST_OTHERS` others. Beyond
   that the node seen longest ago is dropped. Nodes without accepted work never replace nodes with it.
2. Only nodes that said hello to this process, or that the run knew before, are remembered.
3. A node that was dropped loses little: it counts as newly arrived, and its version is written once more.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from echo2.p2p.identity import peer_id
from echo2.p2p.multiaddr import Route

MOST_WORKED: Final = 8192
MOST_OTHERS: Final = 2048
HTTPS_CONNECTED_MS: Final = 120_000
"""Milliseconds for which a node counts as connected after a request over HTTPS."""


@dataclass(slots=True)
class Sighting:
    """The memory of one node.

    `seen`: its last contact. `since`: when it arrived; None: it has not said hello to this process. `version`: the last
    that it named. `route`: route of its last request. `instance`, `until`, `rival`: the daemon that works with its key,
    until when that counts as live, and when another one was refused last (coordinator/nodes/key_fence.py)."""

    seen: int
    since: int | None = None
    version: int | None = None
    route: Route | None = None
    instance: bytes | None = None
    until: int | None = None
    rival: int | None = None


class Sightings:
    """The remembered nodes, by public key."""

    def __init__(self, most_worked: int = MOST_WORKED, most_others: int = MOST_OTHERS) -> None:
        self._most_worked = most_worked
        self._most_others = most_others
        self._worked: OrderedDict[bytes, Sighting] = OrderedDict()
        self._others: OrderedDict[bytes, Sighting] = OrderedDict()
        self._unsaved: dict[bytes, None] = {}
        self._https: OrderedDict[bytes, tuple[str, int]] = OrderedDict()
        """Nodes whose last request came over HTTPS: peer id, and when; the oldest request first."""

    def __len__(self) -> int:
        return len(self._worked) + len(self._others)

    def find(self, node: bytes) -> Sighting | None:
        return self._worked.get(node) or self._others.get(node)

    def meet(self, node: bytes, now: int, *, worked: bool) -> Sighting:
        """Make a node the newest of those remembered, and return its sighting; the caller updates it. `worked`: the
        node has accepted work."""
        kept, other = (self._worked, self._others) if worked else (self._others, self._worked)
        sighting = kept.pop(node, None) or other.pop(node, None) or Sighting(now)
        kept[node] = sighting
        if len(kept) > (self._most_worked if worked else self._most_others):
            gone, _ = kept.popitem(last=False)
            self._unsaved.pop(gone, None)
            self._https.pop(gone, None)
        return sighting

    def seen_by(self, node: bytes, route: Route, now: int) -> None:
        """Note the route of a node's request, if the node is remembered (rule 2)."""
        sighting = self.find(node)
        if sighting is None:
            return
        sighting.route = route
        before = self._https.pop(node, None)
        if route == "https":
            self._https[node] = (peer_id(node) if before is None else before[0], now)

    def over_https(self, now: int) -> set[str]:
        """Return the peer ids of nodes with a recent request over HTTPS: no open connection shows their presence."""
        while self._https and not abs(now - next(iter(self._https.values()))[1]) < HTTPS_CONNECTED_MS:
            self._https.popitem(last=False)
        return {peer for peer, _ in self._https.values()}

    def mark_unsaved(self, node: bytes) -> None:
        """Note that the time of a node's last contact is not on disk."""
        self._unsaved[node] = None

    def to_save(self) -> list[tuple[bytes, int]]:
        """Return the nodes whose last contact is not on disk, and when it was; count them as saved."""
        unsaved, self._unsaved = self._unsaved, {}
        return [(node, one.seen) for node in unsaved if (one := self.find(node)) is not None]

    def routes(self) -> dict[bytes, Route]:
        """Return the route of each node's last request."""
        return {node: one.route for node, one in self._all() if one.route is not None}

    def _all(self) -> Iterator[tuple[bytes, Sighting]]:
        yield from self._worked.items()
        yield from self._others.items()
