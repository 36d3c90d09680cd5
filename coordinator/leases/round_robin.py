"""Hierarchical round robin: serve waiting names level by level, such as subnet, connection, key. Pure.

Rules
1. A name that starts to wait queues behind all names that wait beside it. So does a name that was served and waits
   again. A thousand names below one parent are served no more often than a sibling of that parent.
2. A name waits until the time that it gave. If it does not come back by then it delays no other name, and is dropped.
   Each name that starts to wait drops up to `NAMES_DROPPED_PER_WAIT` such names at the head of the queue.
   Beside at most `LATE_NAMES_KEPT` names below a parent it keeps its place: of keys that all come late each would else
   be refused for one that is not there either, and the place of their subnet stand empty for as long as they ask.
3. A query costs as many steps as there are free places, plus the names that it drops; not as many as there are waiting
   names.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Final

NAMES_DROPPED_PER_WAIT: Final = 2
LATE_NAMES_KEPT: Final = 16


class RoundRobin:
    """One level of the tree of names. `until`: the latest time of all names below, milliseconds."""

    def __init__(self, late_kept: int = 0) -> None:
        """`late_kept`: names beside which a late one keeps its place (rule 2)."""
        self._late_kept = late_kept
        self._below: OrderedDict[Hashable, RoundRobin] = OrderedDict()
        self.until = 0

    def __len__(self) -> int:
        """Count the names in memory at the lowest level."""
        return sum(len(below) or 1 for below in self._below.values())

    def wait(self, path: Sequence[Hashable], until: int, now: int) -> None:
        """Queue a name that waits and comes back by `until`. `path`: its names, from the top level on."""
        self.until = max(self.until, until)
        if path:
            self._forget(now)
            self._below.setdefault(path[0], RoundRobin(LATE_NAMES_KEPT)).wait(path[1:], until, now)

    def on_service(self, path: Sequence[Hashable]) -> None:
        """Note that a name was served: it waits no longer."""
        below = self._below.get(path[0]) if path else None
        if below is None:
            return
        below.on_service(path[1:])
        if below._below:
            self._below.move_to_end(path[0])
        else:
            del self._below[path[0]]

    def anyone(self, now: int) -> bool:
        """Tell whether any name waits."""
        return self._ahead(None, 1, now) > 0

    def _forget(self, now: int) -> None:
        for _ in range(NAMES_DROPPED_PER_WAIT):
            if len(self._below) <= self._late_kept or next(iter(self._below.values())).until >= now:
                return
            self._below.popitem(last=False)

    def is_next(self, path: Sequence[Hashable], free: int, now: int) -> bool:
        """Tell whether `path` is among the next `free` names to be served."""
        level: RoundRobin | None = self
        for name in path:
            if level is None:
                return True
            ahead = level._ahead(name, free, now)
            if ahead >= free:
                return False
            free = max(1, free - max(ahead, len(level._below) - 1))
            level = level._below.get(name)
        return True

    def _ahead(self, name: Hashable, most: int, now: int) -> int:
        """Count the waiting names ahead of a name, up to `most`."""
        ahead, late = 0, []
        for other, below in self._below.items():
            if other == name or ahead >= most:
                break
            if below.until < now:
                late.append(other)
            else:
                ahead += 1
        for other in late[: max(0, len(self._below) - self._late_kept)]:
            del self._below[other]
        return ahead
