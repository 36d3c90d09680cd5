"""Measure turnaround, supply and group counts from run.sqlite. Times in ms.

These queries run once per second, so none of them scans a table that grows with the run.
"""

import itertools
from statistics import fmean

import msgspec

from echo2.coordinator.accounts.fork_evidence import evidence
from echo2.coordinator.accounts.key_accounts import SERVED_CONDITION
from echo2.coordinator.database.database import Database
from echo2.coordinator.metrics.capacity import Measured
from echo2.coordinator.metrics.views import LedgerView
from echo2.runtime.quantiles import quantile, union

_GROUPS = 64
_LEASES = 20
MEASURED_NODES = 64
"""Nodes whose rate is measured per call."""
SUPPLY_AWAY_MS = 600_000
"""Milliseconds since a node's last request, or since its last ended lease began, after which it adds no supply."""


def quick_turnaround(database: Database) -> float | None:
    """Return the median of the quicker half of the times from lease to verdict, ms, over the last accepted groups: how
    long a group takes where it hardly waits. With the waiting of the others a fleet that has more leases than engines
    would seem too slow for any staleness limit. None before the first."""
    times = _turnarounds(database)
    return quantile(times, 0.25) if times else None


def mean_turnaround(database: Database) -> float | None:
    """Return the mean of the same times, of all of them."""
    times = _turnarounds(database)
    return fmean(times) if times else None


def _turnarounds(database: Database) -> list[int]:
    rows = database.all(
        "SELECT v.at - l.sent FROM verdicts v JOIN leases l ON l.id = v.lease WHERE v.verdict = 'accepted'"
        " ORDER BY v.entry DESC LIMIT ?",
        (_GROUPS,),
    )
    return [row[0] for row in rows]


def supply(database: Database, now: int, rates: dict[bytes, float] | None = None) -> float:
    """Return the rollouts per second that recently seen nodes with accepted work deliver while they have leases.

    A node's rate is its accepted rollouts over the union of its leased times, so that waiting for a lease does not make
    it look slow. `rates`: rate by node, kept by the caller and updated here. A call measures at most `MEASURED_NODES`
    nodes: new ones first, then those measured longest ago. A node not measured yet counts as the mean."""
    rates = {} if rates is None else rates
    query = f"SELECT key FROM nodes WHERE (weight > 0) = 1 AND last_seen >= ? AND {SERVED_CONDITION}"
    rows = database.all(query, (now - SUPPLY_AWAY_MS, now))
    here = {node for (node,) in rows}
    for node in rates.keys() - here:
        del rates[node]
    for node in list(itertools.islice(itertools.chain(here - rates.keys(), rates), MEASURED_NODES)):
        rates.pop(node, None)
        rates[node] = _rate(database, node, now - SUPPLY_AWAY_MS)
    return sum(rates.values()) * len(here) / len(rates) if rates else 0.0


def _rate(database: Database, node: bytes, since: int) -> float:
    rows = database.all(
        "SELECT l.sent, min(coalesce(s.at, l.expires), l.expires), coalesce(v.rollouts, 0) FROM leases l"
        " LEFT JOIN submissions s ON s.lease = l.id LEFT JOIN verdicts v ON v.lease = l.id"
        " WHERE l.node = ? AND l.state NOT IN ('open', 'received') ORDER BY l.sent DESC LIMIT ?",
        (node, _LEASES),
    )
    if not rows or rows[0][0] < since:
        return 0.0
    leased = union((sent, end) for sent, end, _ in rows)
    return 1000 * sum(rollouts for *_, rollouts in rows) / leased if leased > 0 else 0.0


