"""Divide the room among new keys, slow nodes and known nodes. No I/O; times in milliseconds.

The *room* is the number of groups that may be on their way to the learner. The *whole* room is the window
(lease_window.py), (S + 1) batches at most.

Rules
1. New keys get their *share* of the whole, `leases.newcomers`, at least one group, while known keys request the rest.
   They may also use room that known keys leave free, except for the last share. While new keys wait, known keys leave
   them their share.
   Groups of new keys beyond their share take room from known keys only with the chance that they come. So room that was
   lent to keys that return nothing is back before their leases expire.
2. New keys get the whole room while no known key has made a request for `KNOWN_KEY_PRESENCE_MS`, as in a fresh run.
3. One connection of new keys may have one lease, two if more than half of the whole is free to it, or an eighth of the
   free room if that is more. This is a dynamic threshold, as Choudhury and Hahne share a switch's buffer (1998). A
   group that waits for its verdict counts as a lease. All new keys on one connection together therefore get a ninth of
   an empty room, and one lease of a room in demand.
4. If more new keys wait than there is room, they are served round robin by subnet, connection and key
   (coordinator/leases/round_robin.py).
5. While known keys make requests, slow nodes (coordinator/leases/lease_lifetime.py), and those of known keys whose last
   lease was lost (delivery_record.py, rule 4), get a tenth of the whole, or a quarter of the free room if that is more.
   They are served round robin as by rule 4. So keys that were honest once, and return nothing now, take the room once.
6. A node with a known key, slow or not, may have `LEAST_UNDECIDED_GROUPS` groups waiting for verdicts, or as many as it
   may have leases open (open_lease_limit.py): groups that were under way together arrive together.
7. While known nodes are refused for lack of room, each may have its share of the whole without the buffered groups, by
   measured rate, or an equal one if that is more, at least one lease. The free room is served round robin as by rule 4.
   Three accepted groups make a key known, so the owner of many such keys could otherwise take the whole room. A share
   by rate alone starves slow nodes: their groups are on their way for longer, so they need more leases than that share,
   and a node that gets fewer has a lower rate from then on, and so a smaller share.
8. In sequential mode (S = 0) the room is one batch. The groups of new keys, up to their share, do not reduce the room
   of the others, and no last share is reserved.
"""

from typing import Final, Literal, NamedTuple

from echo2.coordinator.leases.node_rates import NodeRates
from echo2.coordinator.leases.round_robin import RoundRobin
from echo2.p2p.limits.origin import Origin

KNOWN_KEY_PRESENCE_MS: Final = 300_000
LEAST_UNDECIDED_GROUPS: Final = 3
SLOW_SHARE: Final = 0.1
FREE_ROOM_DIVISOR: Final = 8
SLOW_THRESHOLD: Final = 4

WAITING_CODES: Final = ("no-room", "new-share", "slow-share")
"""Codes of refusals after which a node waits for room."""

Share = Literal["new", "known", "slow"]


class Requester(NamedTuple):
    """The node that requests a lease.

    `open_leases`: its leases and undecided groups; those of its connection if its key is new. `undecided`: its
    undecided groups. `rate`: groups per millisecond. `most_open`: most leases that it may have open."""

    node: bytes
    share: Share
    origin: Origin
    open_leases: int
    undecided: int
    rate: float
    most_open: int


class Room(NamedTuple):
    """The room at a request, in groups.

    `whole`: groups of the window. `left`: free room for the version of the request. `new`, `slow`: groups of new keys
    and of slow nodes. `sequential`: S = 0. `chance`: that a group of a new key comes and is learned
    from (newcomer_odds.py). `buffered`: groups that wait for the learner."""

    whole: int
    left: int
    new: int
    slow: int
    sequential: bool = False
    chance: float = 1.0
    buffered: int = 0

    def lent_in_vain(self, reserved: int) -> int:
        """Return how many of the groups of new keys beyond their share, `reserved`, will not come."""
        return int((1 - self.chance) * max(0, self.new - reserved))

    def part(self, share: float) -> int:
        """Return a share of the whole, at least one group."""
        return max(1, int(self.whole * share))


