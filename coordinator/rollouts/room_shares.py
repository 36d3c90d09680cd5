"""Shares of the room: new keys, slow nodes, and the others by what they deliver. No I/O; times in ms.

The room is the number of groups that may be on their way to the learner; (S + 1) batches of it are the *whole*.

Rules
1. New keys have a tenth of the whole, one group at least, while known ones ask for the rest. The part that known ones
   leave they may use too, but never the last tenth. While new ones wait, known ones leave them their tenth.
2. Where no known key has asked for `HERE`, as in a fresh run, new keys have all of it.
3. One connection of new keys holds one lease; two where more than half of the whole is free to it, and an eighth of
   what is free, if that is more (a dynamic threshold, as Choudhury and Hahne share a switch's buffer, 1998). A group
   that waits for its verdict counts as a lease. So a crowd of keys on one connection holds a ninth of an empty room,
   and one lease of a room in demand.
4. Where more new ones wait than there is room for, it goes round by subnet, connection and key (rounds.py).
5. Slow nodes (lifetime.py) have a tenth of the whole, or a quarter of what is free, while others ask.
6. A known node has at most `UNDECIDED` groups waiting for their verdict, or twice what it hands in within the p90 of
   the time that a verdict takes.
7. While known nodes are refused for want of room, each holds at most its share of the whole by measured rate, one at
   least, and what is free goes round among them as by rule 4: three groups make a key known, so that one who has many
   such keys would else take all of the room with them.
8. In sequential mode (S = 0) a batch is all the room there is: what new keys hold, up to their tenth, is not taken from
   the others' room, and the last tenth is nobody's.
"""

import math
from typing import Final, Literal, NamedTuple

from coordinator.rollouts.node_rates import NodeRates
from coordinator.rollouts.round_robin import RoundRobin
from p2p.limits.origin import Origin

HERE: Final = 300_000
UNDECIDED: Final = 3
PARTS: Final = 10
THRESHOLD: Final = 8
SLOW_THRESHOLD: Final = 4

WAITS: Final = ("no-room", "new-share")
"""Codes of refusals for want of room."""

Share = Literal["new", "known", "slow"]


class Asker(NamedTuple):
    """Of one ask. `open_leases`: the node's leases and undecided groups; those of its connection, if its key is new.
    `undecided`: the node's undecided groups. `rate`: groups a millisecond."""

    node: bytes
    share: Share
    origin: Origin
    open_leases: int
    undecided: int
    rate: float


class Room(NamedTuple):
    """In groups. `whole`: (S + 1) batches. `left`: what the version of the ask has. `new`, `slow`: what these hold.
    `verdict`: p90 of the milliseconds from a group received to its verdict. `sequential`: S = 0."""

    whole: int
    left: int
    new: int
    slow: int
    verdict: int
    sequential: bool = False

    @property
    def tenth(self) -> int:
        """Return the part that new keys, or slow nodes, have for themselves."""
        return max(1, self.whole // PARTS)


class Denial(NamedTuple):
    """A refusal: its code and the numbers of its sentence (protocol/refusals.py)."""

    code: str
    facts: dict[str, float]


class RoomShares:
    """Memory between two asks, none of it on disk."""

    def __init__(self) -> None:
        self._here = 0
        """Until then known keys count as present, milliseconds."""
        self._rates = NodeRates()
        self._new_wait, self._known_wait = RoundRobin(), RoundRobin()
        """Keys that were refused for want of room, and will ask again."""

    def refused(self, asker: Asker, room: Room, now: int) -> Denial | None:
        """Return why an ask gets nothing now; None: it gets a lease."""
        if asker.share == "new":
            return self._new(asker, room, now)
        self._rates.note(asker.node, asker.rate, now)
        self._new_wait.served(_path(asker))  # where it waited as a new one
        if asker.share == "known":
            self.here(now)
        return self._known(asker, room, now)

    def here(self, now: int) -> None:
        """A known key is there."""
        self._here = now + HERE

    def known_here(self, now: int) -> bool:
        """Return whether a known key has asked lately."""
        return 0 < self._here - now <= HERE  # the clock may have been set back

    def waits(self, asker: Asker, until: int, now: int) -> None:
        """An asker was refused for want of room (`WAITS`), and comes back by `until`."""
        (self._new_wait if asker.share == "new" else self._known_wait).wait(_path(asker), until, now)

    def served(self, asker: Asker) -> None:
        """An asker was given a lease."""
        (self._new_wait if asker.share == "new" else self._known_wait).served(_path(asker))

    def _new(self, asker: Asker, room: Room, now: int) -> Denial | None:
        free = room.left
        if free <= 0:
            return Denial("no-room", {})
        if self.known_here(now):
            free = room.tenth - room.new
            if not self._known_wait.anyone(now):
                free = max(free, room.left - (0 if room.sequential else room.tenth))
            free = min(free, room.left)
        if free <= 0:
            return Denial("new-share", {"share": room.tenth, "whole": room.whole})
        most = max(1 + (2 * free > room.whole), free // THRESHOLD)
        if asker.origin.connection and asker.open_leases >= most:
            return Denial("new-connection", {"held": asker.open_leases})
        if not self._new_wait.is_next(_path(asker), free, now):
            return Denial("new-share", {"share": room.tenth, "whole": room.whole})
        return None

    def _known(self, asker: Asker, room: Room, now: int) -> Denial | None:
        most = max(UNDECIDED, math.ceil(2 * asker.rate * room.verdict))
        if asker.undecided >= most:
            return Denial("undecided", {"held": asker.undecided, "most": most})
        left = room.left + (min(room.new, room.tenth) if room.sequential else 0)
        if self._new_wait.anyone(now) and not room.sequential:
            left -= max(0, room.tenth - room.new)
        if left <= 0:
            return Denial("no-room", {})
        if asker.share == "slow":
            most = max(room.tenth, left // SLOW_THRESHOLD)
            at_most = room.slow >= most and self.known_here(now)
            return Denial("slow-share", {"share": room.tenth, "whole": room.whole}) if at_most else None
        share = max(1, int(room.whole * self._rates.part(asker.node)))
        if self._known_wait.anyone(now) and asker.open_leases >= share:
            return Denial("rate-share", {"held": asker.open_leases, "share": share})
        return None if self._known_wait.is_next(_path(asker), left, now) else Denial("no-room", {})


def _path(asker: Asker) -> tuple[str, str, bytes]:
    return asker.origin.party, asker.origin.connection, asker.node