def complete_measurements(
    database: Database, known: Measured, reach: float, now: int, rates: dict[bytes, float], *, refill: bool
) -> Measured:
    """Return `known` completed by the measurements from run.sqlite. `reach`: p90 of the seconds until a version is in
    use at a node. `rates`: see `supply`. `refill`: whether groups without variance are replaced."""
    back = quick_turnaround(database)
    return msgspec.structs.replace(
        known,
        turnaround_seconds=None if back is None else reach + back / 1000,
        supply=supply(database, now, rates),
        zero_variance=zero_variance(database) if refill else 0.0,
    )


def zero_variance(database: Database) -> float:
    """Return the share of the last trainable groups in which all rewards are equal."""
    rows = database.all("SELECT varied FROM buffer ORDER BY rowid DESC LIMIT ?", (4 * _GROUPS,))
    return sum(not varied for (varied,) in rows) / len(rows) if rows else 0.0


def work(database: Database) -> int:
    """Return the accepted work of all nodes, milli-RE."""
    query = "SELECT coalesce(sum(weight), 0) FROM sums WHERE node = x'' AND verdict = 'accepted'"
    return int(database.value(query))


class GroupCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Groups since the run began, and groups under way now. `too_old`: accepted, but too old to be trained on when
    decided. `unscored`: accepted, but without a finite reward by the task. `canaries`: accepted, with an answer known
    before (coordinator/leases/kinds/canaries.py). `spare`: accepted, while a twin of it is learned from
    (coordinator/leases/twin_sets.py). `refused`: number refused by code. `rollouts`: rollouts of accepted groups.
    `skipped`: prompts that are not leased, or no longer, by the codes of their leases' ends; those that the task did
    not give, or that are too long, by `no-prompt` (coordinator/prompts/prompt_positions.py)."""

    received: int
    accepted: int
    too_old: int
    unscored: int
    spare: int
    canaries: int
    refused: dict[str, int]
    expired: int
    undecided: int
    running: int
    rollouts: int
    skipped: dict[str, int]


def ledger(database: Database) -> LedgerView:
    """Return the size of the ledger and its newest signed head."""
    entries = database.value("SELECT max(seq) FROM entries") or 0
    head = database.one("SELECT number, size, issued, note FROM ledger_heads ORDER BY number DESC LIMIT 1")
    foreign = evidence(database)
    if head is None:
        return LedgerView(entries=entries, foreign=foreign)
    number, size, issued, note = head
    return LedgerView(entries=entries, number=number, size=size, issued=issued, note=note, foreign=foreign)


def counts(database: Database, now: int) -> GroupCounts:
    """Count all groups, from the sums kept with each verdict and the table of groups under way."""
    accepted = trainable = unscored = canaries = rollouts = expired = 0
    refused: dict[str, int] = {}
    for verdict, code, *sums in database.all(
        "SELECT verdict, code, groups, trainable, rollouts FROM sums WHERE node = x''"
    ):
        if verdict == "refused":
            refused[code] = sums[0]
        elif verdict == "expired":
            expired = sums[0]
        elif verdict == "accepted":
            accepted, trainable, rollouts = accepted + sums[0], trainable + sums[1], rollouts + sums[2]
            unscored += sums[0] if code == "task-score" else 0
            canaries += sums[0] if code == "canary" else 0
    running, undecided = database.all("SELECT coalesce(sum(open), 0), coalesce(sum(received), 0) FROM on_their_way")[0]
    spare = database.value("SELECT value FROM tallies WHERE name = 'spare twins'") or 0
    overdue = database.value("SELECT count(*) FROM leases WHERE state = 'open' AND expires < ?", (now,))
    return GroupCounts(
        received=accepted + sum(refused.values()) + undecided,
        accepted=accepted,
        too_old=accepted - trainable - unscored - canaries - spare,
        unscored=unscored,
        spare=spare,
        canaries=canaries,
        refused=refused,
        expired=expired,
        undecided=undecided,
        running=running - overdue,
        rollouts=rollouts,
        skipped=dict(database.all("SELECT reasons, positions FROM skipped ORDER BY positions DESC, reasons LIMIT 16")),
    )
