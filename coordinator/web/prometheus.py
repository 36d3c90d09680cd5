"""Prometheus metrics of the run, built from the `RunState` at each scrape: no figure is counted in two places."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from echo2.coordinator.metrics.market_views import MarketView
from echo2.coordinator.metrics.trouble_views import GuardView, TroubleView
from echo2.coordinator.metrics.views import BroadcastView, LinksView, NodeRow, RunState, StagesView, TaskRow
from echo2.coordinator.web.page import online
from echo2.protocol.sealed_asks import NANO

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _RunCollector(Collector):
    def __init__(self, state: RunState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        yield from of_learning(self._state)
        yield from of_tasks(self._state.tasks)
        yield from of_work(self._state)
        yield from of_trouble(self._state.trouble)
        yield from of_guard(self._state.guard)
        yield from of_links(self._state.links)
        yield from of_capacity(self._state)
        yield from of_broadcast(self._state.broadcast)
        yield from of_stages(self._state.stages)
        if self._state.market is not None:
            yield from of_market(self._state.market)
        yield _gauge("echo2_nodes_connected", "Nodes that are connected.", online(self._state))
        yield from of_nodes(node for node in self._state.nodes if node.accepted)


def exposition(state: RunState) -> bytes:
    """Encode the metrics in the text format, version 0.0.4."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_RunCollector(state))
    return generate_latest(registry)


def of_learning(state: RunState) -> Iterator[Metric]:
    """Yield the metrics of the learner, its versions and their accuracy."""
    facts = (state.run, state.name, state.model, state.phase)
    yield _gauges("echo2_run_info", "The run; always 1.", ["run", "name", "model", "phase"], {facts: 1})
    yield _gauge("echo2_step", "Steps the learner has made.", state.step)
    yield _gauge("echo2_version", "Newest published version.", state.version)
    yield _gauge("echo2_era", "Era of the policy.", state.era)
    yield _gauge("echo2_start_time_seconds", "When the run was started, Unix seconds.", state.started / 1000)
    yield _gauge("echo2_learner_idle_ratio", "Share of the learner's time spent waiting for groups.", state.idle)
    if state.steps:
        last = state.steps[-1]
        yield _gauge("echo2_reward", "Mean reward of the last step's rollouts.", last.reward)
        yield _gauge("echo2_success_ratio", "Share of the last step's rollouts that succeed.", last.success)
        yield _gauge(
            "echo2_cut_answers_ratio", "Share of the last step's rollouts that the token limit cut.", last.cut_answers
        )
        yield _gauge("echo2_step_seconds", "Seconds the last step took.", last.seconds)
        yield _of_step(last.metrics)
    if state.evaluations:
        newest = state.evaluations[-1]
        accuracy = {"sampled": newest.sampled, "greedy": newest.greedy}
        yield _gauges("echo2_heldout_accuracy", "Held-out exact match.", "sampling", accuracy)
        yield _gauge("echo2_heldout_version", "Version that was evaluated last.", newest.version)
    yield _counter("echo2_diff_bytes", "Bytes of the published diffs.", state.diff_bytes)
    yield _counter("echo2_full_bytes", "Bytes the same versions have in full.", state.full_bytes)
    yield _counter("echo2_faults", "Faults of the coordinator's own processes.", len(state.faults))


def of_tasks(tasks: Sequence[TaskRow]) -> Iterator[Metric]:
    """Yield the metrics of each task: its groups, rewards, failed episodes and held-out accuracy."""
    accepted = {task.name: task.accepted for task in tasks}
    yield _counters("echo2_task_groups_accepted", "Accepted groups, by task.", "task", accepted)
    failed = {(task.name, reason): count for task in tasks for reason, count in sorted(task.failed.items())}
    what = "Failed episodes of a task's environment."
    yield _counters("echo2_task_episodes_failed", what, ["task", "reason"], failed)
    shares = {(task.name, sampling): getattr(task, sampling) for task in tasks for sampling in ("sampled", "greedy")}
    yield _gauges("echo2_task_heldout_accuracy", "Held-out exact match, by task.", ["task", "sampling"], shares)
    for name, field, text in (
        ("reward", "reward", "Mean reward of a task's last groups."),
        ("success_ratio", "success", "Share of the rollouts of a task's last groups that succeed."),
        ("signal_ratio", "signal", "Share of a task's last groups whose rewards differ."),
        ("cut_ratio", "cut", "Share of the rollouts of a task's last groups cut at the limit."),
        ("missing_ratio", "missing", "Share of rollouts of a task's last groups without a reward."),
    ):
        yield _gauges(f"echo2_task_{name}", text, "task", {task.name: getattr(task, field) for task in tasks})


