"""Divide a pool among parties: streams that others open here, bytes whose rest has not come, circuits. Pure.

1. Strangers together occupy at most `strangers` of a pool of `most`; the rest is for parties with accepted work.
2. A pool refuses nobody. Where it overflows, the party that occupies most gives way, by its connection that occupies
   most: a stranger, unless none occupies any. So a party that occupies little loses nothing to one that takes much. One
   that occupies more than three quarters gives way before all others, also with accepted work.
3. One party occupies at most `per_party`. Beyond it, its own connection that occupies most gives way.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from echo2.p2p.limits.origin import Origin

STREAMS_PER_PARTY: Final = 512
"""Streams that one party may have opened here: a subnet may have 32 connections, and a node needs about eight."""
STREAMS_PER_PLACE: Final = 16
"""All streams that others may have opened here, for each connection that this host admits."""
STRANGERS_UNFINISHED: Final = 48_000_000
STRANGERS_UNFINISHED_HTTPS: Final = 16_000_000
"""Bytes of unfinished requests of strangers, over libp2p and HTTPS: 64 MB in all."""
KNOWN_FACTOR: Final = 4
"""Bytes of unfinished requests of all parties, as a multiple of those of strangers."""
H = TypeVar("H")


class Shares(Generic[H]):
    """A pool, and what each connection occupies of it."""

    def __init__(self, most: int, strangers: int, per_party: int | None = None) -> None:
        """`per_party`: None for no limit but that of the pool."""
        self._most, self.strangers = most, strangers
        self._per_party = most if per_party is None else per_party
        self._known = set[str]()
        self._party: dict[H, str] = {}
        self._amounts: defaultdict[str, dict[H, int]] = defaultdict(dict)
        self._of_party = Counter[str]()
        self.total = 0

    def occupy(self, holder: H, origin: Origin, amount: int) -> Iterator[H]:
        """Note that a connection from `origin` occupies `amount` now; at 0 it is forgotten. Yield each connection that
        has to give way (rules 2 and 3), and go on once it occupies less."""
        before, party = self.leave(holder), origin.party
        if amount:
            (self._known.add if origin.is_known else self._known.discard)(party)
            self._party[holder] = party
            self._amounts[party][holder] = amount
            self._of_party[party] += amount
            self.total += amount
        while amount > before and (crowded := self._overflow(party)) is not None:
            yield max(self._amounts[crowded], key=self._amounts[crowded].__getitem__)

    def leave(self, holder: H) -> int:
        """Forget what a connection occupies; return it."""
        party = self._party.pop(holder, None)
        if party is None:
            return 0
        amount = self._amounts[party].pop(holder)
        self._of_party[party] -= amount
        self.total -= amount
        if not self._amounts[party]:
            del self._amounts[party], self._of_party[party]
            self._known.discard(party)
        return amount

    def of_party(self, holder: H) -> int:
        """Return what the party of a connection occupies."""
        return self._of_party[self._party[holder]]

    def _overflow(self, party: str) -> str | None:
        """Return the party that gives way now that `party` occupies more; None: none has to."""
        if self._of_party[party] > self._per_party:
            return party
        if self.total <= self.strangers:
            return None
        widest = max(self._of_party, key=self._of_party.__getitem__)
        if self.total > self._most and self._of_party[widest] > self._most - self._most // 4:
            return widest
        strangers = {one: amount for one, amount in self._of_party.items() if one not in self._known}
        if self.total <= self._most and sum(strangers.values()) <= self.strangers:
            return None
        parties = strangers or self._of_party
        return max(parties, key=parties.__getitem__)
