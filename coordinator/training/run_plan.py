"""Plan a run: how many nodes keep the learner busy, at which S and period, and what a step costs. Pure.

T: seconds per step. R: rollouts per step. S: staleness limit. kappa: steps between two versions. B: seconds from a
version to the verdicts on its groups. Prices are per hour, in any one currency.

Rules
1. A node generates `tokens_per_second` in all; with c groups at once each of them takes c times as long.
2. A version of W bytes reaches n nodes in 1.25 T*, the bar of benchmarks.broadcast; no scheme is quicker than
   T* = max(W/U, W/d, n W / (U + n u)), for the uplinks U of the coordinator and u of a node, and its downlink d.
3. B is the sum of that, of loading the version, of c groups and of the verdict. It grows with the nodes, so their
   number is the least that is enough for the B that it leads to.
4. kappa, unless it is given, is that of `publish_every = "auto"`; the need is that of coordinator/metrics/capacity.py.
5. The cost of a step is that of the learner and of the nodes for its time, idle time included.
6. In a run that is under way broadcast and B were measured, and stand for any number of nodes.
7. At S = 0 nothing overlaps: a step costs T + B + R/mu, with any number of nodes.
8. The alternative is to generate on machines of one's own, next to the learner: no broadcast, as many as gamma R/T
   needs. Volunteers cost less while each asks for less than those machines cost together, divided by their number.
9. The verdict's time is that of the scorer's queue (training/scorer_queue.py). Where the scorers do not keep up, a step
   takes as long as they take to verify its groups, and the nodes are planned for that.
10. The bottleneck is the nodes where there are fewer than are enough for the step of rule 9, else the scorers where
   they do not keep up, else the learner. Where no number of nodes is enough, it is S.
11. In a run under way the learner's idle share was measured too. It stands beside the one that follows from the
   formulas, which take each group to come back as the quicker half does (B), and nodes as they were last.
"""

import math
from typing import Final, Literal, NamedTuple

import msgspec

from echo2.coordinator.metrics.capacity import (
    best_period,
    idle_share,
    least_staleness,
    least_supply,
    need,
    sequential_step,
)
from echo2.coordinator.training.publish_period import PeriodTerms, wanted_period
from echo2.coordinator.training.scorer_queue import ScorerQueue, ScorerTerms
from echo2.runtime.figures import apart, figure

Bottleneck = Literal["learner", "nodes", "scorers", "staleness"]
OVER_BEST: Final = 1.25
"""A broadcast's time over T*."""
MOST_NODES: Final = 1_000_000
_NEAR: Final = 0.05
"""Difference of two idle shares that needs no explanation."""


class NodeTerms(msgspec.Struct, frozen=True, kw_only=True):
    """An average node. `tokens_per_second`: sampled, all its groups together. `at_once`: c. `uplink`, `downlink`: bytes
    per second. `load_seconds`: load seconds to take up a version that it has. `price`: price per hour."""

    tokens_per_second: float
    at_once: int = 1
    uplink: float = math.inf
    downlink: float = math.inf
    load_seconds: float = 0.0
    price: float = 0.0


class RunTerms(msgspec.Struct, frozen=True, kw_only=True):
    """A run. `tokens`: sampled per rollout. `payload`: bytes of a version's diff. `uplink`: the coordinator's, bytes
    per second. `scorer`: None: it verifies in no time. `period`: None: auto. `price`: price of the learner, per hour.
    `broadcast`, `turnaround`: seconds, as measured (rule 6); None: computed."""

    step_seconds: float
    rollouts: int
    group_size: int
    tokens: float
    staleness: int
    payload: float = 0.0
    uplink: float = math.inf
    period: int | None = None
    gamma: float = 1.1
    scorer: ScorerTerms | None = None
    price: float = 0.0
    broadcast: float | None = None
    turnaround: float | None = None

    @property
    def queue(self) -> ScorerQueue | None:
        """The scorer's queue; None where it verifies in no time."""
        if self.scorer is None:
            return None
        groups, seconds = self.rollouts / self.group_size, self.group_size * self.tokens / self.scorer.tokens_per_second
        return ScorerQueue(scorer=self.scorer, step_seconds=self.step_seconds, groups=groups, group_seconds=seconds)

    @property
    def verdict_seconds(self) -> float:
        """From a group's receipt to its verdict (rule 9)."""
        return 0.0 if self.queue is None else self.queue.verdict_seconds

    def as_scored(self) -> "RunTerms":
        """Return the run with the step that the scorers allow (rule 9)."""
        if self.queue is None or self.queue.load < 1.0:
            return self
        return msgspec.structs.replace(self, step_seconds=self.queue.busy_seconds)