def of_work(state: RunState) -> Iterator[Metric]:
    """Yield the metrics of groups: leased, received, decided, used."""
    yield _counter("echo2_groups_received", "Groups received.", state.received)
    yield _counter("echo2_groups_accepted", "Groups accepted.", state.accepted)
    yield _counter("echo2_groups_too_old", "Groups accepted, but too old to learn from.", state.too_old)
    yield _counter("echo2_groups_spare", "Groups accepted of which a twin is learned from.", state.spare)
    yield _counter("echo2_canaries", "Leases given whose answer was known.", state.canaries.given)
    yield _counter("echo2_canaries_agreed", "Canaries accepted by comparison alone.", state.canaries.agreed)
    yield _counter("echo2_audits", "Leases given that another node had too.", state.audits.given)
    yield _counter("echo2_audits_agreed", "Audits whose two groups were equal.", state.audits.agreed)
    yield _counter("echo2_audits_differed", "Audits whose two groups differed.", state.audits.differed)
    yield _counter("echo2_audits_doubted", "Audits whose equal groups speak against the scorer.", state.audits.doubted)
    yield _gauge("echo2_audits_share", "Share of audits and canaries in the accepted work.", state.audits.share)
    yield _counter("echo2_groups_unscored", "Groups accepted to which the task gave no finite reward.", state.unscored)
    yield _counters("echo2_groups_refused", "Groups refused, by reason.", "reason", dict(sorted(state.refused.items())))
    yield _counter("echo2_leases_expired", "Leases that expired unanswered.", state.expired)
    skipped = "Prompts skipped, by their leases' ends; no-prompt: not given, or too long."
    yield _counters("echo2_prompts_skipped", skipped, "reasons", state.skipped)
    yield _gauge("echo2_groups_buffered", "Groups that wait for the learner.", state.buffered)
    yield _gauge("echo2_lease_window_batches", "Most batches of groups on their way to the learner.", state.window)
    yield _gauge("echo2_groups_undecided", "Groups received and not decided yet.", state.undecided)
    yield _gauge("echo2_groups_running", "Groups that nodes work on.", state.running)
    yield _staleness(state.staleness)


def of_links(links: LinksView) -> Iterator[Metric]:
    """Yield the metrics of connections and of refused connections."""
    yield _gauge("echo2_connections", "Connections with peers over libp2p.", links.open)
    refused = dict(sorted(links.refused.items()))
    yield _counters("echo2_connections_refused", "Connections refused since the start, by the limit.", "limit", refused)
    yield _counter("echo2_descriptor_shortages", "How often no descriptor was free.", links.shortages)


def of_trouble(trouble: TroubleView) -> Iterator[Metric]:
    """Yield the metrics of pauses, of groups set aside and of waiting."""
    pause = trouble.paused
    paused = {} if pause is None else {pause.kind: 1}
    yield _gauges("echo2_paused", "1 while the run is paused, by what paused it.", "kind", paused)
    told = {} if pause is None else {(pause.kind, pause.why, pause.remedy or "echo2-coord resume"): 1}
    what = "1 while the run is paused: why, and what to type."
    yield _gauges("echo2_pause_remedy", what, ["kind", "why", "remedy"], told)
    aside, failed = dict(sorted(trouble.reasons.items())), dict(sorted(trouble.episodes.items()))
    what = "Groups at which the learner failed: paid, never learned from."
    yield _counters("echo2_groups_set_aside", what, "reason", aside)
    yield _counters("echo2_episodes_failed", "Episodes that the environment failed.", "reason", failed)
    yield _gauge(
        "echo2_waiting", "1 while the learner has waited for groups for a minute.", float(bool(trouble.waiting))
    )


