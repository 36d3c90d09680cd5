"""How the run goes, as run.sqlite tells it: turnaround, supply, counts. Measured, never configured; times in ms."""

import msgspec

from coordinator.capacity import quantile, union
from coordinator.database import Database

_GROUPS = 64
_LEASES = 20
AWAY = 600_000
"""A node that ended no lease for so long adds nothing to the supply."""


def turnaround(database: Database) -> float | None:
    """p90 of lease sent to verdict, ms, over the last accepted groups."""
    rows = database.all(
        "SELECT v.at - l.sent FROM verdicts v JOIN leases l ON l.id = v.lease WHERE v.verdict = 'accepted'"
        " ORDER BY v.entry DESC LIMIT ?",
        (_GROUPS,),
    )
    return quantile([row[0] for row in rows], 0.9) if rows else None


def supply(database: Database, now: int) -> float:
    """Rollouts a second that the nodes seen lately deliver while they hold leases.

    A node's rate is its accepted rollouts over the union of its leased times, so that one that is kept waiting for
    lack of room does not look slow."""
    nodes = database.all("SELECT DISTINCT node FROM leases WHERE sent >= ? AND state != 'open'", (now - AWAY,))
    return sum(_rate(database, node) for (node,) in nodes)


def _rate(database: Database, node: bytes) -> float:
    rows = database.all(
        "SELECT l.sent, min(coalesce(s.at, l.expires), l.expires), coalesce(v.rollouts, 0) FROM leases l"
        " LEFT JOIN submissions s ON s.lease = l.id LEFT JOIN verdicts v ON v.lease = l.id"
        " WHERE l.node = ? AND l.state IN ('decided', 'expired') ORDER BY l.position DESC LIMIT ?",
        (node, _LEASES),
    )
    leased = union((sent, end) for sent, end, _ in rows)
    return 1000 * sum(rollouts for *_, rollouts in rows) / leased if leased > 0 else 0.0


def zero_variance(database: Database) -> float:
    """Share of the last trainable groups in which all rewards are equal."""
    rows = database.all("SELECT varied FROM buffer ORDER BY rowid DESC LIMIT ?", (4 * _GROUPS,))
    return sum(not varied for (varied,) in rows) / len(rows) if rows else 0.0


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Groups since the run began, and those on their way now. `too_old`: accepted, but not trainable when decided.
    `unscored`: accepted, but without a finite reward by the task. `refused`: by code."""

    received: int
    accepted: int
    too_old: int
    unscored: int
    refused: dict[str, int]
    expired: int
    undecided: int
    running: int
    rollouts: int


def counts(database: Database, now: int) -> Counts:
    """Where all groups are."""
    accepted, trainable, unscored, rollouts = database.all(
        "SELECT count(*), coalesce(sum(trainable), 0), coalesce(sum(code = 'task-score'), 0),"
        " coalesce(sum(rollouts), 0) FROM verdicts WHERE verdict = 'accepted'"
    )[0]
    states = dict(database.all("SELECT state, count(*) FROM leases GROUP BY state"))
    return Counts(
        received=database.value("SELECT count(*) FROM submissions"),
        accepted=accepted,
        too_old=accepted - trainable - unscored,
        unscored=unscored,
        refused=dict(database.all("SELECT code, count(*) FROM verdicts WHERE verdict = 'refused' GROUP BY code")),
        expired=states.get("expired", 0),
        undecided=states.get("received", 0),
        running=database.value("SELECT count(*) FROM leases WHERE state = 'open' AND expires >= ?", (now,)),
        rollouts=rollouts,
    )
