"""The order in which turns go to the environment: by class of key, then by party. Pure.

Rules
1. While turns of known keys wait, every `NEW_ONE_IN`-th turn is one of a new key, the others are not: free keys delay
   the others by that share at most.
2. Within a class the parties (p2p/limits/origin.py) are served in turn, and each party's turns in the order in which
   they came.
"""

from collections import OrderedDict, deque
from typing import Final, Generic, TypeVar

NEW_ONE_IN: Final = 4

T = TypeVar("T")


class StepQueue(Generic[T]):
    """The turns that wait."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, deque[T]] = OrderedDict()
        self._new: OrderedDict[str, deque[T]] = OrderedDict()
        self._since_new = 0
        """Turns of known keys served since one of a new key."""

    def __len__(self) -> int:
        return sum(map(len, self._known.values())) + sum(map(len, self._new.values()))

    def put(self, step: T, party: str, *, new: bool) -> None:
        """Add a turn. `new`: whether its key is new."""
        (self._new if new else self._known).setdefault(party, deque()).append(step)

    def take(self) -> T:
        """Remove and return the next turn. Raises `IndexError` where none waits."""
        if self._new and (not self._known or self._since_new >= NEW_ONE_IN - 1):
            self._since_new = 0
            return _next(self._new)
        self._since_new += 1
        return _next(self._known)


def _next(parties: "OrderedDict[str, deque[T]]") -> T:
    """Take the first party's first turn, and put the party behind the others."""
    if not parties:
        raise IndexError("no turn waits")
    party, steps = parties.popitem(last=False)
    step = steps.popleft()
    if steps:
        parties[party] = steps
    return step
