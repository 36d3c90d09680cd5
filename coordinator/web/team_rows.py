"""Rows of teams from run.sqlite: at most `MOST_TEAMS`, those with the most accepted work, in the order of the
ranking."""

from typing import Final

from echo2.coordinator.database.database import Database
from echo2.coordinator.metrics.views import TeamRow
from echo2.ledger.team_work import RankedTeam, TeamWork, rank_teams

MOST_TEAMS: Final = 50


def read_teams(database: Database, now: int) -> list[TeamRow]:
    """Return the `MOST_TEAMS` teams with the most work as of `now`, ms."""
    query = (
        "SELECT t.id, t.name, t.groups, t.weight, t.score, t.aged,"
        " (SELECT count(*) FROM nodes n WHERE n.team_id = t.id) FROM teams t WHERE t.weight > 0"
        " ORDER BY t.weight DESC LIMIT ?"
    )
    names, teams = dict[bytes, str](), list[RankedTeam]()
    for team, name, groups, weight, score, aged, members in database.all(query, (MOST_TEAMS,)):
        names[team] = name
        teams.append(RankedTeam(team, members, groups, weight, TeamWork(groups, weight, score, aged).score_at(now)))
    return [
        TeamRow(id=one.team.hex(), name=names[one.team], members=one.members, groups=one.groups, weight=one.weight,
                score=one.score)
        for one in rank_teams(teams)
    ]  # fmt: skip
