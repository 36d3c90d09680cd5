"""The places for asks of keys without accepted work. Keys are free, and a sealed ask is an entry.

Rules
1. Of keys without accepted work at most `FREE_ASKS` seal an ask per epoch, `FREE_OF_PARTY` of one party, and each key
   once per `FREE_EVERY`, unless none of its asks stands: who missed the opening of its first one seals for the next
   epoch.
2. A key that found no place waits, `FREE_OF_PARTY` of a party at most. Up to `WAITING_KEYS_PLACES` places of an epoch
   are for those that wait longest; of these a key that does not come has had its chance. So who fills all places in
   each epoch delays others by `FREE_OF_PARTY / FIRST` epochs per party that he has, and keeps nobody out.
3. An epoch is opened with at most `OFFERED_FREE_KEYS` of them, `FREE_OF_PARTY` of a party, those that sealed last
   first. The asks of the others stand no longer: else a party gathered more keys with each epoch, until nearly all
   places of newcomers were its own, and an entry of each epoch named them. That order is older than the lottery's
   beacon: who chooses among his keys chooses without knowing their lots.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from echo2.protocol.sealed_asks import BadAsk

FREE_ASKS: Final = 64
WAITING_KEYS_PLACES: Final = 32
FREE_OF_PARTY: Final = 4
FREE_EVERY: Final = 3_600_000
OFFERED_FREE_KEYS: Final = 256
MOST_FREE: Final = 16_384
"""Free keys that are remembered, and at most as many that wait."""


class FreePlaces:
    """The places of the coming epoch. A key is a peer id; its party is that of its requests, or itself."""

    def __init__(self) -> None:
        self._sealed_at: dict[str, int] = {}
        """Key -> when it last sealed an ask."""
        self._epoch = 0
        self._taken = Counter[str]()
        """Party -> asks that its keys sealed for `_epoch`."""
        self._waiting: dict[str, str] = {}
        """Key -> party, the longest waiting first."""
        self._waiting_of = Counter[str]()
        self._called: set[str] = set()
        """Keys that have waited and have a place in `_epoch`, which they have not taken yet."""

    def take(self, key: str, party: str, epoch: int, now: int, *, stands: bool = False) -> None:
        """Take a place for a sealed ask of a key. `stands`: whether an ask of it does. Raises `BadAsk`."""
        if epoch != self._epoch:
            self._begin(epoch)
        last = self._sealed_at.get(key)
        if stands and last is not None and 0 <= now - last < FREE_EVERY:
            minutes = (FREE_EVERY - (now - last)) // 60_000 + 1
            raise BadAsk(
                f"a node without accepted work seals another ask once per hour: again in {minutes} minutes, and until "
                "then the one that stands counts"
            )
        if self._taken[party] >= FREE_OF_PARTY or not self._has_place(key):
            self._wait(key, party)
            raise BadAsk("enough nodes without accepted work have asks for this epoch: seal yours for the next one")
        self._called.discard(key)
        self._stop_waiting(key)
        self._taken[party] += 1
        self._sealed_at.pop(key, None)
        self._sealed_at[key] = now
        if len(self._sealed_at) > MOST_FREE:
            del self._sealed_at[next(iter(self._sealed_at))]

    def offered_keys(self, keys: Iterable[tuple[str, str]]) -> set[str]:
        """Return the keys with which an epoch is opened (rule 3). `keys`: those that are here and have an ask, with
        their parties."""
        parties, left = dict(keys), list[str]()
        known = [key for key in reversed(self._sealed_at) if key in parties]
        of_party = Counter[str]()
        for key in [*known, *sorted(parties.keys() - known)]:  # those of an earlier process last
            if len(left) < OFFERED_FREE_KEYS and of_party[parties[key]] < FREE_OF_PARTY:
                of_party[parties[key]] += 1
                left.append(key)
        return set(left)

    def _has_place(self, key: str) -> bool:
        return key in self._called or self._taken.total() + len(self._called) < FREE_ASKS

    def _begin(self, epoch: int) -> None:
        """Call those that wait longest (rule 2)."""
        self._epoch, self._taken = epoch, Counter()
        self._called = set(list(self._waiting)[:WAITING_KEYS_PLACES])
        for key in self._called:
            self._stop_waiting(key)

    def _wait(self, key: str, party: str) -> None:
        if key in self._waiting or self._waiting_of[party] >= FREE_OF_PARTY or len(self._waiting) >= MOST_FREE:
            return
        self._waiting[key] = party
        self._waiting_of[party] += 1

    def _stop_waiting(self, key: str) -> None:
        party = self._waiting.pop(key, None)
        if party is None:
            return
        self._waiting_of[party] -= 1
        if not self._waiting_of[party]:
            del self._waiting_of[party]
