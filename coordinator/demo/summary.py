"""The summary of a demo, and the rules by which it succeeds. Pure.

A demo succeeds if
1. held-out accuracy, sampled and greedy, rose by at least the settings' minimum;
2. every received group has a final state: accepted, or refused with a reason;
3. all steps were made, where the settings require it;
4. no process of the coordinator died (`RunState.faults`). coordinator/demo/processes.py watches the daemons themselves;
5. with `ways`, the coordinator accepted work from a node over HTTPS only and from one behind a relay;
6. no group was refused but for coming too late: each node of a demo is honest;
7. with `engines`, it accepted work from the node of each class (coordinator/demo/engine_nodes.py).
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, Literal, get_args

from echo2.coordinator.demo import engine_nodes
from echo2.coordinator.demo.demo_settings import NARROW_ROUTES, DemoSettings
from echo2.coordinator.metrics.views import Evaluation, NodeRow, RunState
from echo2.runtime.figures import apart

Kind = Literal["sampled", "greedy"]
LATE_CODE: Final = "late"
"""The code of a group that came after its lease had expired: no fault of its tokens."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_SPARKLINE_WIDTH: Final = 40
_ROUTES: Final[Mapping[str | None, str]] = {
    "direct": "over libp2p",
    "relay": "over libp2p without an open port, dialled through the coordinator's relay",
    "https": "over HTTPS only",
    None: "not seen",
}


def sparkline(values: Sequence[float], low: float, high: float, width: int = _SPARKLINE_WIDTH) -> str:
    """Draw `values` as block characters, averaged down to `width`; `low` is the lowest block, `high` the highest."""
    if len(values) > width:
        edges = [round(place * len(values) / width) for place in range(width + 1)]
        parts = [values[start:end] for start, end in pairwise(edges)]
        values = [sum(part) / len(part) for part in parts]
    span = (high - low) or 1.0
    most = len(_BLOCKS) - 1
    return "".join(_BLOCKS[min(most, max(0, round(most * (value - low) / span)))] for value in values)


def shortcomings(state: RunState, settings: DemoSettings) -> list[str]:
    """Return a sentence per rule that is broken; empty: the demo succeeded."""
    missing = []
    rises = zip(KINDS, (settings.least_rise, settings.least_greedy_rise), strict=True)
    wanted_rises = [(kind, least) for kind, least in rises if least is not None]
    if wanted_rises and len(state.evaluations) < 2:
        missing.append("there are no two evaluations to compare")
    for kind, least in wanted_rises:
        rise = gain(state, kind)
        if rise is not None and rise < least:
            rose, wanted = apart(rise, least, decimals=3)
            missing.append(f"held-out {kind} accuracy rose by {rose}, wanted {wanted}")
    decided = state.accepted + sum(state.refused.values())
    if state.undecided or state.received != decided:
        missing.append(f"{state.received} groups were received, but {decided} have a final state")
    if settings.whole and state.step < settings.steps:
        missing.append(f"{state.step} of {settings.steps} steps were made")
    productive = {_route(node) for node in state.nodes if node.accepted}
    missing += [
        f"no work was accepted from a node connected {_ROUTES[route]}"
        for route in NARROW_ROUTES
        if settings.ways and route not in productive
    ]
    wrongly = [f"{count} {code}" for code, count in sorted(state.refused.items()) if code != LATE_CODE]
    if wrongly:
        missing.append(f"groups of honest nodes were refused: {', '.join(wrongly)}")
    missing += engine_nodes.flaws(settings.engines, state.nodes)
    missing += [f"a process of the coordinator died: {fault.what}" for fault in state.faults]
    return missing


def gain(state: RunState, kind: Kind = "sampled") -> float | None:
    """Return the rise of held-out accuracy from the first evaluation to the last; None: fewer than two."""
    if len(state.evaluations) < 2:
        return None
    first, last = _accuracy(state.evaluations[0], kind), _accuracy(state.evaluations[-1], kind)
    return last - first


