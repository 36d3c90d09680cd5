"""Rendering of the page as HTML from a `RunState`. The template engine escapes all text; charts.py does the layout."""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, cast

from jinja2 import Environment, PackageLoader, StrictUndefined

from echo2.coordinator.metrics.views import NodeRow, RunState
from echo2.coordinator.web import (
    broadcast_chart,
    charts,
    formatting,
    market_chart,
    refusal_texts,
    step_rows,
)
from echo2.coordinator.web.charts import Bar, Chart, Series
from echo2.coordinator.web.node_rows import Page
from echo2.ledger.standing import Rank, Standing, describe, minute

_PHASES: Mapping[str, tuple[str, str]] = {
    "starting": ("Starting", "waiting"),
    "learning": ("Learning", "good"),
    "paused": ("Paused", "waiting"),
    "finishing": ("Finishing", "waiting"),
    "finished": ("Finished", "done"),
}
NODES_SHOWN = 100
VERSIONS_SHOWN = 6
BATCHES_SHOWN = 5
_SMOOTHED_STEPS = 5  # steps


@dataclass(frozen=True)
class Volunteer:
    """A row of the ranking. `share`: share of all accepted work, 0..1. `lag`: versions behind the newest; None: no
    version. `seen`: seconds since its last request. `standing`: its trust level, in words."""

    rank: int
    node: NodeRow
    share: float
    lag: int | None
    seen: float
    standing: str


def live(state: RunState) -> str:
    """Render the parts of the page that change, which its script fetches."""
    return _environment().get_template("live.html").render(facts(state))


def page(state: RunState) -> str:
    """Render the whole page."""
    return (
        _environment().get_template("page.html").render(facts(state), style=_hash("page.css"), script=_hash("page.js"))
    )


def report(state: RunState, settings: Sequence[str]) -> str:
    """Render the run as one file that loads nothing. `settings`: those that differ from their defaults, in words."""
    style = asset("page.css").decode()
    values = facts(state) | {"kept": True, "written": minute(state.now)}
    return _environment().get_template("report.html").render(values, css=style, settings=settings)


def ranking(state: RunState, shown: Page) -> str:
    """Render a page of the complete ranking."""
    total = _work(state)
    return (
        _environment()
        .get_template("nodes.html")
        .render(
            state=state,
            volunteers=[_volunteer(state, rank, node, total) for rank, node in enumerate(shown.rows, shown.first)],
            after=shown.after,
            first=shown.first,
            known=max(state.nodes_known, len(state.nodes)),
            style=_hash("page.css"),
        )
    )


def proof(values: dict[str, Any]) -> str:
    """Render the proof of a lease's entry (proof_page.py)."""
    return _environment().get_template("proof.html").render(values, style=_hash("page.css"), script=_hash("proof.js"))


def facts(state: RunState) -> dict[str, Any]:
    """Return the values that the templates use."""
    label, mood = _PHASES.get(state.phase, (state.phase.capitalize(), "waiting"))
    refused = sum(state.refused.values())
    decided = state.accepted + refused
    total, known = _work(state), max(state.nodes_known, len(state.nodes))
    return {
        "state": state,
        "kept": False,
        "phase": label,
        "mood": mood,
        "online": online(state),
        "refused": refused,
        "accepted_share": state.accepted / decided if decided else None,
        "gain": state.evaluations[-1].sampled - state.evaluations[0].sampled if len(state.evaluations) > 1 else None,
        "times_smaller": state.full_bytes / state.diff_bytes if state.diff_bytes else None,
        "accuracy": accuracy_chart(state),
        "reward": reward_chart(state),
        "volunteers": [_volunteer(state, rank, node, total) for rank, node in enumerate(state.nodes[:NODES_SHOWN], 1)],
        "unshown": max(0, known - NODES_SHOWN),
        "known": known,
        "refusals": refusal_texts.rows(state.refused),
        "aside": list(reversed(state.trouble.set_aside))[:BATCHES_SHOWN],
        "aside_groups": sum(state.trouble.reasons.values()),
        "staleness": staleness_bars(state),
        "step_rows": step_rows.last_step_rows(state),
        "versions": list(reversed(state.versions))[:VERSIONS_SHOWN],
        "supplied": _supply_share(state),
        "spread": broadcast_chart.layout(state.broadcast, {node.id: node.name for node in state.nodes}),
        "missing": _count_unacknowledged(state),
        **market_chart.facts(state),
    }