def of_guard(guard: GuardView) -> Iterator[Metric]:
    """Yield the metrics of the guard and of its rollbacks."""
    yield _gauge("echo2_guard_best_version", "The best version by held-out results.", guard.best_version)
    holds, left = {row.kind: row.holds for row in guard.rows}, dict(sorted(guard.left.items()))
    yield _gauges("echo2_guard_holds", "Steps or evaluations in which a rule has held.", "kind", holds)
    what = "Share of the best held-out result that the last one had, above the floor."
    yield _gauges("echo2_guard_left", what, "task", left)
    yield _gauge("echo2_learning_rate_factor", "Factor of learner.learning_rate, by rollbacks.", guard.rate)
    again = guard.rollbacks[-1].new_version if guard.rollbacks else None
    yield _gauge("echo2_rollback_version", "The version as which the last rollback published another.", again)


def of_capacity(state: RunState) -> Iterator[Metric]:
    """Yield the terms of the capacity model, without a sample where not measured."""
    capacity = state.capacity
    yield _gauge("echo2_capacity_step_seconds", "T: seconds a step takes.", capacity.step_seconds)
    yield _gauge(
        "echo2_capacity_turnaround_seconds",
        "B: seconds from a version to a verdict on a group that hardly waited.",
        capacity.turnaround_seconds,
    )
    yield _gauge("echo2_capacity_rollouts_per_step", "R: rollouts per step.", capacity.rollouts_per_step)
    yield _gauge("echo2_capacity_publish_every", "kappa: steps from version to version.", capacity.publish_every)
    yield _gauge("echo2_capacity_supply", "Rollouts per second that nodes deliver.", capacity.supply)
    yield _gauge("echo2_capacity_longest_period", "kappa*: longest period without idle time.", capacity.longest_period)
    yield _gauge("echo2_capacity_scorers", "Scorers that can work.", capacity.scorers)
    yield _gauge("echo2_capacity_verified", "Rollouts per second that all scorers verify.", capacity.verified)
    yield _gauge("echo2_capacity_need", "Rollouts per second that keep the learner busy.", capacity.need)


def of_broadcast(broadcast: BroadcastView) -> Iterator[Metric]:
    """Yield the delivery times of the last versions, over nodes with accepted work."""
    times = {"0.5": broadcast.median, "0.9": broadcast.p90, "0.95": broadcast.p95, "1": broadcast.slowest}
    yield _gauges("echo2_broadcast_seconds", "T_bcast: seconds until a version is at a node.", "quantile", times)
    yield _gauge("echo2_broadcast_applied_seconds", "Seconds until 90 % of nodes use a version.", broadcast.applied)
    yield _gauge(
        "echo2_broadcast_acknowledgements", "Acknowledgements that the seconds are measured from.", broadcast.samples
    )


def of_stages(stages: StagesView) -> Iterator[Metric]:
    """Yield medians and means of the stages of the groups learned lately; the stage "whole" is all of them together."""
    shown = [*stages.parts, *([] if stages.whole is None else [stages.whole])]
    largest = {stage.name: stage.mean_seconds for stage in shown if stage.name == stages.largest}
    of_lately = "of a stage of the groups learned lately."
    for name, text, values in (
        ("seconds", f"Median seconds {of_lately}", {stage.name: stage.seconds for stage in shown}),
        ("steps", f"Median learner steps {of_lately}", {stage.name: stage.steps for stage in shown}),
        ("mean_steps", f"Mean learner steps {of_lately}", {stage.name: stage.mean_steps for stage in shown}),
        ("largest_seconds", "Mean seconds of the stage with the largest mean.", largest),
    ):
        yield _gauges(f"echo2_group_stage_{name}", text, "stage", values)


