"""Prometheus metrics of the run, built from the `RunState` at each scrape: no figure is counted in two places."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

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
    info = GaugeMetricFamily("echo2_run_info", "The run; always 1.", labels=["run", "name", "model", "phase"])
    info.add_metric([state.run, state.name, state.model, state.phase], 1)
    yield info
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
        accuracy = GaugeMetricFamily("echo2_heldout_accuracy", "Held-out exact match.", labels=["sampling"])
        accuracy.add_metric(["sampled"], newest.sampled)
        accuracy.add_metric(["greedy"], newest.greedy)
        yield accuracy
        yield _gauge("echo2_heldout_version", "Version that was evaluated last.", newest.version)
    yield _counter("echo2_diff_bytes", "Bytes of the published diffs.", state.diff_bytes)
    yield _counter("echo2_full_bytes", "Bytes the same versions have in full.", state.full_bytes)
    yield _counter("echo2_faults", "Faults of the coordinator's own processes.", len(state.faults))


def of_tasks(tasks: Sequence[TaskRow]) -> Iterator[Metric]:
    """Yield the metrics of each task: its groups, rewards, failed episodes and held-out accuracy."""
    accepted = CounterMetricFamily("echo2_task_groups_accepted", "Accepted groups, by task.", labels=["task"])
    failed = CounterMetricFamily(
        "echo2_task_episodes_failed", "Failed episodes of a task's environment.", labels=["task", "reason"]
    )
    heldout = GaugeMetricFamily(
        "echo2_task_heldout_accuracy", "Held-out exact match, by task.", labels=["task", "sampling"]
    )
    recent = {
        "reward": GaugeMetricFamily("echo2_task_reward", "Mean reward of a task's last groups.", labels=["task"]),
        "success": GaugeMetricFamily(
            "echo2_task_success_ratio", "Share of the rollouts of a task's last groups that succeed.", labels=["task"]
        ),
        "signal": GaugeMetricFamily(
            "echo2_task_signal_ratio", "Share of a task's last groups whose rewards differ.", labels=["task"]
        ),
        "cut": GaugeMetricFamily(
            "echo2_task_cut_ratio", "Share of the rollouts of a task's last groups cut at the limit.", labels=["task"]
        ),
        "missing": GaugeMetricFamily(
            "echo2_task_missing_ratio", "Share of rollouts of a task's last groups without a reward.", labels=["task"]
        ),
    }
    for task in tasks:
        accepted.add_metric([task.name], task.accepted)
        for reason, count in sorted(task.failed.items()):
            failed.add_metric([task.name, reason], count)
        for sampling, share in (("sampled", task.sampled), ("greedy", task.greedy)):
            if share is not None:
                heldout.add_metric([task.name, sampling], share)
        for key, family in recent.items():
            if (value := getattr(task, key)) is not None:
                family.add_metric([task.name], value)
    yield from (accepted, failed, heldout, *recent.values())


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
    refused = CounterMetricFamily("echo2_groups_refused", "Groups refused, by reason.", labels=["reason"])
    for code, count in sorted(state.refused.items()):
        refused.add_metric([code], count)
    yield refused
    yield _counter("echo2_leases_expired", "Leases that expired unanswered.", state.expired)
    skipped = CounterMetricFamily(
        "echo2_prompts_skipped",
        "Prompts skipped, by their leases' ends; no-prompt: not given, or too long.",
        labels=["reasons"],
    )
    for reasons, count in state.skipped.items():
        skipped.add_metric([reasons], count)
    yield skipped
    yield _gauge("echo2_groups_buffered", "Groups that wait for the learner.", state.buffered)
    yield _gauge("echo2_lease_window_batches", "Most batches of groups on their way to the learner.", state.window)
    yield _gauge("echo2_groups_undecided", "Groups received and not decided yet.", state.undecided)
    yield _gauge("echo2_groups_running", "Groups that nodes work on.", state.running)
    yield _staleness(state.staleness)


def of_links(links: LinksView) -> Iterator[Metric]:
    """Yield the metrics of connections and of refused connections."""
    yield _gauge("echo2_connections", "Connections with peers over libp2p.", links.open)
    refused = CounterMetricFamily(
        "echo2_connections_refused", "Connections refused since the start, by the limit.", labels=["limit"]
    )
    for limit, count in sorted(links.refused.items()):
        refused.add_metric([limit], count)
    yield refused
    yield _counter("echo2_descriptor_shortages", "How often no descriptor was free.", links.shortages)


def of_trouble(trouble: TroubleView) -> Iterator[Metric]:
    """Yield the metrics of pauses, of groups set aside and of waiting."""
    paused = GaugeMetricFamily("echo2_paused", "1 while the run is paused, by what paused it.", labels=["kind"])
    if trouble.paused is not None:
        paused.add_metric([trouble.paused.kind], 1)
    yield paused
    told = GaugeMetricFamily(
        "echo2_pause_remedy", "1 while the run is paused: why, and what to type.", labels=["kind", "why", "remedy"]
    )
    if trouble.paused is not None:
        remedy = trouble.paused.remedy or "echo2-coord resume"
        told.add_metric([trouble.paused.kind, trouble.paused.why, remedy], 1)
    yield told
    aside = CounterMetricFamily(
        "echo2_groups_set_aside", "Groups at which the learner failed: paid, never learned from.", labels=["reason"]
    )
    for reason, groups in sorted(trouble.reasons.items()):
        aside.add_metric([reason], groups)
    yield aside
    episodes = CounterMetricFamily("echo2_episodes_failed", "Episodes that the environment failed.", labels=["reason"])
    for reason, count in sorted(trouble.episodes.items()):
        episodes.add_metric([reason], count)
    yield episodes
    yield _gauge(
        "echo2_waiting", "1 while the learner has waited for groups for a minute.", float(bool(trouble.waiting))
    )


def of_guard(guard: GuardView) -> Iterator[Metric]:
    """Yield the metrics of the guard and of its rollbacks."""
    yield _gauge("echo2_guard_best_version", "The best version by held-out results.", guard.best_version)
    left = GaugeMetricFamily(
        "echo2_guard_left", "Share of the best held-out result that the last one had, above the floor.", labels=["task"]
    )
    for task, share in sorted(guard.left.items()):
        left.add_metric([task], share)
    holds = GaugeMetricFamily("echo2_guard_holds", "Steps or evaluations in which a rule has held.", labels=["kind"])
    for row in guard.rows:
        holds.add_metric([row.kind], row.holds)
    yield holds
    yield left
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
    times = GaugeMetricFamily(
        "echo2_broadcast_seconds", "T_bcast: seconds until a version is at a node.", labels=["quantile"]
    )
    quantiles = (("0.5", broadcast.median), ("0.9", broadcast.p90), ("0.95", broadcast.p95), ("1", broadcast.slowest))
    for quantile, value in quantiles:
        if value is not None:
            times.add_metric([quantile], value)
    yield times
    yield _gauge("echo2_broadcast_applied_seconds", "Seconds until 90 % of nodes use a version.", broadcast.applied)
    yield _gauge(
        "echo2_broadcast_acknowledgements", "Acknowledgements that the seconds are measured from.", broadcast.samples
    )


def of_stages(stages: StagesView) -> Iterator[Metric]:
    """Yield medians and means of the stages of the groups learned lately; the stage "whole" is all of them together."""
    seconds = GaugeMetricFamily(
        "echo2_group_stage_seconds", "Median seconds of a stage of the groups learned lately.", labels=["stage"]
    )
    steps = GaugeMetricFamily(
        "echo2_group_stage_steps", "Median learner steps of a stage of the groups learned lately.", labels=["stage"]
    )
    means = GaugeMetricFamily(
        "echo2_group_stage_mean_steps", "Mean learner steps of a stage of the groups learned lately.", labels=["stage"]
    )
    largest = GaugeMetricFamily(
        "echo2_group_stage_largest_seconds", "Mean seconds of the stage with the largest mean.", labels=["stage"]
    )
    for stage in [*stages.parts, *([] if stages.whole is None else [stages.whole])]:
        if stage.name == stages.largest:
            largest.add_metric([stage.name], stage.mean_seconds)
        seconds.add_metric([stage.name], stage.seconds)
        if stage.steps is not None:
            steps.add_metric([stage.name], stage.steps)
        if stage.mean_steps is not None:
            means.add_metric([stage.name], stage.mean_steps)
    yield from (seconds, steps, means, largest)


def of_market(market: MarketView) -> Iterator[Metric]:
    """Yield the metrics of a market, amounts in units of its currency: rounded, the API has them exactly."""
    info = GaugeMetricFamily("echo2_market_info", "The market; always 1.", labels=["currency"])
    info.add_metric([market.currency], 1)
    yield info
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
        nodes = GaugeMetricFamily("echo2_market_nodes", "Nodes by place in the epoch.", labels=["place"])
        for place, count in (("active", running.active), ("standby", running.standby), ("run-off", running.run_off)):
            nodes.add_metric([place], count)
        yield nodes
    if last is not None:
        yield _gauge("echo2_market_last_paid", "Paid by the last closed epoch.", last.paid / NANO)
        yield _gauge("echo2_market_last_budget", "Most that the last closed epoch could pay.", last.budget / NANO)
        yield _gauge("echo2_market_last_work", "RE that the last closed epoch paid.", last.work / 1000)


def _units(amount: int | None) -> float | None:
    return None if amount is None else amount / NANO


def of_nodes(nodes: Iterable[NodeRow]) -> Iterator[Metric]:
    """Yield one sample per node, labelled by its id. A name is none: a node could make time series without end by other
    names, and so could keys without accepted work, which cost nothing."""
    labels = ["node"]
    connected = GaugeMetricFamily("echo2_node_connected", "1 while the node is connected.", labels=labels)
    accepted = CounterMetricFamily("echo2_node_groups_accepted", "Accepted groups of the node.", labels=labels)
    refused = CounterMetricFamily("echo2_node_groups_refused", "Refused groups of the node.", labels=labels)
    rollouts = CounterMetricFamily("echo2_node_rollouts", "Rollouts in accepted groups.", labels=labels)
    tokens = CounterMetricFamily("echo2_node_tokens", "Tokens in accepted groups.", labels=labels)
    work = CounterMetricFamily("echo2_node_work", "Accepted work in reference rollouts.", labels=labels)
    for node in nodes:
        key = [node.id]
        connected.add_metric(key, float(node.connected))
        accepted.add_metric(key, node.accepted)
        refused.add_metric(key, node.refused)
        rollouts.add_metric(key, node.rollouts)
        tokens.add_metric(key, node.tokens)
        work.add_metric(key, node.weight / 1000)
    yield from (connected, accepted, refused, rollouts, tokens, work)


def _of_step(metrics: Mapping[str, float]) -> Metric:
    """Return the learner's metrics of a step. A name that ends with `_age_<n>` gets the age as a label."""
    family = GaugeMetricFamily(
        "echo2_learner_metric",
        "Metric of the last step, by name; by age in steps where it is of groups of one age.",
        labels=["metric", "age"],
    )
    for name, value in sorted(metrics.items()):
        metric, _, age = name.partition("_age_")
        family.add_metric([metric, age], value)
    return family


def _gauge(name: str, text: str, value: float | None) -> Metric:
    """Return a gauge, without a sample if `value` is None."""
    family = GaugeMetricFamily(name, text)
    if value is not None:
        family.add_metric([], value)
    return family


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


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
