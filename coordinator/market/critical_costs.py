"""The cost up to which a node would still be active: its price. Pure.

Rules
1. Take a node out. The first of the others, in order, at which the rates that count reach the need ends its chance: the
   node is active as long as it stands before that one.
2. So does the first other node of its owner at which that owner's share is used up.
3. The cost of the earlier of the two decides; None: there is neither, and any cost up to the reserve is active.

All nodes that fit are in the order, also those that count for nothing while the node is there. For n nodes the sums
take O(n), and each question O(log n), or O(log^2 n) where its owner has several nodes.
"""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate

from echo2.coordinator.market.activation import Offer


class CriticalCosts:
    """Answers for measured nodes in the order of activation (owner_cap.py has set what counts).

    `need`: milli-RE per hour asked of them. `most`: bound per owner, as in owner_cap.py."""

    def __init__(
        self, offers: Sequence[Offer], need: Fraction, owners: Mapping[bytes, bytes], most: int | None
    ) -> None:
        self._offers = offers
        self._need = math.ceil(need)
        self._most = most
        self._sums = list(accumulate(offer.counted_rate for offer in offers))
        self._owners = [owners.get(offer.node, offer.node) for offer in offers]
        self._places: dict[bytes, list[int]] = defaultdict(list)
        for place, owner in enumerate(self._owners):
            self._places[owner].append(place)
        self._owned = {
            owner: list(accumulate(offers[place].rate for place in places)) for owner, places in self._places.items()
        }

    def of(self, place: int) -> Fraction | None:
        """Return the counted cost that decides for the active node at `place` (rule 3)."""
        places = self._places[self._owners[place]]
        if self._most is None or len(places) == 1:
            place_of_cost = bisect_left(self._sums, self._need + self._offers[place].counted_rate, lo=place + 1)
        else:
            place_of_cost = min(self._reached_place(place), self._used_up(place))
        return self._offers[place_of_cost].counted_cost if place_of_cost < len(self._offers) else None

    def _reached_place(self, place: int) -> int:
        """Return the place of rule 1, for an owner of several nodes."""
        return bisect_left(range(len(self._sums)), self._need, lo=place + 1, key=lambda at: self._without(place, at))

    def _without(self, place: int, at: int) -> int:
        """Return what counts up to place `at`, which is behind `place`, without the node at `place`."""
        assert self._most is not None
        owner = self._owners[place]
        owned = self._owned[owner][bisect_right(self._places[owner], at) - 1]
        less = min(self._most, owned) - min(self._most, owned - self._offers[place].rate)
        return self._sums[at] - less

    def _used_up(self, place: int) -> int:
        """Return the place of rule 2."""
        assert self._most is not None
        owner = self._owners[place]
        own = bisect_left(self._owned[owner], self._most + self._offers[place].rate)
        return max(place + 1, self._places[owner][own]) if own < len(self._places[owner]) else len(self._offers)