def of_market(market: MarketView) -> Iterator[Metric]:
    """Yield the metrics of a market, amounts in units of its currency: rounded, the API has them exactly."""
    yield _gauges("echo2_market_info", "The market; always 1.", "currency", {market.currency: 1})
    yield _gauge("echo2_market_spent", "Spent of the operator's money in closed epochs.", market.spent / NANO)
    yield _gauge("echo2_market_step_cost", "Cost of a step at the last epoch's pay.", _units(market.step_cost))
    running, last = market.running, market.last
    if running is not None:
        yield _gauge("echo2_market_epoch", "The epoch that runs.", running.epoch)
        yield _gauge("echo2_market_need", "RE per hour that the epoch buys.", running.need / 1000)
        yield _gauge("echo2_market_short", "RE per hour of the need that nobody offers.", running.short / 1000)
        yield _gauge("echo2_market_reserve_price", "Highest price per RE.", running.reserve / NANO)
        yield _gauge("echo2_market_clearing_price", "Highest price per RE of an active node.", _units(running.clearing))
        yield _gauge("echo2_market_budget", "Most that the epoch pays.", running.budget / NANO)
        yield _gauge("echo2_market_earned", "Earned in the epoch so far, about.", _units(running.earned))
        yield _gauge("echo2_market_budget_binds", "1 while the budget keeps nodes out.", float(running.binding))
        places = {"active": running.active, "standby": running.standby, "run-off": running.run_off}
        yield _gauges("echo2_market_nodes", "Nodes by place in the epoch.", "place", places)
    if last is not None:
        yield _gauge("echo2_market_last_paid", "Paid by the last closed epoch.", last.paid / NANO)
        yield _gauge("echo2_market_last_budget", "Most that the last closed epoch could pay.", last.budget / NANO)
        yield _gauge("echo2_market_last_work", "RE that the last closed epoch paid.", last.work / 1000)


def _units(amount: int | None) -> float | None:
    return None if amount is None else amount / NANO


def of_nodes(nodes: Iterable[NodeRow]) -> Iterator[Metric]:
    """Yield one sample per node, labelled by its id. A name is none: a node could make time series without end by other
    names, and so could keys without accepted work, which cost nothing."""
    shown = list(nodes)
    connected = {node.id: float(node.connected) for node in shown}
    yield _gauges("echo2_node_connected", "1 while the node is connected.", "node", connected)
    for name, text, values in (
        ("groups_accepted", "Accepted groups of the node.", {node.id: node.accepted for node in shown}),
        ("groups_refused", "Refused groups of the node.", {node.id: node.refused for node in shown}),
        ("rollouts", "Rollouts in accepted groups.", {node.id: node.rollouts for node in shown}),
        ("tokens", "Tokens in accepted groups.", {node.id: node.tokens for node in shown}),
        ("work", "Accepted work in reference rollouts.", {node.id: node.weight / 1000 for node in shown}),
    ):
        yield _counters(f"echo2_node_{name}", text, "node", values)


def _of_step(metrics: Mapping[str, float]) -> Metric:
    """Return the learner's metrics of a step. A name that ends with `_age_<n>` gets the age as a label."""
    named = {(name.partition("_age_")[0], name.partition("_age_")[2]): value for name, value in sorted(metrics.items())}
    text = "Metric of the last step, by name; by age in steps where it is of groups of one age."
    return _gauges("echo2_learner_metric", text, ["metric", "age"], named)


Values = Mapping[Any, float | None]
"""Value of each label, or of all labels together, as a tuple; None: there is no sample of it."""


def _gauge(name: str, text: str, value: float | None) -> Metric:
    """Return a gauge, without a sample if `value` is None."""
    return _with_values(GaugeMetricFamily(name, text, labels=()), {(): value})


def _gauges(name: str, text: str, labels: str | Sequence[str], values: Values) -> Metric:
    return _with_values(GaugeMetricFamily(name, text, labels=_all(labels)), values)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _counters(name: str, text: str, labels: str | Sequence[str], values: Values) -> Metric:
    return _with_values(CounterMetricFamily(name, text, labels=_all(labels)), values)


def _all(labels: str | Sequence[str]) -> Sequence[str]:
    return (labels,) if isinstance(labels, str) else labels


def _with_values(family: CounterMetricFamily | GaugeMetricFamily, values: Values) -> Metric:
    for named, value in values.items():
        if value is not None:
            family.add_metric(_all(named), value)
    return family


def _staleness(counts: list[int]) -> Metric:
    """Return the histogram of staleness, with cumulative buckets as Prometheus requires."""
    buckets, total = [], 0
    for age, count in enumerate(counts):
        total += count
        buckets.append((str(float(age)), float(total)))
    weighted = float(sum(age * count for age, count in enumerate(counts)))
    return HistogramMetricFamily(
        "echo2_staleness_steps",
        "Steps between a group's version and its use.",
        buckets=[*buckets, ("+Inf", float(total))],
        sum_value=weighted,
    )
