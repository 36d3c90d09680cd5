"""Rendering of the page as HTML from a `RunState`. The template engine escapes all text; charts.py does the layout."""

import functools
import hashlib
import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, cast

from jinja2 import Environment, PackageLoader, StrictUndefined

from echo2.coordinator.metrics.views import NodeRow, RunState
from echo2.coordinator.submissions import rollouts_report
from echo2.coordinator.web import broadcast_chart, charts, curves, formatting, market_chart, refusal_texts, step_rows
from echo2.coordinator.web.charts import Bar
from echo2.coordinator.web.node_rows import Page
from echo2.ledger.standing import Rank, Standing, describe
from echo2.protocol.task_kinds import public_name
from echo2.runtime import figures
from echo2.runtime.units import minute

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
    return render("live.html", facts(state))


def page(state: RunState, *, suffix: str = "") -> str:
    """Render the whole page. `suffix`: see `facts`."""
    return render("page.html", facts(state, suffix=suffix))


def report(state: RunState, settings: Sequence[str]) -> str:
    """Render the run as one file that loads nothing. `settings`: those that differ from their defaults, in words."""
    return render(
        "report.html", facts(state, kept=True), css=asset("page.css").decode(), settings=settings,
        program=importlib.metadata.version("echo2"), cost=cost_per_thousand(state), work=_work(state),
    )  # fmt: skip


def cost_per_thousand(state: RunState) -> int | None:
    """Return the cost of 1,000 accepted rollouts in closed epochs, 10^-9 of the currency; None: not known, or the run
    pays in points."""
    return 1000 * state.market.spent // state.rollouts if state.market and state.rollouts else None


def ranking(state: RunState, shown: Page, *, suffix: str = "") -> str:
    """Render a page of the complete ranking. `suffix`: see `facts`."""
    return render(
        "nodes.html",
        state=state,
        volunteers=[volunteer_of(state, rank, node) for rank, node in enumerate(shown.rows, shown.first)],
        after=shown.after and f"nodes?after={shown.after}",
        first=shown.first,
        known=max(state.nodes_known, len(state.nodes)),
        suffix=suffix,
    )


def render(template: str, values: Mapping[str, Any] | None = None, **others: Any) -> str:
    """Render a template. `base`: path from its page to the site's start; "" by default."""
    return _environment().get_template(template).render({"base": "", "suffix": "", **(values or {}), **others})


def facts(state: RunState, *, kept: bool = False, suffix: str = "") -> dict[str, Any]:
    """Return the values that the templates use. `kept`: whether the page stands alone, without links. `suffix`: end of
    the file names of a copy (pages/page_export.py); empty: a coordinator serves the page."""
    label, mood = _PHASES.get(state.phase, (state.phase.capitalize(), "waiting"))
    refused = sum(state.refused.values())
    decided = state.accepted + refused
    known = max(state.nodes_known, len(state.nodes))
    return {
        "state": state,
        "kept": kept,
        "private": None,
        "suffix": suffix,
        "phase": label,
        "mood": mood,
        "online": online(state),
        "refused": refused,
        "accepted_share": state.accepted / decided if decided else None,
        "gain": state.evaluations[-1].sampled - state.evaluations[0].sampled if len(state.evaluations) > 1 else None,
        "times_smaller": state.full_bytes / state.diff_bytes if state.diff_bytes else None,
        "accuracy": curves.accuracy_chart(state),
        "reward": curves.reward_chart(state),
        "small": curves.small_charts(state),
        "volunteers": [volunteer_of(state, rank, node) for rank, node in enumerate(state.nodes[:NODES_SHOWN], 1)],
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


def staleness_bars(state: RunState) -> tuple[Bar, ...]:
    """Lay out one bar per age that the staleness limit allows."""
    wanted = max(state.staleness_limit + 1, len(state.staleness))
    return charts.bars([*state.staleness, *[0] * (wanted - len(state.staleness))], "groups", "steps")


def asset(name: str) -> bytes:
    """Read a file of `static/`."""
    return files("echo2.coordinator.web").joinpath("static", name).read_bytes()


def volunteer_of(state: RunState, rank: int, node: NodeRow) -> Volunteer:
    """Return the row of a node. `rank`: its place in the ranking."""
    total = _work(state)
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
    return state.weight or sum(node.weight for node in state.nodes)


def _supply_share(state: RunState) -> float | None:
    """Return the supply of rollouts as a share of the need; None: not measured."""
    need = state.capacity.need
    return state.capacity.supply / need if need else None


def compile_templates() -> None:
    """Compile all templates before the first request, as that takes 0.1 s."""
    for name in _environment().list_templates():
        _environment().get_template(name)


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
        figures.size,
        formatting.times,
        formatting.points,
        formatting.amount,
    )
    texts = (formatting.clip_identity, formatting.refused_limit, formatting.project_address, formatting.mark_commands)
    named = (*lengths, *numbers, *texts)
    environment.filters |= {function.__name__: function for function in named}
    environment.filters |= {"percent": charts.percent, "minute": minute, "instant": instant, "static": static_address}
    environment.filters |= {"visible": visible, "public_name": public_name}
    return environment


def instant(at: int) -> str:
    """Format a time in ms as RFC 3339."""
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def visible(text: str, most: int | None = None) -> str:
    """Return a text of a model: characters that are not printed, but for the ends of lines, are escapes."""
    cut = text if most is None or len(text) <= most else text[:most] + "…"
    return "\n".join(rollouts_report.escape(one) for one in cut.split("\n"))


@functools.cache
def static_address(name: str) -> str:
    """Return the address of a static file, with a hash of it, so that browsers may cache it without limit."""
    return f"static/{name}?{hashlib.blake2b(asset(name), digest_size=6).hexdigest()}"