class Machines(msgspec.Struct, frozen=True, kw_only=True):
    """Machines of one's own, alike. `price`: price of one, per hour."""

    tokens_per_second: float
    price: float


class FleetPlan(NamedTuple):
    """`turnaround`: B. `nodes`: that are enough; None: no number is. `idle`: the learner's idle share with the nodes
    that the plan was made for. `cost`: cost of a step with them. `bottleneck`: rule 10."""

    period: int
    longest_period: int
    broadcast_seconds: float
    turnaround: float
    nodes: int | None
    idle: float
    cost: float | None
    bottleneck: Bottleneck


def broadcast_seconds(run: RunTerms, node: NodeTerms, nodes: int) -> float:
    """Return the seconds until the last of `nodes` nodes has a version (rule 2)."""
    if run.broadcast is not None:
        return run.broadcast
    return OVER_BEST * least_seconds(run, node, nodes)


def least_seconds(run: RunTerms, node: NodeTerms, nodes: int) -> float:
    """Return T* (rule 2)."""
    together = nodes * run.payload / (run.uplink + nodes * node.uplink)
    return max(run.payload / run.uplink, run.payload / node.downlink, together)


def turnaround(run: RunTerms, node: NodeTerms, nodes: int) -> float:
    """Return B, seconds (rule 3)."""
    if run.turnaround is not None:
        return run.turnaround
    groups = node.at_once * run.group_size * run.tokens / node.tokens_per_second
    return broadcast_seconds(run, node, nodes) + node.load_seconds + groups + run.verdict_seconds


def plan_fleet(run: RunTerms, node: NodeTerms, nodes: int | None = None) -> FleetPlan:
    """Return the plan of a run with S >= 1. `nodes`: nodes to plan for; None: as many as are enough."""
    alone, run = run, run.as_scored()
    enough = _enough(run, node)
    count = nodes or enough or 1
    broadcast, back = broadcast_seconds(run, node, count), turnaround(run, node, count)
    longest = best_period(run.staleness, run.step_seconds, back)
    idle, cost = _idle(run, node, count), None
    if idle < 1:
        hours = run.step_seconds / (1 - idle) / 3600
        cost = hours * (run.price + count * node.price)
        idle = 1 - (1 - idle) * alone.step_seconds / run.step_seconds
    bottleneck: Bottleneck = "learner"
    if enough is None:
        bottleneck = "staleness"
    elif count < enough:
        bottleneck = "nodes"
    elif run is not alone:
        bottleneck = "scorers"
    return FleetPlan(_period(run, node, count), longest, broadcast, back, enough, idle, cost, bottleneck)


def own_machines(run: RunTerms, own: Machines) -> int:
    """Return how many machines of one's own keep the learner busy (rule 8)."""
    return math.ceil(run.gamma * run.rollouts / run.step_seconds * run.tokens / own.tokens_per_second)


_BOTTLENECKS: Final[dict[Bottleneck, str]] = {
    "learner": "The bottleneck is the learner, as it should be: all else keeps up with it.",
    "nodes": "The bottleneck is the nodes: more of them shorten a step.",
    "scorers": "The bottleneck is the scorer: a faster device or more of them shorten a step, more nodes do not.",
    "staleness": "The bottleneck is S: groups come back too late, however many nodes there are.",
}


