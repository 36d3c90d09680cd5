"""Estimate how old groups are when they are learned from, by the reserve of supply, and the nodes that it takes. Pure.

T: seconds per step. kappa: steps from one version to the next. S: staleness limit. reserve: supply over what the
learner consumes. u: steps from a version's publication until a group that is begun under it at once has its verdict.

Rules
1. Nodes begin with a version as soon as it is with them, and make its kappa batches in kappa / reserve steps. The share
   q of its groups that is back first is back u + q kappa / reserve steps after the version.
2. The learner draws each step. A group is drawn at the first draw at which it is back, and a batch per draw, so the
   group at share q has the age max(ceil(u + q kappa / reserve), floor(u) + 1 + floor(q kappa)).
3. No group is older than S. Below `LEAST_KNOWN_RESERVE` no age is told: it is between that of a larger reserve and S.

Checked against the simulation of leases (tests/coordinator/metrics/test_freshness.py): within 0.4 of a step at 1.5
and 2 times the need, for equal nodes and for a tenfold spread.
"""

import math
from collections.abc import Iterable
from statistics import fmean
from typing import Final, NamedTuple

from echo2.coordinator.metrics.views import ReserveView

RESERVES: Final = (1.1, 1.5, 2.0)
LEAST_KNOWN_RESERVE: Final = 1.25
PARTS: Final = 100
"""Values of q over which an age is a mean."""


def expected_age(staleness: int, period: int, latency: float, reserve: float) -> float | None:
    """Return the mean age of the groups learned from, steps; None: not told (rule 3). `latency`: u."""
    if reserve < LEAST_KNOWN_RESERVE:
        return None
    shares = [(part + 0.5) / PARTS for part in range(PARTS)]
    drawn = math.floor(latency) + 1
    ages = [max(math.ceil(latency + q * period / reserve), drawn + math.floor(q * period)) for q in shares]
    return fmean(min(staleness, age) for age in ages)


def nodes_for(rates: Iterable[float], need: float) -> int | None:
    """Return how many of the nodes with these rates make the need, the quickest first; None: all of them do not."""
    supplied = 0.0
    for count, rate in enumerate(sorted(rates, reverse=True), 1):
        supplied += rate
        if supplied >= need:
            return count
    return None


class FreshnessTerms(NamedTuple):
    """A run. `staleness`: S. `period`: kappa. `latency`: u. `least`: rollouts per second that the learner consumes."""

    staleness: int
    period: int
    latency: float
    least: float


def reserves(terms: FreshnessTerms, gamma: float, rates: Iterable[float]) -> list[ReserveView]:
    """Return a row per reserve of `RESERVES`, and of the run's own, `gamma`. `rates`: rates of the nodes here, rollouts
    per second."""
    known = list(rates)
    return [
        ReserveView(
            reserve=reserve,
            need=reserve * terms.least,
            nodes=nodes_for(known, reserve * terms.least),
            age=expected_age(terms.staleness, terms.period, terms.latency, reserve),
        )
        for reserve in sorted({*RESERVES, gamma})
    ]
