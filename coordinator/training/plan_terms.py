"""Take the terms of a plan from flags, and from a run that is under way where flags say nothing. Pure.

A rate from a run is that of the rollouts that its nodes deliver, so a rollout there counts as one token.
"""

from typing import NamedTuple

from echo2.coordinator.metrics.views import RunState
from echo2.coordinator.training.run_plan import Machines, NodeTerms, RunTerms, sentences
from echo2.coordinator.training.scorer_queue import ScorerTerms
from echo2.runtime.errors import LocalFault
from echo2.runtime.units import MBIT

MB = 1_000_000
USUAL_GAMMA = 1.1
"""The default of leases.gamma."""


class PlanFlags(NamedTuple):
    """The flags of `echo2-coord plan`; None: not given. Rates of lines in Mbit/s, versions in MB."""

    step_seconds: float | None = None
    rollouts: int | None = None
    group: int | None = None
    tokens: float | None = None
    node_tokens: float | None = None
    staleness: int | None = None
    publish_every: int | None = None
    gamma: float | None = None
    version_mb: float | None = None
    uplink: float | None = None
    node_uplink: float | None = None
    node_downlink: float | None = None
    at_once: int | None = None
    load_seconds: float | None = None
    scorer_tokens: float | None = None
    scorers: int | None = None
    nodes: int | None = None
    node_price: float = 0.0
    learner_price: float = 0.0
    own_tokens: float | None = None
    own_price: float | None = None


NEEDED_TERMS = {
    "step_seconds": "--step-seconds", "rollouts": "--rollouts", "group": "--group", "tokens": "--tokens",
    "node_tokens": "--node-tokens", "staleness": "--staleness", "version_mb": "--version-mb", "uplink": "--uplink",
    "node_uplink": "--node-uplink", "node_downlink": "--node-downlink", "scorer_tokens": "--scorer-tokens",
}  # fmt: skip
"""Field -> flag of what a plan without a run must be told."""
MEASURED_TERMS = {
    "node_tokens": "--node-tokens", "version_mb": "--version-mb", "uplink": "--uplink", "node_uplink": "--node-uplink",
    "node_downlink": "--node-downlink", "at_once": "--at-once", "load_seconds": "--load-seconds",
    "scorer_tokens": "--scorer-tokens",
}  # fmt: skip
"""Field -> flag of what only a run's measurements state where one is under way."""


def describe_run_plan(flags: PlanFlags, state: RunState | None) -> list[str]:
    """Return the plan in words. `state`: state of a run under way; None: flags alone. Raises `LocalFault` for what is
    missing or contradicts itself."""
    run, node, nodes = _from_flags(flags) if state is None else _from_run(flags, state)
    if run.period is not None and run.period > run.staleness + 1:
        raise LocalFault(f"--publish-every is {run.period}, and S = {run.staleness} allows at most {run.staleness + 1}")
    if (flags.own_tokens is None) != (flags.own_price is None):
        raise LocalFault("machines of your own need both --own-tokens and --own-price: name the other one too")
    own = None
    if flags.own_tokens is not None and flags.own_price is not None:
        if run.staleness == 0:
            raise LocalFault("machines of your own are compared with volunteers from S = 1 on: leave --own-tokens out")
        if state is not None and flags.tokens is None:
            raise LocalFault("--own-tokens needs --tokens too: how many tokens a rollout has")
        rate = flags.own_tokens if state is None else flags.own_tokens / (flags.tokens or 1)
        own = Machines(tokens_per_second=rate, price=flags.own_price)
    return sentences(run, node, nodes, own, None if state is None else state.idle)


def _from_flags(flags: PlanFlags) -> tuple[RunTerms, NodeTerms, int | None]:
    missing = [flag for field, flag in NEEDED_TERMS.items() if getattr(flags, field) is None]
    if missing:
        raise LocalFault(f"a plan without a run needs {', '.join(missing)} too; or name a running one with --home")
    values = {field: getattr(flags, field) for field in NEEDED_TERMS}
    run = RunTerms(
        step_seconds=values["step_seconds"], rollouts=values["rollouts"], group_size=values["group"],
        tokens=values["tokens"], payload=values["version_mb"] * MB, uplink=values["uplink"] * MBIT,
        staleness=values["staleness"], period=flags.publish_every, gamma=flags.gamma or USUAL_GAMMA,
        scorer=ScorerTerms(tokens_per_second=values["scorer_tokens"], number=flags.scorers or 1),
        price=flags.learner_price,
    )  # fmt: skip
    node = NodeTerms(
        tokens_per_second=values["node_tokens"], at_once=flags.at_once or 1, uplink=values["node_uplink"] * MBIT,
        downlink=values["node_downlink"] * MBIT, load_seconds=1.0 if flags.load_seconds is None else flags.load_seconds,
        price=flags.node_price,
    )  # fmt: skip
    return run, node, flags.nodes


def _from_run(flags: PlanFlags, state: RunState) -> tuple[RunTerms, NodeTerms, int | None]:
    stated = [flag for field, flag in MEASURED_TERMS.items() if getattr(flags, field) is not None]
    if stated:
        raise LocalFault(f"a run under way measures what {', '.join(stated)} would state: leave that out, or --home")
    capacity, working = state.capacity, sum(node.connected and node.accepted > 0 for node in state.nodes)
    step, back = flags.step_seconds or capacity.step_seconds, capacity.turnaround_seconds
    if step is None or back is None or not capacity.supply or not working:
        raise LocalFault(
            "the run lacks what a plan is made of, a measured step, verdicts, or a connected node with accepted work: "
            "ask again while nodes work, after some steps; or give the flags without --home"
        )
    scorer = None
    if capacity.verified is not None:
        each = capacity.verified / capacity.scorers
        scorer = ScorerTerms(tokens_per_second=each, number=flags.scorers or capacity.scorers)
    run = RunTerms(
        step_seconds=step, scorer=scorer, rollouts=flags.rollouts or round(capacity.rollouts_per_step),
        group_size=flags.group or state.group_size, tokens=1.0,
        staleness=state.staleness_limit if flags.staleness is None else flags.staleness,
        period=flags.publish_every or capacity.publish_every, price=flags.learner_price,
        gamma=flags.gamma or capacity.gamma or USUAL_GAMMA, broadcast=state.broadcast.p90 or 0.0, turnaround=back,
    )  # fmt: skip
    node = NodeTerms(tokens_per_second=capacity.supply / working, price=flags.node_price)
    return run, node, flags.nodes or working