def accuracy_chart(state: RunState) -> Chart:
    """Lay out held-out exact match over versions, 0 to 100 %."""
    shown = charts.pick_records(state.evaluations)
    sampled = [(float(one.version), one.sampled) for one in shown]
    greedy = [(float(one.version), one.greedy) for one in shown]
    hints = [
        (float(one.version), f"version {one.version}: sampled {charts.percent(one.sampled)}, "
                             f"greedy {charts.percent(one.greedy)} of {one.prompts} prompts")
        for one in shown
    ]  # fmt: skip
    return charts.line_chart(
        "accuracy",
        "Held-out accuracy",
        [Series("greedy", "second", greedy, dots=True), Series("sampled", "first", sampled, dots=True)],
        x_name="version",
        x_last=_last_x(state),
        y_ticks=(0, 0.25, 0.5, 0.75, 1),
        form="percent",
        hints=hints,
    )


def reward_chart(state: RunState) -> Chart:
    """Lay out the reward by step: raw values, faint, and their trailing mean."""
    raw = charts.thin([(float(one.step), one.reward) for one in state.steps])
    low = min([0.0, *(y for _, y in raw)])
    high = max([y for _, y in raw], default=1.0)
    return charts.line_chart(
        "reward",
        "Reward",
        [Series("reward of each step", "first", raw, faint=True),
         Series("mean", "first", charts.trailing_mean(raw, _SMOOTHED_STEPS))],
        x_name="step",
        x_last=_last_x(state),
        y_ticks=charts.nice_ticks(low, high if high > low else low + 1),
        hints=[(x, f"step {x:.0f}: reward {y:.3f}") for x, y in raw],
    )  # fmt: skip


def staleness_bars(state: RunState) -> tuple[Bar, ...]:
    """Lay out one bar per age that the staleness limit allows."""
    wanted = max(state.staleness_limit + 1, len(state.staleness))
    return charts.bars([*state.staleness, *[0] * (wanted - len(state.staleness))], "groups", "steps")


def asset(name: str) -> bytes:
    """Read a file of `static/`."""
    return files("echo2.coordinator.web").joinpath("static", name).read_bytes()


def _last_x(state: RunState) -> float:
    """Return the last x of both charts: the steps made, or the steps wanted if known."""
    steps_done = max([state.step, *(one.version for one in state.evaluations[-1:])])
    return float(max(steps_done, state.steps_wanted or 0, 1))


def _volunteer(state: RunState, rank: int, node: NodeRow, total: int) -> Volunteer:
    return Volunteer(
        rank=rank,
        node=node,
        share=node.weight / total if total else 0.0,
        lag=None if node.version is None else max(0, state.version - node.version),
        seen=max(0.0, (state.now - node.last_seen) / 1000),
        standing=_standing(node, state.now),
    )


def _standing(node: NodeRow, now: int) -> str:
    """Return a node's trust level in words, with its suspension."""
    if node.suspended_until is None or node.suspended_until <= now:
        return node.rank
    return describe(Standing(cast(Rank, node.rank), node.suspended_until, node.suspended_for))


def _count_unacknowledged(state: RunState) -> int:
    """Count the connected nodes without an acknowledgement of the newest broadcast."""
    takes = {take.node for take in state.broadcast.takes}
    seen = sum(node.connected and node.id in takes for node in state.nodes)
    return max(0, online(state) - seen - state.broadcast.unshown)


def online(state: RunState) -> int:
    """Count the connected nodes."""
    return max(state.nodes_connected, sum(node.connected for node in state.nodes))


def _work(state: RunState) -> int:
    """Return the accepted work of all nodes."""
    return max(state.weight, sum(node.weight for node in state.nodes))


def _supply_share(state: RunState) -> float | None:
    """Return the supply of rollouts as a share of the need; None: not measured."""
    need = state.capacity.need
    return state.capacity.supply / need if need else None


def compile_templates() -> None:
    """Compile all templates before the first request, as that takes 0.1 s."""
    _environment().get_template("page.html")
    _environment().get_template("live.html")
    _environment().get_template("nodes.html")
    _environment().get_template("proof.html")


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("echo2.coordinator.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    lengths = (formatting.duration, formatting.moment, formatting.ago)
    numbers = (
        formatting.count,
        formatting.short,
        formatting.size,
        formatting.times,
        formatting.points,
        formatting.amount,
    )
    named = (*lengths, *numbers, formatting.amount, formatting.clip_identity, formatting.refused_limit)
    environment.filters |= {function.__name__: function for function in named} | {"percent": charts.percent}
    return environment


@functools.cache
def _hash(name: str) -> str:
    """Return a hash of a static file for its URL, so that browsers may cache it without limit."""
    return hashlib.blake2b(asset(name), digest_size=6).hexdigest()
