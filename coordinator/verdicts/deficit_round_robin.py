"""Deficit round robin: choose the party whose group the scorer scores next (Shreedhar and Varghese, 1996). Pure.

Rules
1. Parties with waiting groups are served in rounds, in the order of their names.
2. Per round a party's credit grows by the quantum, in tokens. Its oldest groups are served while the credit covers
   their cost. The rest of the credit is kept for the next round, and forgotten if no group of the party waits then.
3. The quantum is the highest cost of a group with which the service of a party has begun since the queue was last
   empty. So per round a party is served at least one group, and groups that together cost less than twice the quantum.
   A new party waits for one such service per other party.
"""

from collections.abc import Callable
from typing import NamedTuple


class OldestGroup(NamedTuple):
    """The oldest waiting group of a party. `cost`: tokens of prompt and rollouts. `at`: when it was received, ms."""

    party: str
    at: int
    lease: bytes
    cost: int


class DeficitRoundRobin:
    """The party that is served now, and the credit of each party."""

    def __init__(self) -> None:
        self._party: str | None = None
        """The party that is being served."""
        self._left = 0
        """Its credit, tokens."""
        self._saved: dict[str, int] = {}
        """Credits of parties that were served in this round and have more groups waiting."""
        self._before: dict[str, int] = {}
        """The same for the previous round."""
        self._quantum = 0

    def next(
        self, oldest: Callable[[str], OldestGroup | None], after: Callable[[str | None], OldestGroup | None]
    ) -> OldestGroup | None:
        """Choose the next group; None if no group waits.

        `oldest`: returns the oldest waiting group of a party. `after`: returns that of the party whose name follows the
        given name, or of the first party for None. Both return None if there is no group, and never return a group that
        was already chosen."""
        head = None if self._party is None else oldest(self._party)
        if head is None or head.cost > self._left:
            head = self._next_party(head is not None, after)
        if head is not None:
            self._left -= head.cost
        return head

    def _next_party(self, waits: bool, after: Callable[[str | None], OldestGroup | None]) -> OldestGroup | None:
        """Move on to the next party. `waits`: whether the present party has groups left."""
        if waits and self._party is not None:
            self._saved[self._party] = self._left
        head = None if self._party is None else after(self._party)
        if head is None:
            self._saved, self._before = {}, self._saved
            head = after(None)
        if head is None:
            self._left = 0
            self._quantum = 0
            self._before = {}
            return None
        self._quantum = max(self._quantum, head.cost)
        self._party = head.party
        self._left = self._before.pop(head.party, 0) + self._quantum
        return head
