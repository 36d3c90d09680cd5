"""Compute how many rollouts per second keep the learner busy, and advise on settings. Pure formulas.

T: seconds per step of the learner. B: seconds from publishing a version to the verdict on a group generated under it,
where the group hardly waits: p90 of the broadcast, and the median of the quicker half from lease to verdict.
R: rollouts per step. S: staleness limit. kappa: steps between two published versions. mu: rollouts per second.
gamma: safety factor.

Derived for this project from ECHO-2's rule (arXiv 2602.02192) and checked by simulation:

1. Overlap is free while kappa + ceil(B/T) <= S; the largest such period is kappa* = S - ceil(B/T), at least 1.
2. mu_min = max(R/T, R / ((S - kappa + 1) T - B)), defined where (S - kappa + 1) T > B.
3. Provision gamma mu_min; with zero-variance groups refilled, over (1 - z), z = their share.
4. A smaller mu makes a step last T' = max(T, R/mu, (B + R/mu) / (S - kappa + 1)): while the learner waits versions get
   no older, so longer steps leave S more room. It is idle for 1 - T/T' of its time; if mu_min = R/T, for 1 - mu/mu_min.
5. Limits on open leases: coordinator/leases/open_lease_limit.py.
6. S = 0 has no overlap: a step costs T + B + R/mu.
7. The supply is the smaller of the rollouts that nodes deliver and that the scorers verify. One of four limits the
   run: the nodes or the scorers, where that is below the need; the uplink, where a version takes longer to the nodes
   than kappa steps; S, where no supply is enough. A node that makes several groups together is measured by those that
   it was given. So nothing is short while the learner waits for less than `LITTLE_IDLE` of its time.
"""

import math
from typing import Literal, NamedTuple

import msgspec

from echo2.coordinator.metrics.views import CapacityView
from echo2.runtime.figures import apart, figure

Bottleneck = Literal["nodes", "scorer", "uplink", "staleness"]


LITTLE_IDLE = 0.03
"""Share of the learner's time."""
_SCARCE = 2.0
"""By how many times S may raise the need above what the learner takes, until S is the advice and not the nodes."""


class Advice(NamedTuple):
    """The rate to provision, None where there is none, what limits the run, if anything, and a sentence."""

    need: float | None
    bottleneck: Bottleneck | None
    sentence: str


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of the formulas. None: not measured yet. `zero_variance`: z, 0 unless such groups are refilled.
    `supply`: rollouts per second that the nodes can deliver. `verified`: that `scorers` scorers can verify together.
    `broadcast_seconds`: p90 of a version's time to the nodes. `idle`: the learner's idle share of its time at the last
    draws."""

    step_seconds: float | None
    turnaround_seconds: float | None
    rollouts_per_step: float
    supply: float
    scorers: int = 1
    verified: float | None = None
    broadcast_seconds: float | None = None
    zero_variance: float = 0.0
    idle: float | None = None


def best_period(staleness: int, step: float, turnaround: float) -> int:
    """Return max(1, kappa*): the longest publish period without idle time (1)."""
    return max(1, staleness - math.ceil(turnaround / step))


def least_supply(staleness: int, period: int, step: float, turnaround: float, rollouts: float) -> float | None:
    """Return mu_min, rollouts per second; None if no supply is enough (2)."""
    window = (staleness - period + 1) * step - turnaround
    return max(rollouts / step, rollouts / window) if window > 0 else None


def need(least: float, *, zero_variance: float = 0.0, gamma: float) -> float:
    """Return the rollouts per second to provision (3). `zero_variance` below 1."""
    return gamma * least / (1.0 - zero_variance)


def idle_share(staleness: int, period: int, step: float, turnaround: float, rollouts: float, supply: float) -> float:
    """Return the learner's idle share of its time (4)."""
    steps = staleness - period + 1
    if supply <= 0 or steps <= 0:
        return 1.0
    making = rollouts / supply
    return 1.0 - step / max(step, making, (turnaround + making) / steps)


def least_staleness(period: int, step: float, turnaround: float) -> int:
    """Return the smallest S for which some supply is enough at this period."""
    return math.floor(turnaround / step) + period


def sequential_step(step: float, turnaround: float, rollouts: float, supply: float) -> float:
    """Return the seconds of a whole step at S = 0 (6)."""
    return step + turnaround + (rollouts / supply if supply > 0 else math.inf)