def summary(state: RunState, seconds: float, busy: float) -> list[str]:
    """Return the lines printed at the end. `seconds`: the run's duration. `busy`: share of the processors' time in
    it."""
    rows = [
        *_learning(state),
        ("steps", f"{state.step} in {seconds:.0f} s, {state.version} versions, learner idle {_idle(state)}, processors "
                  f"busy {100 * busy:.0f} %"),
        *_weights(state),
        ("rollouts", f"{state.accepted * state.group_size:,} accepted in {state.accepted} groups of {state.received} "
                     f"received; {state.expired} leases expired, {state.too_old} groups too old to learn from"),
        ("refused", ", ".join(f"{count} {code}" for code, count in sorted(state.refused.items())) or "none"),
        ("staleness", _staleness(state)),
        *_points(state),
        *_routes(state),
    ]  # fmt: skip
    return [f"{name:<10}{text}" for name, text in rows]


def curve(state: RunState) -> list[str]:
    """Return the evaluations as the lines of a Markdown table, for docs/log/."""
    rewards = {point.step: point.reward for point in state.steps}
    cells = [
        [
            str(one.version),
            _reward(rewards.get(one.version)),
            f"{one.sampled:.3f}",
            f"{one.greedy:.3f}",
            str(one.prompts),
        ]
        for one in state.evaluations
    ]
    head = ["step", "reward", "held out, sampled", "held out, greedy", "prompts"]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *cells)]


def _learning(state: RunState) -> list[tuple[str, str]]:
    if not state.evaluations:
        return [("held out", "not evaluated")]
    first, last = state.evaluations[0], state.evaluations[-1]
    rows = [("held out", f"on {last.prompts} unseen prompts, version {first.version} to {last.version}")]
    for name in KINDS:
        values = [_accuracy(one, name) for one in state.evaluations]
        rows.append((f"  {name}", f"{values[0]:.3f} → {values[-1]:.3f}   {sparkline(values, 0, 1)}"))
    rewards = [point.reward for point in state.steps]
    if rewards:
        rows.append(("reward", f"{rewards[0]:.3f} → {rewards[-1]:.3f}   {sparkline(rewards, 0, max(rewards))}"))
    return rows


def _idle(state: RunState) -> str:
    return "–" if state.idle is None else f"{100 * state.idle:.1f} %"


def _weights(state: RunState) -> list[tuple[str, str]]:
    if not state.diff_bytes:
        return []
    ratio = state.full_bytes / state.diff_bytes
    text = f"{state.diff_bytes:,} bytes of diffs instead of {state.full_bytes:,} in full: {ratio:.1f} × less"
    return [("weights", text)]


def _staleness(state: RunState) -> str:
    parts, groups = [f"{age}: {count}" for age, count in enumerate(state.staleness)], sum(state.staleness)
    if not groups:
        return f"nothing used  (limit {state.staleness_limit})"
    mean = sum(age * count for age, count in enumerate(state.staleness)) / groups
    return f"{', '.join(parts)}  (steps: groups; mean {mean:.2f}, limit {state.staleness_limit})"


def _points(state: RunState) -> list[tuple[str, str]]:
    unit = "points" if state.market is None else "RE"  # the lines of the market say what was paid
    rows = [
        f"{node.name:<14}{(node.points if state.market is None else node.weight) / 1000:>9,.1f} {unit}  "
        f"{node.accepted:>4} groups accepted, {node.refused} refused"
        for node in state.nodes
    ]
    return [("nodes" if place == 0 else "", row) for place, row in enumerate(rows)]


def _routes(state: RunState) -> list[tuple[str, str]]:
    """Return rows with the route of each node; none if all connected directly."""
    if not {_route(node) for node in state.nodes} & set(NARROW_ROUTES):
        return []
    ways = [("", f"{node.name} {_ROUTES[_route(node)]}") for node in state.nodes]
    relayed = f"the coordinator relayed {state.relayed_bytes / 1e3:.1f} kB between nodes"
    return [("ways", ways[0][1]), *ways[1:], ("", relayed)]


def _route(node: NodeRow) -> str | None:
    """Return the most restricted route of a node."""
    return "relay" if node.route == "direct" and node.reached == "relay" else node.route


def _accuracy(one: Evaluation, kind: Kind) -> float:
    return one.sampled if kind == "sampled" else one.greedy


def _reward(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