def sentences(
    run: RunTerms, node: NodeTerms, nodes: int | None, own: Machines | None, measured_idle: float | None = None
) -> list[str]:
    """Return the plan in words. `measured_idle`: see rule 11; None: no run is under way."""
    if run.staleness == 0:
        return [_sequential(run, node, nodes or 1)]
    plan = plan_fleet(run, node, nodes)
    count = nodes or plan.nodes
    rate, per_node = run.rollouts / run.step_seconds, node.tokens_per_second / run.tokens
    group = "" if run.turnaround is not None else f" (a group in {figure(node.at_once * run.group_size / per_node)} s)"
    told = [
        f"A step of {figure(run.step_seconds)} s takes {run.rollouts} rollouts, {figure(rate)} per second. "
        f"A node makes {figure(per_node)} per second{group}."
    ]
    told += [] if run.queue is None else [_of_scorers(run.queue, run.gamma)]
    run = run.as_scored()
    measured = [] if measured_idle is None else [_of_idle(measured_idle, plan)]
    if plan.nodes is None:
        return [*told, _no_number(run, node), _BOTTLENECKS[plan.bottleneck], *measured]
    told += [_of_version(run, plan, count or plan.nodes), _of_nodes(run, plan, nodes), _BOTTLENECKS[plan.bottleneck]]
    if plan.nodes > _for_rate(run, node):
        later = plan_fleet(msgspec.structs.replace(run, staleness=run.staleness + 1), node)
        told.append(
            f"S = {run.staleness} leaves little time: at S = {run.staleness + 1} {later.nodes} {_are(later.nodes)} "
            "enough."
        )
    if plan.cost is not None and (run.price or node.price):
        told.append(f"A step costs {_money(plan.cost)}, the learner's device and these nodes together.")
    if own is not None:
        told.append(_of_own(run, node, plan, own))
    return told + measured


def _sequential(run: RunTerms, node: NodeTerms, nodes: int) -> str:
    back, supply = turnaround(run, node, nodes), nodes * node.tokens_per_second / run.tokens
    seconds = sequential_step(run.step_seconds, back, run.rollouts, supply)
    whole, training = apart(seconds, run.step_seconds, decimals=1)
    cost = seconds / 3600 * (run.price + nodes * node.price)
    costs = f", and costs {_money(cost)}" if cost else ""
    return (
        f"Sequential (S = 0): nothing overlaps. With {_count(nodes)} a step takes {whole} s, of which {training} s are "
        f"training{costs}. Each node more shortens it: --nodes says by how much."
    )


def _of_version(run: RunTerms, plan: FleetPlan, count: int) -> str:
    back, between = apart(plan.turnaround, plan.period * run.step_seconds, decimals=1)
    every, longest = (
        ("every step" if steps == 1 else f"every {steps} steps") for steps in (plan.period, plan.longest_period)
    )
    return (
        f"A version reaches {_count(count)} in {figure(plan.broadcast_seconds)} s, and its groups are verified after "
        f"{back} s (B). Publish {every}, which is every {between} s; S = {run.staleness} allows "
        f"{longest} at the longest (kappa*)."
    )


def _of_scorers(queue: ScorerQueue, gamma: float) -> str:
    scorers = "The scorer verifies" if queue.scorer.number == 1 else f"{queue.scorer.number} scorers verify"
    taken, step = apart(queue.busy_seconds, queue.step_seconds, decimals=1)
    told = f"{scorers} a step's rollouts in {taken} s"
    if queue.load >= 1.0:
        enough = queue.enough(gamma)
        return f"{told}, and the learner takes {step} s: a step takes {taken} s, until there are {enough} such scorers."
    return (
        f"{told}, of the {step} s of a step; a group has its verdict {figure(queue.verdict_seconds)} s after it came."
    )


def _of_nodes(run: RunTerms, plan: FleetPlan, nodes: int | None) -> str:
    if nodes is None:
        return f"{plan.nodes} such nodes keep the learner busy, with a reserve of {run.gamma - 1:.0%}."
    assert plan.nodes is not None
    idle = f", and the learner is idle for {plan.idle:.0%} of its time"
    if nodes >= plan.nodes:
        return f"{plan.nodes} such nodes are enough: {nodes - plan.nodes} of {nodes} are to spare{idle}."
    return f"{plan.nodes} such nodes would be enough; {plan.nodes - nodes} {_are(plan.nodes - nodes)} missing{idle}."