class Denial(NamedTuple):
    """A refusal: its code, and the numbers of its sentence (protocol/refusals.py)."""

    code: str
    facts: dict[str, float]


class RoomShares:
    """The division of the room among the nodes that make requests. Its state is in memory alone."""

    def __init__(self, newcomers: float = 0.1) -> None:
        """`newcomers`: the share of new keys (rule 1)."""
        self.newcomers = newcomers
        self._known_until = 0
        """End of the presence of known keys, milliseconds."""
        self._rates = NodeRates()
        self._wait: dict[Share, RoundRobin] = {"new": RoundRobin(), "slow": RoundRobin(), "known": RoundRobin()}
        """Keys that were refused for lack of room, and will retry."""

    def denial_for(self, requester: Requester, room: Room, now: int) -> Denial | None:
        """Return why a request gets no lease now; None: it gets one."""
        if requester.share == "new":
            return self._new(requester, room, now)
        self._rates.note(requester.node, requester.rate, now)
        for other in self._wait.keys() - {requester.share}:  # it may have waited there before
            self._wait[other].on_service(_path(requester))
        if requester.share == "known":
            self.note_known(now)
        return self._known_denial(requester, room, now)

    def note_known(self, now: int) -> None:
        """Note that a known key is present."""
        self._known_until = now + KNOWN_KEY_PRESENCE_MS

    def known_present(self, now: int) -> bool:
        """Tell whether a known key has made a request within `KNOWN_KEY_PRESENCE_MS`."""
        return 0 < self._known_until - now <= KNOWN_KEY_PRESENCE_MS  # the clock may have been set back

    def waits(self, requester: Requester, until: int, now: int) -> None:
        """Note that a node was refused for lack of room (`WAITING_CODES`), and retries by `until`."""
        self._wait[requester.share].wait(_path(requester), until, now)

    def on_service(self, requester: Requester) -> None:
        """Note that a node was given a lease."""
        self._wait[requester.share].on_service(_path(requester))

    def _new(self, requester: Requester, room: Room, now: int) -> Denial | None:
        free, reserved = room.left, room.part(self.newcomers)
        if free <= 0:
            return Denial("no-room", {})
        if self.known_present(now):
            free = reserved - room.new
            if not self._wait["known"].anyone(now):
                free = max(free, room.left - (0 if room.sequential else reserved))
            free = min(free, room.left)
        if free <= 0:
            return Denial("new-share", {"share": reserved, "whole": room.whole})
        most = max(1 + (2 * free > room.whole), free // FREE_ROOM_DIVISOR)
        if requester.origin.connection and requester.open_leases >= most:
            return Denial("new-connection", {"held": requester.open_leases})
        if not self._wait["new"].is_next(_path(requester), free, now):
            return Denial("new-share", {"share": reserved, "whole": room.whole})
        return None

    def _known_denial(self, requester: Requester, room: Room, now: int) -> Denial | None:
        most = max(LEAST_UNDECIDED_GROUPS, requester.most_open)
        if requester.undecided >= most:
            return Denial("undecided", {"held": requester.undecided, "most": most})
        reserved = room.part(self.newcomers)
        left = room.left + (min(room.new, reserved) if room.sequential else room.lent_in_vain(reserved))
        if self._wait["new"].anyone(now) and not room.sequential:
            left -= max(0, reserved - room.new)
        if left <= 0:
            return Denial("no-room", {})
        if requester.share == "slow":
            share = room.part(SLOW_SHARE)
            most = max(share, left // SLOW_THRESHOLD)
            free = most - room.slow if self.known_present(now) else left
            served = free > 0 and self._wait["slow"].is_next(_path(requester), free, now)
            return None if served else Denial("slow-share", {"share": share, "whole": room.whole})
        part = max(self._rates.part(requester.node), 1 / len(self._rates))
        share = max(1, int((room.whole - room.buffered) * part))
        if self._wait["known"].anyone(now) and requester.open_leases >= share:
            return Denial("rate-share", {"held": requester.open_leases, "share": share})
        return None if self._wait["known"].is_next(_path(requester), left, now) else Denial("no-room", {})


def _path(requester: Requester) -> tuple[str, str, bytes]:
    return requester.origin.party, requester.origin.connection, requester.node
