"""Decide whether a lease is given now or left to the next version: the law of leases. Pure; times in milliseconds.

The law: under the version that a node has loaded, lease only groups that could not be made in time under the next
version. `room` (lease_table.py, rule 2) stays as the bound above it.

Terms
- The learner draws next at t_1: at the end of the step that it makes, never before now, or now if it waits. Draw k
  comes at t_k = t_1 + (k - 1) T. T: a low order statistic of its last steps, so draws are expected early rather than
  late.
- *lead*: the second longest of the learner's last waits. All t_k come earlier by it: a fleet that was late begins
  sooner.
- f: when the next version is with the nodes: the end of the step that is published next, plus the time of a broadcast.
  With a version every kappa steps, that is the end of the step whose number kappa divides.
- A group of version p may be drawn at steps p to p + S, so the law looks at the draws k up to that step.
- *back(t)*: the groups that are on their way and expected back by t. Each open lease counts with its chance of being
  back by t, given that it is not back yet; each group that waits for its verdict with the share of that wait that t
  leaves.
- *later(t)*: the groups that the nodes here are expected to begin after f, or when they are free if that is later, and
  to end by t. They are divided by `GAMMA`.
- *kept*: the share of the last leases whose groups came into the buffer. It multiplies each chance.
- *deviation*: the standard deviation of the sum of these chances. A node that leaves takes all its c groups with it, so
  its groups are kept or lost together, and come at their times each by itself.

Rules
1. A lease is given if some draw k is short:  buffered + back(t_k) + later(t_k) - z deviation < k batch.  Draws that the
   node itself cannot serve are left out: those by which it returns a group with a chance below `SERVES`. The time to
   them is taken with the longest of the learner's last spans between two draws.
2. z = max(`Z`, `SPARE` / spare), spare = kept * (groups that the nodes here make in a usual step) / batch - 1, the
   least of now and the last draws. So with little to spare, or in a fleet that comes and goes, the law asks for much
   certainty. With nothing to spare it gives every lease that `room` gives.
3. A lease is given if the learner waits, and the groups on their way are not expected to fill its batch.
4. A lease is given if nothing is measured yet: no node with a turnaround, or no step of the learner.
5. A refused node may ask again after `RETRY` T. It learns of the next version by its Head in any case.
6. Leases of new keys count with a chance of their own in place of `kept`: the share of the last ones whose groups came
   into the buffer. Their nodes are no supply, and their turnarounds and ends are in none of the measurements above. So
   keys without work can neither have known nodes wait for groups that never come, nor make the law think that nothing
   comes at all.
7. A node that has waited long gets a lease in its turn though nothing lacks (lease_turns.py).

Consequences. With 1.5 to 3 times the supply needed, groups are learned from at about half the age that `room` gives,
and fewer of them grow too old to be learned from. Under `room` alone every quick fleet fills S + 1 batches, and every
group is drawn at age S. The learner waits a little more often under churn: see docs/benchmarks.md, benchmarks.pacing. A
node too slow for every draw that its version may serve gets no lease while others can fill the batches. Any other node
gets one in its turn.

Source: derived for this project, docs/adr/0024-law-of-leases.md. The chances stand in turnaround_odds.py, the summary
of leases and nodes, whose size does not grow with their number, in lease_summary.py.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from echo2.coordinator.rollouts.lease_summary import AGES, AGES_PER_TURNAROUND, LeaseClasses, LeaseSummary
from echo2.coordinator.rollouts.turnaround_odds import TurnaroundOdds, odds

GAMMA: Final = 1.1
Z: Final = 1.0
SPARE: Final = 0.75
SERVES: Final = 0.2
RETRY: Final = 0.25
GONE: Final = 0.99
"""Chance of being back by now beyond which a lease that is still open is not expected any more."""
OVERDUE: Final = 1.5
"""Turnarounds after which an open lease's node does not count as a server of the next version."""
STEPS_KEPT: Final = 16
LOOKED_AT: Final = 8
LOW: Final = 3
"""Index of the order statistic of the last steps that T is."""

Floats = NDArray[np.float64]


class LearnerPace(NamedTuple):
    """The learner's measured times. `step`: T. `usual`: the median of its last steps. `span`: the longest of its last
    spans between two draws. `lead`: see the terms."""

    step: float
    usual: float
    span: float
    lead: float