def _of_idle(measured: float, plan: FleetPlan) -> str:
    told = f"Measured in this run, the learner is idle for {measured:.0%} of its time since its first step."
    if abs(plan.idle - measured) < _NEAR:
        return told
    return (
        f"{told} For the terms above the formulas give {plan.idle:.0%}: they take each group to come back as the "
        "quicker half does (B), and nodes and scorers to work as they did last."
    )


def _are(count: float | None) -> str:
    return "is" if count == 1 else "are"


def _of_own(run: RunTerms, node: NodeTerms, plan: FleetPlan, own: Machines) -> str:
    assert plan.nodes is not None
    number = own_machines(run, own)
    step = run.step_seconds / 3600 * (run.price + number * own.price)
    least = number * own.price / plan.nodes
    cheaper = "less" if node.price < least else "more"
    return (
        f"Generating on machines of your own takes {number} of them, and a step costs {_money(step)}. Volunteers break "
        f"even at {_money(least)} an hour each; at {_money(node.price)} they cost {cheaper}."
    )


def _no_number(run: RunTerms, node: NodeTerms) -> str:
    """Say what would help where no number of nodes is enough."""
    back, limit = turnaround(run, node, 1), f"No number of such nodes is enough at S = {run.staleness}"
    period = run.period or 1
    if period > 1 and least_supply(run.staleness, 1, run.step_seconds, back, 1.0) is not None:
        best = best_period(run.staleness, run.step_seconds, back)
        return f"{limit} when publishing every {period} steps: publish every {best}, or raise S."
    if least_supply(run.staleness, period, run.step_seconds, back, 1.0) is None:
        enough = least_staleness(period, run.step_seconds, back)
        needed, taken = apart(back, run.staleness * run.step_seconds, decimals=1)
        return (
            f"{limit}: a version's groups are verified after {needed} s, and {run.staleness} steps take {taken} s. "
            f"Take S = {enough}, fewer groups at once, or quicker lines."
        )
    slow = figure(broadcast_seconds(run, node, _for_rate(run, node)))
    return f"{limit}: with those that the rate asks for, a version takes {slow} s to all. Raise S, or the uplinks."


def _count(nodes: int) -> str:
    return "1 node" if nodes == 1 else f"{nodes} nodes"


def _money(value: float) -> str:
    return f"{value:.4f}" if value < 1 else f"{value:.2f}"


def _period(run: RunTerms, node: NodeTerms, nodes: int) -> int:
    if run.period is not None:
        return run.period
    broadcast, back = broadcast_seconds(run, node, nodes), turnaround(run, node, nodes)
    return wanted_period(run.staleness, PeriodTerms(run.step_seconds, broadcast, back))


def _least(run: RunTerms, node: NodeTerms, nodes: int) -> float | None:
    """Return mu_min for the B of so many nodes."""
    period, back = _period(run, node, nodes), turnaround(run, node, nodes)
    return least_supply(run.staleness, period, run.step_seconds, back, run.rollouts)


def _needs(run: RunTerms, node: NodeTerms, nodes: int) -> int | None:
    least = _least(run, node, nodes)
    return None if least is None else math.ceil(need(least, gamma=run.gamma) * run.tokens / node.tokens_per_second)


def _for_rate(run: RunTerms, node: NodeTerms) -> int:
    """Return the number of nodes for gamma R/T, however long B is."""
    return math.ceil(run.gamma * run.rollouts / run.step_seconds * run.tokens / node.tokens_per_second)


def _enough(run: RunTerms, node: NodeTerms) -> int | None:
    """Return the least number of nodes that covers the need which it leads to. B never shrinks with more nodes, nor
    does the need at one period, so repeated substitution from below ends at it."""
    count = _for_rate(run, node)
    while count <= MOST_NODES:
        wanted = _needs(run, node, count)
        if wanted is None:
            return None
        if wanted <= count:
            return count
        count = wanted
    return None


def _idle(run: RunTerms, node: NodeTerms, nodes: int) -> float:
    """Return the learner's idle share with so many nodes."""
    period, back, supply = _period(run, node, nodes), turnaround(run, node, nodes), node.tokens_per_second / run.tokens
    return idle_share(run.staleness, period, run.step_seconds, back, run.rollouts, nodes * supply)
