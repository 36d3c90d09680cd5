"""The held-out results of volunteers, as rows of the page, of the CSV and of Prometheus."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from echo2.coordinator.metrics.views import HeldoutResult, RunState

SHOWN = 8
"""Results on the page, beside the best one."""
COLUMNS = ("era", "version", "at", "seconds", "task", "prompts", "answers", "by_operator", "pass_1", "low", "high")


def shown(state: RunState) -> list[HeldoutResult]:
    """Return the newest results, newest first, and the best one if it is older."""
    newest = list(reversed(state.heldout[-SHOWN:]))
    return newest + [one for one in state.heldout[:-SHOWN] if one.version == state.best_version]


def as_csv(results: Iterable[HeldoutResult]) -> str:
    """Write a header and a row per result and task (RFC 4180); an empty task: all together. `pass_k`: k=value."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*COLUMNS, "pass_k"])
    for one in results:
        when = (one.era, one.version, one.at, one.seconds)
        for rate in (one.rate, *one.tasks):
            pass_k = " ".join(f"{k}={value:.6f}" for k, value in rate.pass_k)
            writer.writerow([*when, *(getattr(rate, column) for column in COLUMNS[4:]), pass_k])
    return text.getvalue()


def metrics(results: Sequence[HeldoutResult], best: int | None) -> Iterator[Metric]:
    """Yield the metrics of the newest result."""
    if not results:
        return
    newest = results[-1]
    passed = GaugeMetricFamily(
        "echo2_heldout_pass", "pass@k of held-out groups that volunteers sampled.", labels=["task", "k"]
    )
    bounds = GaugeMetricFamily(
        "echo2_heldout_pass_bound", "Interval of 95 % of pass@1.", labels=["task", "bound"]
    )  # fmt: skip
    for rate in (newest.rate, *newest.tasks):
        for k, value in ((1, rate.pass_1), *rate.pass_k):
            passed.add_metric([rate.task, str(k)], value)
        bounds.add_metric([rate.task, "low"], rate.low)
        bounds.add_metric([rate.task, "high"], rate.high)
    best_version = GaugeMetricFamily("echo2_heldout_best_version", "Version with the best held-out result.")
    if best is not None:
        best_version.add_metric([], best)
    yield from (passed, bounds, best_version)
