"""The parties that have told, since this process started, that their newest head of the ledger is one of run.sqlite:
payments wait for them.

Rules
1. run.sqlite, and all files beside it, may be an older copy: after a rollback of the whole machine nothing here tells.
   Heads told before this start may be part of the copy: only those told to this process count, and none is stored.
2. `PAYMENT_WITNESSES` parties with accepted work must have told such a head; all, where the run has fewer. A head that
   the ledger lacks is no such head, whether or not its node can show it (coordinator/publishing/foreign_heads.py).
"""

from collections.abc import Callable, Iterable
from typing import Final

from echo2.p2p.limits.origin import Origin
from echo2.runtime.figures import number_of

PAYMENT_WITNESSES: Final = 3
"""Parties."""


class HeadWitnesses:
    """The parties that have told. `workers`: returns the nodes with accepted work, each with a party that it had; an
    empty one is not known. `works`: tells whether an origin has accepted work. `newest`: number of the newest head of
    the ledger that any node told; 0: none."""

    def __init__(self, workers: Callable[[], Iterable[tuple[bytes, str]]], works: Callable[[Origin], bool]) -> None:
        self._workers, self._works = workers, works
        self._parties: set[str] = set()
        self.newest = 0

    def on_own_head(self, origin: Origin, number: int) -> None:
        """Note that a node holds head `number` of this ledger."""
        self.newest = max(self.newest, number)
        if len(self._parties) < PAYMENT_WITNESSES and self._works(origin):
            self._parties.add(origin.party)

    def lack(self) -> str:
        """Return why payments wait (rule 2), a sentence; empty: they do not."""
        nodes = list(self._workers())
        needed = min(PAYMENT_WITNESSES, len({node for node, _ in nodes}), len({party for _, party in nodes if party}))
        if len(self._parties) >= needed:
            return ""
        return (
            f"{len(self._parties)} of {number_of(needed, 'party')} with accepted work have told the coordinator, since "
            "its start, of a newest LedgerHead that run.sqlite has; until then that may be an older copy, and nodes "
            "tell once per minute"
        )
