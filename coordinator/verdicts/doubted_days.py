"""Days of keys in quarantine: which of them ended badly, and what speaks for their nodes all the same.

Rules
1. A day in quarantine that did not end well is run again (`rerun`): its groups are bet against the Calibration that
   took the place of theirs, if there is one. The re-run agrees with the node if that ends well.
2. A re-run is made once per newer Calibration, and in slices: each look at the day bets on groups of `DAY_SLICE_TOKENS`
   tokens, and the next look goes on there. All tokens of the largest day take seconds, in which no request would be
   answered. A restart, or a still newer Calibration, begins it again.
3. The group that began the day's doubt is checked a second time (coordinator/verdicts/reviews.py). Where that confirms
   the doubt, the day waits for a Calibration by this machine's own engines of the class, if one is to come (`to_come`),
   and is run again by it (rule 1): they are the second opinion that no other node can give
   (docs/adr/0052-what-a-second-group-shows.md).
4. coordinator/accounts/quarantine.py settles a day by both, and says until when.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from echo2.coordinator.accounts.accounting import Accounting
from echo2.coordinator.accounts.quarantine import Outcome, Rerun
from echo2.coordinator.database.database import Database
from echo2.coordinator.verdicts.lease_outcomes import key_of
from echo2.coordinator.verdicts.reviews import Reviews
from echo2.coordinator.verdicts.token_storage import CHALLENGE_WINDOW_MS
from echo2.coordinator.verification.evidence import MOST_PEAK, Tables
from echo2.coordinator.verification.evidence_table import EvidenceTable, RunAnew
from echo2.coordinator.verification.open_classes import OpenClasses
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Lease
from echo2.runtime.units import DAY

MOST_RERUN: Final = 1 << 19
"""Most tokens of a day that are run again, at some 80 ms per 16,384 tokens."""
DAY_SLICE_TOKENS: Final = 1 << 14
"""Tokens after which a look at a day that is run again ends, with the group at hand: no request waits long."""
_QUARANTINED: Final = (
    "SELECT q.lease, v.at, l.document FROM quarantine q JOIN verdicts v ON v.lease = q.lease"
    " JOIN leases l ON l.id = q.lease WHERE q.node = ? AND q.day = ? ORDER BY v.rowid"
)
_REFUSED_SINCE: Final = (
    "SELECT 1 FROM leases l JOIN verdicts v ON v.lease = l.id"
    " WHERE l.node = ? AND l.sent >= ? AND v.at >= ? AND v.code IN ('evidence', 'version-lie') LIMIT 1"
)


class _Peak(msgspec.Struct, frozen=True):
    """The peak of an EvidencedOutcome."""

    peak: int


ToCome = Callable[[str, int], bool]
"""(rounding, time) -> whether a Calibration of a rounding, made after a time (ms), is to come
(coordinator/calibration/recalibration.py, rule 5)."""


def none_to_come(rounding: str, since: int) -> bool:
    """Return False: no Calibration is made while the run goes on."""
    return False


@dataclass
class _Again:
    """A re-run under way. `newer`: the hash of its Calibration, of which `tables` are. `groups`: those to come, the
    next one last, by lease and time of verdict (ms)."""

    newer: bytes
    tables: Tables
    groups: list[tuple[bytes, int]]
    result: RunAnew | None = None

    def go_on(self, evidence: EvidenceTable, tokens: int) -> bool:
        """Bet on so many tokens more, with the group at hand; return whether the re-run is finished."""
        least = tokens + (self.result.tokens if self.result is not None else 0)
        while self.groups and (self.result is None or self.result.tokens < least):
            self.result = evidence.bet_anew(self.result, *self.groups.pop(), self.tables)
            if self.result is None:
                self.groups.clear()
        return not self.groups


class DoubtedDays:
    """The days in quarantine of a run's keys: the `DayJudge` of coordinator/accounts/quarantine.py. `check_wanted`:
    called when a check is asked for. `end_group`: see `DayJudge`."""

    def __init__(
        self,
        database: Database,
        accounting: Accounting,
        reviews: Reviews,
        evidence: EvidenceTable,
        classes: OpenClasses,
        check_wanted: Callable[[], None],
        to_come: ToCome,
        end_group: Callable[[bytes, bool, int], None],
    ) -> None:
        self._database, self._ledger, self._quarantine = database, accounting.ledger, accounting.quarantine
        self.end_group = end_group
        self._reviews, self._evidence, self._classes = reviews, evidence, classes
        self._check_wanted = check_wanted
        self._to_come = to_come
        self._under_way: dict[tuple[bytes, int], _Again] = {}
        """Re-runs that are not finished, by key and day (rule 2)."""
        self._run_again: dict[tuple[bytes, int], bytes] = {}
        """By key and day, the newest Calibration when the groups were run again last; empty: none."""

    def in_doubt(self, node: bytes) -> bool:
        """Tell whether the evidence against a key, as it stands after its last group, is in doubt."""
        return self._evidence.of(node).conclusion() != "honest"

    def ended_badly(self, node: bytes, day: int) -> bool:
        """Tell whether a key's day in quarantine did not end well (coordinator/verification/evidence.py, rule 9). The
        evidence is that after the key's last group. Once a check of the day was asked for, it stays so: the evidence
        moves on while the check waits."""
        first = self._quarantine.first(node, day)
        if first is not None and self._reviews.find(first, "audit") is not None:
            return True
        leases = self._quarantine.leases(node, day)
        return self.in_doubt(node) or max(map(self._peak, leases), default=0) >= MOST_PEAK

    def check_is_waited_for(self, node: bytes, day: int, now: int) -> bool:
        """Tell whether nothing new is known of a day whose check was asked for: that is not answered, or a Calibration
        is to come; the day may still be in time, and no Calibration came by which it was not run again."""
        first = self._quarantine.first(node, day) if _in_time(day, now) else None
        if first is None or self._run_again.get((node, day), b"") != self._newer_calibration(first):
            return False
        reviews = self._reviews.of(first)
        if not any(one.by == "audit" for one in reviews):
            return False
        answers = [one for one in reviews if one.state == "answered"]
        return not answers or (answers[-1].code != "ok" and self._is_to_be_calibrated(first, day))

    def _is_to_be_calibrated(self, lease: bytes, day: int) -> bool:
        """Tell whether a Calibration of a lease's rounding, made after a day, is to come (rule 3)."""
        document: bytes = self._database.value("SELECT document FROM leases WHERE id = ?", (lease,))
        rounding = self._classes.rounding(decode(document, Lease).calibration or b"")
        return rounding is not None and self._to_come(rounding, (day + 1) * DAY)

    def _newer_calibration(self, lease: bytes) -> bytes:
        """Return the hash of the Calibration that took the place of that of a lease; empty: there is none."""
        document: bytes = self._database.value("SELECT document FROM leases WHERE id = ?", (lease,))
        return self._classes.newer(decode(document, Lease).calibration or b"") or b""

    def check_day(self, node: bytes, day: int, now: int) -> Outcome:
        """Tell what a second check of the group says that began a day's doubt, and ask for it
        (coordinator/accounts/quarantine.py, rule 4)."""
        first, in_time = self._quarantine.leases(node, day)[0], _in_time(day, now)
        answered = [one for one in self._reviews.of(first) if one.state == "answered"]
        if answered:
            if answered[-1].code == "ok":
                return "cleared"
            return "waits" if in_time and self._is_to_be_calibrated(first, day) else "confirmed"
        if in_time and self._reviews.find(first, "audit") is None and self._reviews.ask(first, "audit", now):
            self._check_wanted()
        return "waits" if in_time and self._reviews.of(first) else "none"

    def _peak(self, lease: bytes) -> int:
        entry = self._ledger.find(key_of(lease))
        return 0 if entry is None else msgspec.msgpack.decode(entry.facts, type=_Peak).peak

    def rerun(self, node: bytes, day: int) -> Rerun:
        """Run the groups of a key in quarantine on a day again (rules 1 and 2), or the next slice of them."""
        first = self._quarantine.first(node, day)
        newer = b"" if first is None else self._newer_calibration(first)
        self._keep_days_from(day - 2)
        again = self._under_way.pop((node, day), None)
        if again is None or again.newer != newer:
            again = self._begin(node, day)
        if again is None or again.go_on(self._evidence, DAY_SLICE_TOKENS):
            self._run_again[node, day] = newer
            agrees = again is not None and again.result is not None and again.result.ended_well
            return None if again is None else newer if agrees else b""
        self._under_way[node, day] = again
        return "goes on"

    def _keep_days_from(self, day: int) -> None:
        """Forget what is known of re-runs of earlier days: they are settled."""
        self._run_again = {key: by for key, by in self._run_again.items() if key[1] >= day}
        self._under_way = {key: again for key, again in self._under_way.items() if key[1] >= day}

    def _begin(self, node: bytes, day: int) -> _Again | None:
        """Return a re-run of a day before its first group; None: the day is not run again, as no Calibration is newer,
        or its tokens are too many, or the evidence has refused a group of the key since that day began: those in
        quarantine alone do not tell how the day went."""
        if self._database.one(_REFUSED_SINCE, (node, (day - 1) * DAY, day * DAY)) is not None:
            return None
        groups = [
            (lease, at, decode(document, Lease).calibration)
            for lease, at, document in self._database.all(_QUARANTINED, (node, day))
        ]
        (newer, *others) = {self._classes.newer(calibration or b"") for _, _, calibration in groups} or {None}
        tables = None if newer is None else self._classes.tables(newer)
        if newer is None or tables is None or others or self._evidence.tokens_kept(node, day) > MOST_RERUN:
            return None
        return _Again(newer, tables, [(lease, at) for lease, at, _ in reversed(groups)])


def _in_time(day: int, now: int) -> bool:
    """Tell whether the check of a day that has ended may still decide it, at `now`, ms."""
    return now < (day + 1) * DAY + CHALLENGE_WINDOW_MS
