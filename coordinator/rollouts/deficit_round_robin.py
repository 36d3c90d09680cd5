"""Deficit round robin: which party's group the scorer looks at next (Shreedhar and Varghese, 1996). Pure.

Rules
1. Parties with waiting groups have their turns in the order of their names, then again from the first name.
2. At its turn a party's credit grows by the quantum, in tokens. Its oldest groups are served while the credit covers
   their cost. The rest of the credit is kept for its next turn, or forgotten where nothing of the party waits then.
3. The quantum is the cost of the dearest group seen since nothing waited. So every turn serves at least one group and
   at most twice the quantum: a party that comes is served after one turn of each of the others at the latest.
"""

from collections.abc import Callable
from typing import NamedTuple


class OldestGroup(NamedTuple):
    """The oldest waiting group of a party. `cost`: its tokens, prompt and rollouts. `at`: when it was received, ms."""

    party: str
    at: int
    lease: bytes
    cost: int


class DeficitRoundRobin:
    """The order of parties, and the credit of each."""

    def __init__(self) -> None:
        self._party: str | None = None
        """The party whose turn it is."""
        self._left = 0
        """Its credit, tokens."""
        self._saved: dict[str, int] = {}
        """Credits of parties that had their turn in this round, and were left with groups that wait."""
        self._before: dict[str, int] = {}
        """The same of the round before."""
        self._quantum = 0

    def next(
        self, oldest: Callable[[str], OldestGroup | None], after: Callable[[str | None], OldestGroup | None]
    ) -> OldestGroup | None:
        """Choose the next group, None where nothing waits. `oldest`: of a party that has groups waiting. `after`: of
        the party whose name follows, None: of the first one; None where there is none. The caller no longer offers a
        group that was chosen."""
        head = None if self._party is None else oldest(self._party)
        if head is None or head.cost > self._left:
            head = self._next_party(head is not None, after)
        if head is not None:
            self._left -= head.cost
        return head

    def _next_party(self, waits: bool, after: Callable[[str | None], OldestGroup | None]) -> OldestGroup | None:
        """Begin the turn of the party that follows. `waits`: whether the present one has groups left."""
        if waits and self._party is not None:
            self._saved[self._party] = self._left
        head = None if self._party is None else after(self._party)
        if head is None:
            self._saved, self._before = {}, self._saved
            head = after(None)
        if head is None:
            self._left, self._quantum, self._before = 0, 0, {}
            return None
        self._quantum = max(self._quantum, head.cost)
        self._party, self._left = head.party, self._before.pop(head.party, 0) + self._quantum
        return head
