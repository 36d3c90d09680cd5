"""The order in which turns go to the environment of a task: by class of key, then by party. Pure.

Rules
1. While known keys play, new ones have one second in `NEW_ONE_IN` of the workers' time, measured, and at most that
   share of the workers at once: so free keys delay the others by that share, however slow their episodes are. A turn
   of a new key is therefore paid for afterwards: the next one begins after a pause in proportion, though nobody waits.
2. A new key's turn that may begin goes first, else a known key's does.
3. Known keys play while a turn of theirs waits or is being answered, and `RECENT_PLAY_SECONDS` seconds longer: they
   sample in between. Where none plays, new keys have all the time.
4. Within a class the parties (p2p/limits/origin.py) are served in rotation, and each party's turns in the order in
   which they came.
"""

from collections import OrderedDict
from typing import Final, Generic, TypeVar

NEW_ONE_IN: Final = 4
RECENT_PLAY_SECONDS: Final = 60.0

T = TypeVar("T")
_Parties = OrderedDict[str, OrderedDict[T, None]]


class StepQueue(Generic[T]):
    """The turns that wait. Times in seconds. `len()`: their number."""

    def __init__(self, workers: int = 1) -> None:
        """`workers`: turns that are answered at a time."""
        self._most_new = max(1, workers // NEW_ONE_IN)
        self._pause = max(0.0, NEW_ONE_IN / workers - 1)
        """Seconds of pause for a second of a new key's turn (rule 1)."""
        self._waiting: dict[bool, _Parties[T]] = {False: OrderedDict(), True: OrderedDict()}
        """By whether the key is new."""
        self._under_way = {False: 0, True: 0}
        self._number = {False: 0, True: 0}
        self._new_from = self._known_until = float("-inf")

    def __len__(self) -> int:
        return sum(self._number.values())

    def count_unanswered(self, *, new: bool) -> int:
        """Count the turns of new keys, or of the others, that wait or are being answered."""
        return self._number[new] + self._under_way[new]

    def put(self, step: T, party: str, now: float, *, new: bool) -> None:
        """Add a turn. `new`: whether its key is new."""
        self._waiting[new].setdefault(party, OrderedDict())[step] = None
        self._number[new] += 1
        self._note(now, new)

    def take(self, now: float) -> T | None:
        """Remove and return the turn that begins now; None: none does (`look_again`)."""
        new = bool(self._waiting[True]) and self._may_begin(now)
        parties = self._waiting[new]
        if not parties:
            return None
        party, steps = parties.popitem(last=False)
        step, _ = steps.popitem(last=False)
        if steps:
            parties[party] = steps
        self._number[new] -= 1
        self._under_way[new] += 1
        return step

    def on_end(self, seconds: float, now: float, *, new: bool) -> None:
        """Note that a turn which was taken has ended, after so many seconds of the environment."""
        self._under_way[new] -= 1
        self._note(now, new)
        if new:
            self._new_from = max(self._new_from, now) + seconds * self._pause

    def drop(self, step: T, party: str, *, new: bool) -> None:
        """Remove a turn, if it waits."""
        parties = self._waiting[new]
        if step in parties.get(party, ()):
            del parties[party][step]
            self._number[new] -= 1
            if not parties[party]:
                del parties[party]

    def look_again(self, now: float) -> float | None:
        """Return the seconds after which a turn that waits may begin by itself; None: only when another one ends."""
        times = []
        if self._under_way[True] < self._most_new:
            times.append(self._new_from)
        if not self._waiting[False] and not self._under_way[False]:
            times.append(self._known_until)
        return max(0.0, min(times) - now) if times and self._waiting[True] else None

    def known_play(self, now: float) -> bool:
        """Tell whether known keys play (rule 3)."""
        return bool(self._waiting[False]) or self._under_way[False] > 0 or now < self._known_until

    def _may_begin(self, now: float) -> bool:
        """Tell whether a new key's turn may begin (rules 1 and 3)."""
        if not self.known_play(now):
            return True
        return self._under_way[True] < self._most_new and now >= self._new_from

    def _note(self, now: float, new: bool) -> None:
        if not new:
            self._known_until = now + RECENT_PLAY_SECONDS
