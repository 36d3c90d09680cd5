"""The nodes that are here: those that asked for work, or about the market, or were seen otherwise, within a window.

Rules
1. Keys are free, so those without accepted work take no place of a node with some: such with an ask have
   `MOST_NEWCOMERS` places of their own, and such without one `MOST_STRANGERS`. In each kind those that asked longest
   ago are dropped first.
"""

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Final, NamedTuple

MOST_WORKERS: Final = 16_384
"""Nodes with accepted work that are remembered."""
MOST_NEWCOMERS: Final = 4_096
MOST_STRANGERS: Final = 256


class Kind(IntEnum):
    """The knowledge of a node: nothing, an ask, or accepted work."""

    STRANGER = 0
    NEWCOMER = 1
    WORKER = 2


_PLACES: Final = {Kind.STRANGER: MOST_STRANGERS, Kind.NEWCOMER: MOST_NEWCOMERS, Kind.WORKER: MOST_WORKERS}


class _Seen(NamedTuple):
    """The time of a node's last request, ms, its party, and the time of its last request for work; None: not yet."""

    at: int
    party: str
    for_work: int | None = None


class Presence:
    """The nodes that asked, by peer id. `window`: milliseconds after which one that asks no more has left."""

    def __init__(self, window: int, seen: Callable[[str], int | None] = lambda node: None) -> None:
        """`seen`: tells when another request of a node came, ms; None: none did."""
        self._window, self._otherwise = window, seen
        self._seen: dict[Kind, dict[str, _Seen]] = {kind: {} for kind in Kind}

    def note(self, node: str, party: str, now: int, kind: Kind, *, for_work: bool = False) -> None:
        """Note that a node asked now. `for_work`: for work for a lease."""
        before = self._find(node)
        last = None if before is None else before.for_work
        for seen in self._seen.values():
            seen.pop(node, None)
        self._put(node, _Seen(now, party, now if for_work else last), kind)

    def _put(self, node: str, one: _Seen, kind: Kind) -> None:
        seen = self._seen[kind]
        seen[node] = one
        if len(seen) > _PLACES[kind]:
            del seen[next(iter(seen))]

    def _find(self, node: str) -> _Seen | None:
        return next((seen[node] for seen in self._seen.values() if node in seen), None)

    def expect(self, nodes: Iterable[tuple[str, Kind]], now: int) -> None:
        """Count nodes as here for one window, though they have not asked yet."""
        for node, kind in nodes:
            if self._find(node) is None:
                self._put(node, _Seen(now, "", now), kind)

    def here(self, now: int) -> list[str]:
        """Return the nodes that are here, in order."""
        seen = (pair for of_kind in self._seen.values() for pair in of_kind.items())
        return sorted(node for node, one in seen if self._is_here(node, one.at, now))

    def _is_here(self, node: str, asked: int, now: int) -> bool:
        if abs(now - asked) <= self._window:
            return True
        seen = self._otherwise(node)
        return seen is not None and abs(now - seen) <= self._window

    def asked_for_work(self, node: str, since: int) -> bool:
        """Tell whether a node asked for a lease at `since` or later."""
        one = self._find(node)
        return one is not None and one.for_work is not None and one.for_work >= since

    def party(self, node: str) -> str:
        """Return the party of a node that asked; empty: it is not known."""
        one = self._find(node)
        return "" if one is None else one.party
