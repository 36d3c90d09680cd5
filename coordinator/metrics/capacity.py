"""Compute how many rollouts per second keep the learner busy, and advise on settings. Pure formulas.

T: seconds per step of the learner. B: seconds from publishing a version to the verdict on a group generated under it
(p90: broadcast, load, generate, submit, wait). R: rollouts per step. S: staleness limit. kappa: steps between two
published versions. mu: rollouts per second. gamma: safety factor.

Derived for this project from ECHO-2's rule (arXiv 2602.02192) and checked by simulation:

1. Overlap is free while kappa + ceil(B/T) <= S; the largest such period is kappa* = S - ceil(B/T), at least 1.
2. mu_min = max(R/T, R / ((S - kappa + 1) T - B)), defined where (S - kappa + 1) T > B.
3. Provision gamma mu_min; with zero-variance groups refilled, over (1 - z), z = their share.
4. If mu_min = R/T, a smaller mu leaves the learner idle for 1 - mu/mu_min of its time.
5. Limits on open leases: coordinator/rollouts/lease_table.py.
6. S = 0 has no overlap: a step costs T + B + R/mu.
"""

import math

import msgspec

from coordinator.metrics.views import CapacityView
from runtime.figures import apart, figure

GAMMA = 1.1
"""Safety factor on the need (ECHO-2)."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of the formulas. None: not measured yet. `zero_variance`: z, 0 unless such groups are refilled.
    `supply`: rollouts per second that the nodes can deliver."""

    step_seconds: float | None
    turnaround_seconds: float | None
    rollouts_per_step: float
    supply: float
    zero_variance: float = 0.0


def best_period(staleness: int, step: float, turnaround: float) -> int:
    """Return max(1, kappa*): the longest publish period without idle time (1)."""
    return max(1, staleness - math.ceil(turnaround / step))


def least_supply(staleness: int, period: int, step: float, turnaround: float, rollouts: float) -> float | None:
    """Return mu_min, rollouts per second; None if no supply is enough (2)."""
    window = (staleness - period + 1) * step - turnaround
    return max(rollouts / step, rollouts / window) if window > 0 else None


def need(least: float, *, zero_variance: float = 0.0, gamma: float = GAMMA) -> float:
    """Return the rollouts per second to provision (3). `zero_variance` below 1."""
    return gamma * least / (1.0 - zero_variance)


def idle_share(supply: float, step: float, rollouts: float) -> float:
    """Return the learner's idle share of its time if mu_min = R/T (4)."""
    return max(0.0, 1.0 - supply * step / rollouts)


def least_staleness(period: int, step: float, turnaround: float) -> int:
    """Return the smallest S for which some supply is enough at this period."""
    return math.floor(turnaround / step) + period


def sequential_step(step: float, turnaround: float, rollouts: float, supply: float) -> float:
    """Return the seconds of a whole step at S = 0 (6)."""
    return step + turnaround + (rollouts / supply if supply > 0 else math.inf)


def view(staleness: int, period: int, measured: Measured) -> CapacityView:
    """Return the inputs, the rate to provision, and one sentence of advice."""
    wanted, advice = _advised(staleness, period, measured)
    return CapacityView(
        step_seconds=measured.step_seconds,
        turnaround_seconds=measured.turnaround_seconds,
        rollouts_per_step=measured.rollouts_per_step,
        publish_every=period,
        supply=measured.supply,
        need=wanted,
        advice=advice,
    )


def _advised(staleness: int, period: int, measured: Measured) -> tuple[float | None, str]:
    step, turnaround, rollouts = measured.step_seconds, measured.turnaround_seconds, measured.rollouts_per_step
    if step is None or turnaround is None:
        return None, "Nothing to say before the first steps and verdicts are measured."
    if staleness == 0:
        whole, training = apart(sequential_step(step, turnaround, rollouts, measured.supply), step, decimals=1)
        return None, f"Sequential (S = 0): nothing overlaps, a step costs {whole} s of which {training} s are training."
    least = least_supply(staleness, period, step, turnaround, rollouts)
    if least is None:
        return None, _no_room(staleness, period, step, turnaround)
    wanted = need(least, zero_variance=min(measured.zero_variance, 0.99))
    best = best_period(staleness, step, turnaround)
    if least > rollouts / step and best < period:
        return (
            wanted,
            f"Publish every {best} steps instead of {period}: versions age too fast, which drives the need up.",
        )
    if measured.supply < wanted:
        short = wanted - measured.supply
        idle = idle_share(measured.supply, step, rollouts)
        return (
            wanted,
            f"Short by {figure(short)} rollouts/s: the learner idles about {idle:.0%} of its time; more nodes help.",
        )
    return wanted, "Enough: the nodes can deliver more than the learner needs."


def _no_room(staleness: int, period: int, step: float, turnaround: float) -> str:
    if period > 1 and least_supply(staleness, 1, step, turnaround, 1.0) is not None:
        best = best_period(staleness, step, turnaround)
        return f"No supply is enough when publishing every {period} steps: publish every {best}."
    enough = least_staleness(1, step, turnaround)
    needed, taken = apart(turnaround, staleness * step, decimals=1)
    return (
        f"S = {staleness} is too small: a version needs {needed} s to come back as groups, and the learner"
        f" makes {staleness} steps in {taken} s. Take S = {enough}, or a faster uplink."
    )