def view(staleness: int, period: int, gamma: float, measured: Measured) -> CapacityView:
    """Return the inputs, the rate to provision, and one sentence of advice. `period`: kappa."""
    advice = _advise_period(staleness, period, gamma, measured)
    step, turnaround = measured.step_seconds, measured.turnaround_seconds
    longest = None
    if step is not None and turnaround is not None and staleness > 0:
        longest = best_period(staleness, step, turnaround)
    return CapacityView(
        step_seconds=step,
        turnaround_seconds=turnaround,
        rollouts_per_step=measured.rollouts_per_step,
        publish_every=period,
        longest_period=longest,
        supply=measured.supply,
        scorers=measured.scorers,
        verified=measured.verified,
        need=advice.need,
        bottleneck=advice.bottleneck,
        advice=advice.sentence,
    )


def _advise_period(staleness: int, period: int, gamma: float, measured: Measured) -> Advice:
    step, turnaround, rollouts = measured.step_seconds, measured.turnaround_seconds, measured.rollouts_per_step
    if step is None or turnaround is None:
        return Advice(None, None, "Nothing to say before the first steps and verdicts are measured.")
    if staleness == 0:
        whole, training = apart(sequential_step(step, turnaround, rollouts, measured.supply), step, decimals=1)
        sentence = f"Sequential (S = 0): nothing overlaps, a step costs {whole} s of which {training} s are training."
        return Advice(None, None, sentence)
    least = least_supply(staleness, period, step, turnaround, rollouts)
    if least is None:
        return Advice(None, "staleness", _no_room(staleness, period, step, turnaround))
    wanted = need(least, zero_variance=min(measured.zero_variance, 0.99), gamma=gamma)
    best = best_period(staleness, step, turnaround)
    if least > rollouts / step and best < period:
        sentence = f"Publish every {best} steps instead of {period}: versions age too fast, which drives the need up."
        return Advice(wanted, "staleness", sentence)
    if (measured.broadcast_seconds or 0.0) > period * step:
        return Advice(wanted, "uplink", _slow_uplink(period, best, step, measured.broadcast_seconds or 0.0))
    if measured.idle is not None and measured.idle < LITTLE_IDLE:
        return Advice(wanted, None, "Enough: the learner hardly waits for groups.")
    if measured.supply < wanted or (measured.verified or math.inf) < wanted:
        supply = min(measured.supply, measured.verified or math.inf)
        if least > _SCARCE * rollouts / step:
            return Advice(wanted, "staleness", _little_room(staleness, period, step, turnaround))
        return _short(wanted, supply, idle_share(staleness, period, step, turnaround, rollouts, supply), measured)
    return Advice(wanted, None, "Enough: the nodes can deliver more than the learner needs.")


def _short(wanted: float, supply: float, share: float, measured: Measured) -> Advice:
    short, idle = figure(wanted - supply), f"{share:.0%}"
    if supply < measured.supply:
        verify = "The scorer verifies" if measured.scorers == 1 else f"{measured.scorers} scorers verify"
        sentence = (
            f"{verify} {figure(supply)} rollouts/s, {short} too few: the learner idles about {idle} of its time; "
            "a faster device or one more scorer helps (scorer.devices), more nodes do not."
        )
        return Advice(wanted, "scorer", sentence)
    return Advice(
        wanted, "nodes", f"Short by {short} rollouts/s: the learner idles about {idle} of its time; more nodes help."
    )


def _little_room(staleness: int, period: int, step: float, turnaround: float) -> str:
    left, needed = apart((staleness - period + 1) * step - turnaround, turnaround, decimals=1)
    return (
        f"S = {staleness} is scarce: a version needs {needed} s to come back as groups, which leaves {left} s to make"
        f" a batch. Take S = {period + math.ceil(turnaround / step)}, or faster nodes and uplinks."
    )


def _slow_uplink(period: int, best: int, step: float, broadcast: float) -> str:
    taken, between = apart(broadcast, period * step, decimals=1)
    sustained = math.ceil(broadcast / step)
    slow = f"A version takes {taken} s to the nodes, and one goes out every {between} s"
    if sustained <= best:
        return f"{slow}: publish every {sustained} steps (run.publish_every, or auto)."
    longest = "every step" if best == 1 else f"at most every {best} steps"
    return f"{slow}: the uplink is too slow, and S leaves room for {longest}; raise S, or the uplink."


def _no_room(staleness: int, period: int, step: float, turnaround: float) -> str:
    if period > 1 and least_supply(staleness, 1, step, turnaround, 1.0) is not None:
        best = best_period(staleness, step, turnaround)
        return f"No supply is enough when publishing every {period} steps: publish every {best}."
    enough = least_staleness(1, step, turnaround)
    needed, taken = apart(turnaround, staleness * step, decimals=1)
    return (
        f"S = {staleness} is too small: a version needs {needed} s to come back as groups, and the learner"
        f" makes {staleness} steps in {taken} s. Take S = {enough}, or faster nodes and uplinks."
    )
