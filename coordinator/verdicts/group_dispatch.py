"""Choose which scorer takes which waiting group. No scorer is called here.

Rules
1. A group is with one scorer at a time, from `take` until `end` or `give_back`. So no group gets two verdicts.
2. Groups go to scorers by version first: each scorer chooses its next version as verdicts/scoring_order.py says, from
   those with groups that no scorer has. A version that an idle scorer has loaded is left to that one. Several scorers
   may work on one version; they share its order of parties.
3. Then by length: a scorer that is not alone has two groups, or the tokens that it verifies in `AHEAD_SECONDS` by
   its own measure, and one group while another scorer is idle. Groups that it would only queue are left to
   the others, and a slower one takes less.
4. A group at which a scorer failed or died waits here, and any scorer tries it again. A scorer whose process has no
   weights looks at a group (`first_of`) to load its version, and takes none. So a scorer that does not come back costs
   no verdict.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from echo2.coordinator.verdicts.scoring_order import VISIT_GROUPS, PendingVersion, next_version
from echo2.coordinator.verdicts.waiting_groups import Undecided, Visit

AHEAD_SECONDS: Final = 2.0
LEAST_AHEAD: Final = 2
"""Groups that a scorer may have, however long: so it never waits for a verdict."""


@dataclass
class Seat:
    """State of one scorer. `version`: the version that it has loaded, or loads. `tokens_per_second`: that it verifies;
    None: not measured yet. `idle`: whether it waits for groups. `resting`: whether it cannot work. `out`: the groups
    that it has, with their tokens, by lease."""

    version: int | None = None
    tokens_per_second: float | None = None
    idle: bool = False
    resting: bool = False
    out: dict[bytes, tuple[Undecided, int]] = field(default_factory=dict)

    @property
    def has_enough(self) -> bool:
        """Whether it has as much as it should, where other scorers are at work (rule 3)."""
        ahead = AHEAD_SECONDS * (self.tokens_per_second or 0.0)
        return len(self.out) >= LEAST_AHEAD and sum(tokens for _, tokens in self.out.values()) >= ahead


class WaitingSource(Protocol):
    """The waiting groups, as `coordinator.submissions.group_service.GroupService` gives them."""

    def waiting(self) -> list[PendingVersion]: ...

    def visit(self, under: PendingVersion) -> Visit: ...

    def oldest_to_draw(self) -> int: ...


class GroupDispatch:
    """The waiting groups of a run, and who has them. `clock`: seconds since the Unix epoch. `arrived`: wakes the
    scorers that wait."""

    def __init__(self, groups: WaitingSource, clock: Callable[[], float], arrived: Callable[[], None]) -> None:
        self._groups, self.clock, self._arrived = groups, clock, arrived
        self._seats: list[Seat] = []
        self._visits: dict[tuple[int, int], _SharedVisit] = {}
        self._failed: dict[bytes, Undecided] = {}
        """Groups at which a scorer failed or died, by lease (rule 4)."""
        self._out: Counter[tuple[int, int]] = Counter()
        """Groups that scorers have, by era and version."""
        self.deaths: Counter[bytes] = Counter()
        """Deaths of scorers while one scored a group alone, by lease."""
        self._shortages: Counter[bytes] = Counter()
        """Lacks of memory while a scorer scored a group alone, by lease."""

    def seat(self) -> Seat:
        """Add a scorer."""
        self._seats.append(Seat())
        return self._seats[-1]

    @property
    def is_shared(self) -> bool:
        """Whether there are several scorers."""
        return len(self._seats) > 1

    def others_work(self, seat: Seat) -> bool:
        """Tell whether a scorer beside this one can work."""
        return any(not one.resting for one in self._seats if one is not seat)

    def next(self, seat: Seat) -> PendingVersion | None:
        """Choose the version of which a scorer takes groups next; None: there is none for it."""
        others = [one for one in self._seats if one is not seat]
        left_to_others = {one.version for one in others if one.idle} - {seat.version}
        waiting = [one for one in self._groups.waiting() if one.version not in left_to_others and self._has_groups(one)]
        elsewhere = {one.version for one in others if one.version is not None and one.out}
        return next_version(waiting, seat.version, int(self.clock() * 1000), self._groups.oldest_to_draw(), elsewhere)

    def take(self, seat: Seat, under: PendingVersion) -> Undecided | None:
        """Take the next group of a version; None: no scorer lacks one, or this one has enough."""
        others_idle = any(one.idle for one in self._seats if one is not seat)
        if self.is_shared and seat.out and (others_idle or seat.has_enough):
            return None
        group = self._visit(under).take()
        if group is not None:
            self._hand_out(seat, group)
        return group

    def take_failed(self, seat: Seat, under: PendingVersion) -> Undecided | None:
        """Take a group of a version that failed before (rule 4); None: there is none."""
        group = self.failed_of(under)
        if group is not None:
            del self._failed[group.lease.id]
            self._hand_out(seat, group)
        return group

    def failed_of(self, under: PendingVersion) -> Undecided | None:
        """Return a group of a version that failed before, without taking it; None: there is none."""
        return next((one for one in self._failed.values() if _place_of(one) == (under.era, under.version)), None)

    def first_of(self, under: PendingVersion) -> Undecided | None:
        """Return a group of a version that no scorer has, without taking it; None: there is none."""
        return self._visit(under).first() or self.failed_of(under)

    def give_back(self, seat: Seat, group: Undecided, *, failed: bool = False) -> None:
        """Take a group back that has no verdict. `failed`: whether the scorer failed at it, or died with it."""
        self._take_from(seat, group)
        if failed:
            self._failed[group.lease.id] = group
        else:
            self._visit(PendingVersion(*_place_of(group), group.at)).put_back(group)
        self._arrived()

    def end(self, seat: Seat, group: Undecided) -> None:
        """Note that a group has its verdict, or waits for its rewards."""
        self._take_from(seat, group)
        self.deaths.pop(group.lease.id, None)
        self._shortages.pop(group.lease.id, None)

    def lacks_memory(self, group: Undecided) -> int:
        """Note that a scorer lacked memory for a group alone; return how often that was."""
        self._shortages[group.lease.id] += 1
        return self._shortages[group.lease.id]

    def wake_idle(self) -> None:
        """Wake the scorers that wait: one that was to have groups has turned to others."""
        if any(seat.idle for seat in self._seats):
            self._arrived()

    def _hand_out(self, seat: Seat, group: Undecided) -> None:
        seat.out[group.lease.id] = group, tokens_of(group)
        self._out[_place_of(group)] += 1

    def _take_from(self, seat: Seat, group: Undecided) -> None:
        del seat.out[group.lease.id]
        place = _place_of(group)
        self._out[place] -= 1
        if not self._out[place]:
            del self._out[place]

    def has_next(self, under: PendingVersion) -> bool:
        """Tell whether a version has a group that no scorer has had."""
        return self._visit(under).has_next()

    def _has_groups(self, under: PendingVersion) -> bool:
        return self.failed_of(under) is not None or self.has_next(under)

    def _visit(self, under: PendingVersion) -> "_SharedVisit":
        """Return the visit to a version. A new one begins with the oldest group again, so it begins after many groups,
        and where none is left and none is out: one that is given back, or was received by a clock set back."""
        place = under.era, under.version
        visit = self._visits.get(place)
        if visit is None or visit.is_long or (visit.is_empty and not self._out[place]):
            aside = [] if visit is None else visit.aside
            for other in [key for key, one in self._visits.items() if one.is_empty and not self._out[key]]:
                del self._visits[other]
            visit = self._visits[place] = _SharedVisit(self._groups.visit(under), self._is_out, aside)
        return visit

    def _is_out(self, lease: bytes) -> bool:
        return lease in self._failed or any(lease in seat.out for seat in self._seats)


class _SharedVisit:
    """A visit to one version, from which several scorers take."""

    def __init__(self, visit: Visit, is_out: Callable[[bytes], bool], aside: list[Undecided]) -> None:
        """`is_out`: tells whether a group is with a scorer, or failed. `aside`: groups to yield first."""
        self._visit, self._is_out = visit, is_out
        self.aside = aside
        self._taken = 0
        self.is_empty = False

    @property
    def is_long(self) -> bool:
        """Whether it has yielded `VISIT_GROUPS` groups."""
        return self._taken >= VISIT_GROUPS

    def first(self) -> Undecided | None:
        """Return the next group without taking it; None: none is left."""
        return self.aside[0] if self.has_next() else None

    def take(self) -> Undecided | None:
        """Take the next group; None: none is left."""
        if not self.has_next():
            return None
        self._taken += 1
        return self.aside.pop(0)

    def has_next(self) -> bool:
        """Tell whether a group is left. It is put aside, so that it is found once."""
        while not self.aside and (group := self._visit.take()) is not None:
            if not self._is_out(group.lease.id):
                self.aside.append(group)
        self.is_empty = not self.aside
        return bool(self.aside)

    def put_back(self, group: Undecided) -> None:
        """Let a group that was taken be the next one."""
        self.aside.insert(0, group)
        self.is_empty = False


def _place_of(group: Undecided) -> tuple[int, int]:
    return group.lease.era, group.lease.version


def tokens_of(group: Undecided) -> int:
    """Return the tokens of a group: its prompt once, and its rollouts."""
    return len(group.lease.prompt) + sum(sum(rollout.turns) for rollout in group.submission.rollouts)
