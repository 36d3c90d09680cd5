"""Which nodes are here: those that asked for work, or about the market, or were seen otherwise, within a window."""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

MOST: Final = 16_384
"""Nodes that are remembered; those that asked longest ago are dropped first."""


class _Seen(NamedTuple):
    """When a node asked last, ms, its party, and when it last asked for work; None: not yet."""

    at: int
    party: str
    for_work: int | None = None


class Presence:
    """The nodes that asked, by peer id. `window`: milliseconds after which one that asks no more has left."""

    def __init__(self, window: int, seen: Callable[[str], int | None] = lambda node: None) -> None:
        """`seen`: tells when another request of a node came, ms; None: none did."""
        self._window, self._otherwise = window, seen
        self._seen: dict[str, _Seen] = {}

    def note(self, node: str, party: str, now: int, *, for_work: bool = False) -> None:
        """Note that a node asked now. `for_work`: for a lease."""
        before = self._seen.pop(node, None)
        last = None if before is None else before.for_work
        self._seen[node] = _Seen(now, party, now if for_work else last)
        if len(self._seen) > MOST:
            del self._seen[next(iter(self._seen))]

    def expect(self, nodes: Iterable[str], now: int) -> None:
        """Count nodes as here for one window, though they have not asked yet."""
        for node in nodes:
            self._seen.setdefault(node, _Seen(now, "", now))

    def here(self, now: int) -> list[str]:
        """Return the nodes that are here, in order."""
        return sorted(node for node, one in self._seen.items() if self._is_here(node, one.at, now))

    def _is_here(self, node: str, asked: int, now: int) -> bool:
        if abs(now - asked) <= self._window:
            return True
        seen = self._otherwise(node)
        return seen is not None and abs(now - seen) <= self._window

    def asked_for_work(self, node: str, since: int) -> bool:
        """Tell whether a node asked for a lease at `since` or later."""
        one = self._seen.get(node)
        return one is not None and one.for_work is not None and one.for_work >= since

    def party(self, node: str) -> str:
        """Return the party of a node that asked; empty: it is not known."""
        one = self._seen.get(node)
        return "" if one is None else one.party
