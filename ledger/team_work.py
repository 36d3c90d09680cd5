"""The work of teams as the ledger's entries state it: who is in which team, and how much each earned. Pure.

Rules
1. `team.set` says that a node is in a team from this entry on; with no team, that it has left. A team is the commitment
   to its name and a salt, SHA-256(salt + name): the name itself is no part of the ledger, and can be blotted out.
2. The work of an accepted group counts for the team that its node is in at that entry. It
   stays there: a node that joins brings nothing with it, and one that leaves takes nothing away. Work that a reversal
   takes back stays too, as in the ranking of nodes.
3. The score of a team is its work, halved every 7 days: in units of 2^-16 milli-RE, after k whole hours multiplied by
   row k mod 168 of the table of ledger/audited_work.py over 2^32 and rounded down, and halved k // 168
   times. It decays when work is added and when it is read.
4. Teams are ranked by work, then by score as it stands, then by commitment.
"""

from collections import Counter
from typing import Final, NamedTuple, Self

import msgspec

from echo2.ledger import half_life
from echo2.ledger.audited_work import HALF_LIFE, HOUR
from echo2.ledger.ledger_entries import Entry

TEAM_SET: Final = "team.set"
RULES: Final = 1
SCORE_UNIT: Final = 1 << 16
"""Units of a score in a milli-RE (rule 3)."""


class TeamSet(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `team.set`. `node`: peer id. `team`: the commitment, 32 bytes; empty: none."""

    rules: int = RULES
    node: str
    team: bytes


class DoneWork(msgspec.Struct, frozen=True):
    """The facts of an entry of work that a team depends on. `weight`: milli-RE."""

    node: str
    weight: int


class TeamWork(NamedTuple):
    """The work of a team. `weight`: milli-RE. `score`: score in `SCORE_UNIT`; `aged`: time until which it has decayed,
    ms."""

    groups: int = 0
    weight: int = 0
    score: int = 0
    aged: int = 0

    def with_work(self, groups: int, weight: int, at: int) -> Self:
        """Return it with more work, of an entry at `at`, ms."""
        score, aged = _decay_score(self.score, self.aged, at)
        return self._replace(
            groups=self.groups + groups, weight=self.weight + weight, score=score + weight * SCORE_UNIT, aged=aged
        )

    def score_at(self, now: int) -> int:
        """Return the score as it stands at `now` (ms), in milli-RE."""
        return _decay_score(self.score, self.aged, now)[0] // SCORE_UNIT


def _decay_score(score: int, since: int, now: int) -> tuple[int, int]:
    """Return a score at `now`, and until when it has decayed then (rule 3)."""
    if not score:
        return 0, now
    hours = max(0, now - since) // HOUR
    return half_life.decay(score, hours, HALF_LIFE), since + hours * HOUR


def work_of(entry: Entry) -> DoneWork | None:
    return msgspec.msgpack.decode(entry.facts, type=DoneWork) if entry.kind == "lease.accepted" else None


class RankedTeam(NamedTuple):
    """A team in the ranking. `members`: nodes that are in it now. `score`: milli-RE."""

    team: bytes
    members: int
    groups: int
    weight: int
    score: int


class TeamReplay:
    """The teams of a ledger, entry by entry."""

    def __init__(self) -> None:
        self._team_of: dict[str, bytes] = {}
        self._work: dict[bytes, TeamWork] = {}
        self._at = 0

    def take(self, entry: Entry) -> None:
        """Take the next entry."""
        self._at = entry.at
        if entry.kind == TEAM_SET:
            fact = msgspec.msgpack.decode(entry.facts, type=TeamSet)
            self._team_of[fact.node] = fact.team
        elif (work := work_of(entry)) is not None and (team := self._team_of.get(work.node)):
            before = self._work.get(team, TeamWork())
            self._work[team] = before.with_work(1, work.weight, entry.at)

    @property
    def at(self) -> int:
        """The time of the last entry, ms."""
        return self._at

    def ranking(self) -> list[RankedTeam]:
        """Return the teams with work, as of the last entry (rule 4)."""
        members = Counter(self._team_of.values())
        rows = [
            RankedTeam(team, members[team], one.groups, one.weight, one.score_at(self._at))
            for team, one in self._work.items()
        ]
        return rank_teams(rows)


def rank_teams(rows: list[RankedTeam]) -> list[RankedTeam]:
    """Return teams in the order of the ranking (rule 4)."""
    return sorted(rows, key=lambda row: (-row.weight, -row.score, row.team))