class PacedSituation(NamedTuple):
    """The state of the run at a request.

    `step`: the learner's. `training_since`: when it began the step that it makes; None: it waits for groups.
    `newest`: the newest published version. `publish_every`: kappa. `staleness`: S. `batch`: groups per step.
    `buffered`: groups that may be drawn. `undecided`: groups that wait for a verdict, which takes `verdict`.
    `broadcast`: from a version's publication to its nodes. `kept`: see the terms. `cv`: coefficient of variation of
    turnarounds over their node's mean. `least_supply`: groups per millisecond of the nodes that were here, the least at
    the learner's last `STEPS_KEPT` draws."""

    now: float
    step: int
    training_since: float | None
    newest: int
    publish_every: int
    staleness: int
    batch: int
    buffered: int
    undecided: int
    verdict: float
    broadcast: float
    kept: float
    cv: float
    least_supply: float
    pace: LearnerPace


class LentLeases(NamedTuple):
    """The open leases of new keys. `chance`: the share of the last ones whose groups came into the buffer (rule 6)."""

    summary: LeaseSummary
    chance: float


class GroupForecast(NamedTuple):
    """The expectation of a number of groups at each draw looked at, and its variance: arrays of [draws]."""

    expected: Floats
    variance: Floats


def learner_pace(steps: Sequence[float], spans: Sequence[float], waits: Sequence[float]) -> LearnerPace | None:
    """Return the learner's times from its last `STEPS_KEPT` steps, spans from draw to draw, and waits before a draw,
    oldest first; None before the first step."""
    if not steps:
        return None
    low = sorted(steps)[min(LOW, (len(steps) - 1) // 4)]
    late = sorted(waits[-LOOKED_AT:])
    return LearnerPace(
        low, statistics.median(steps), max([*spans[-LOOKED_AT:], low]), late[-2] if len(late) > 1 else 0.0
    )


def lack(
    summary: LeaseSummary,
    at: PacedSituation | None,
    version: int,
    turnaround: float | None,
    lent: LentLeases | None = None,
) -> float:
    """Return how many groups the shortest draw lacks that a lease of `version` could serve now; at most 0 if none lacks
    any, and minus infinity if it could serve none. Infinite if a lease is given by rule 3 or 4, or with nothing to
    spare (rule 2). `at`: None while no step is measured. `turnaround`: of the node that asks; None: not measured, the
    mean of the nodes here is taken. `lent`: leases of new keys, which `summary` leaves out; None: there are none."""
    own = turnaround or summary.turnaround
    if at is None or own is None or summary.turnaround is None:
        return math.inf
    classes, likely = summary.table(), odds(at.cv)
    open_leases = [(classes, at.kept)] + ([(lent.summary.table(), lent.chance)] if lent and lent.chance > 0 else [])
    missing = at.batch - at.buffered - at.kept * at.undecided
    if at.training_since is None and missing > _back_within_a_turnaround(open_leases, at, likely):
        return math.inf
    draws = _draws(at, likely, version, own)
    if not len(draws):
        return -math.inf
    z = _certainty(at, min(summary.supply, at.least_supply))
    if math.isinf(z):
        return math.inf
    times = _first_draw(at) + (draws - 1) * at.pace.step - at.pace.lead
    wanted = draws * at.batch - at.buffered
    clump = _clump(at, summary.at_once)
    back = _back(open_leases, at, likely, times, clump)
    lacking = wanted - _less(back, z)
    short = lacking > 0
    if not short.any():
        return float(lacking.max())
    later = _later(classes, at, likely, times[short], _next_version(at, version), clump)
    both = GroupForecast(back.expected[short] + later.expected, back.variance[short] + later.variance)
    lacking[short] = np.minimum(lacking[short], wanted[short] - _less(both, z))
    return float(lacking.max())


def spare_supply(supply: float, kept: float, pace: LearnerPace, batch: int) -> float:
    """Return `spare` of rule 2. `supply`: groups per millisecond, the least of now and the learner's last draws."""
    return kept * supply * pace.usual / batch - 1


def retry_after(at: PacedSituation) -> int:
    """Return after how many milliseconds a refused node may ask again (rule 5)."""
    return math.ceil(RETRY * at.pace.step)


def _first_draw(at: PacedSituation) -> float:
    return at.now if at.training_since is None else max(at.training_since + at.pace.step, at.now)


def _draws(at: PacedSituation, likely: TurnaroundOdds, version: int, turnaround: float) -> Floats:
    """Return the numbers k of the draws that a group of this version, begun now by this node, may serve."""
    last = at.staleness + version - at.step + (at.training_since is None)
    numbers = np.arange(1.0, last + 1)
    until = _first_draw(at) - at.now + (numbers - 1) * at.pace.span
    result: Floats = numbers[likely.within(until / turnaround) >= SERVES]
    return result


def _next_version(at: PacedSituation, version: int) -> float:
    """Return f of the terms."""
    if version < at.newest:
        return at.now + at.broadcast
    ends = max(1, at.newest + at.publish_every - at.step)
    if at.training_since is not None:
        return _first_draw(at) + (ends - 1) * at.pace.step + at.broadcast
    return at.now + ends * at.pace.step + at.broadcast


def _certainty(at: PacedSituation, supply: float) -> float:
    """Return z of rule 2."""
    spare = spare_supply(supply, at.kept, at.pace, at.batch)
    return max(Z, SPARE / spare) if spare > 0 else math.inf


def _less(forecast: GroupForecast, z: float) -> Floats:
    """Return the expectation less z deviations."""
    result: Floats = forecast.expected - z * np.sqrt(forecast.variance)
    return result


def _returns(classes: LeaseClasses, at: PacedSituation, likely: TurnaroundOdds, until: Floats, kept: float) -> Floats:
    """Return the chance of the leases of each slot to be decided by `until`, given that their groups have not come.
    `kept`: the share of such leases whose groups come at all."""
    turnaround = classes.turnaround[classes.rows]
    age = (at.now - classes.sent) / turnaround
    gone = likely.within(age)
    expected = (gone < GONE) & (age < AGES / AGES_PER_TURNAROUND)
    weight = np.where(expected, kept / np.maximum(1 - gone, 1 - GONE), 0.0)
    left = likely.within((until - at.verdict - classes.sent) / turnaround)
    result: Floats = weight * np.maximum(left - gone, 0.0)
    return result


def _back_within_a_turnaround(
    open_leases: Sequence[tuple[LeaseClasses, float]], at: PacedSituation, likely: TurnaroundOdds
) -> float:
    return sum(
        float(classes.running @ _returns(classes, at, likely, at.now + classes.turnaround[classes.rows], kept))
        for classes, kept in open_leases
    )


def _clump(at: PacedSituation, at_once: float) -> float:
    """Return what the variance of c groups that are kept or lost together has above that of c alone, over the squares
    of their chances: (c - 1) (1 - kept) / kept."""
    return max(0.0, at_once - 1) * (1 - at.kept) / at.kept if at.kept > 0 else 0.0


def _back(
    open_leases: Sequence[tuple[LeaseClasses, float]],
    at: PacedSituation,
    likely: TurnaroundOdds,
    times: Floats,
    clump: float,
) -> GroupForecast:
    decided = at.kept * np.minimum(np.maximum((times - at.now) / max(at.verdict, 1.0), 0.0), 1.0)
    expected, variance = at.undecided * decided, at.undecided * decided * (1 - decided)
    for classes, kept in open_leases:
        chances = _returns(classes, at, likely, times[:, None], kept)
        expected = expected + chances @ classes.running
        variance = variance + (chances * (1 + (clump - 1) * chances)) @ classes.running
    return GroupForecast(expected, variance)


def _later(
    classes: LeaseClasses, at: PacedSituation, likely: TurnaroundOdds, times: Floats, begins: float, clump: float
) -> GroupForecast:
    turnaround = classes.turnaround[classes.rows]
    working = np.where(at.now - classes.sent < OVERDUE * turnaround, classes.running, 0.0)
    busy = np.bincount(classes.rows, working, len(classes.servers))
    idle = np.maximum(classes.servers - busy, 0.0)
    servers = np.concatenate((working, idle))
    free = np.concatenate((np.maximum(classes.sent + turnaround, begins), np.full(len(idle), begins)))
    each = np.concatenate((turnaround, classes.turnaround))
    groups, variance = likely.groups((times[:, None] - at.verdict - free) / each)
    expected, spread = groups @ servers, variance @ servers
    share = at.kept / GAMMA
    together = clump * (groups * groups) @ servers
    return GroupForecast(share * expected, share * expected - share * share * (expected - spread - together))
