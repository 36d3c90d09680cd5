"""The next of those that wait: round robin over a tree of names, such as subnet, connection, key. Pure.

Rules
1. A name that begins to wait stands behind all that wait beside it. One that was served, and waits again, does so too:
   a thousand names below one get no more turns than that one.
2. A name waits until the time that it gave. One that does not come back by then holds nobody up, and is forgotten: with
   each one that begins to wait, up to `FORGOTTEN` of those that stand first.
3. A look costs as many steps as there are places free, and what is forgotten; not as many as wait.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Final

FORGOTTEN: Final = 2


class RoundRobin:
    """One level of the tree. `until`: the latest time of all below, milliseconds."""

    def __init__(self) -> None:
        self._below: OrderedDict[Hashable, RoundRobin] = OrderedDict()
        self.until = 0

    def wait(self, path: Sequence[Hashable], until: int, now: int) -> None:
        """Note that an asker waits, and comes back by `until`."""
        self.until = max(self.until, until)
        if path:
            self._forget(now)
            self._below.setdefault(path[0], RoundRobin()).wait(path[1:], until, now)

    def served(self, path: Sequence[Hashable]) -> None:
        """Note that an asker had its turn."""
        below = self._below.get(path[0]) if path else None
        if below is None:
            return
        below.served(path[1:])
        if below._below:
            self._below.move_to_end(path[0])
        else:
            del self._below[path[0]]

    def anyone(self, now: int) -> bool:
        """Return whether anybody waits."""
        while self._below:
            name, below = next(iter(self._below.items()))
            if below.until >= now:
                return True
            del self._below[name]
        return False

    def _forget(self, now: int) -> None:
        for _ in range(FORGOTTEN):
            if not self._below or next(iter(self._below.values())).until >= now:
                return
            self._below.popitem(last=False)

    def is_next(self, path: Sequence[Hashable], free: int, now: int) -> bool:
        """Return whether it is the turn of `path`, where `free` places are given out now."""
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
        """How many that wait stand ahead of a name, counted up to `most`."""
        ahead, gone = 0, []
        for other, below in self._below.items():
            if other == name or ahead >= most:
                break
            if below.until < now:
                gone.append(other)
            else:
                ahead += 1
        for other in gone:
            del self._below[other]
        return ahead
