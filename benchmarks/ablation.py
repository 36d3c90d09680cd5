"""Compare the cost of a step with and without single rules, at stated prices.

    python -m benchmarks.ablation run|draw [--quick]

After Table 2 of ECHO-2 (arXiv 2602.02192): in full, without the broadcast between peers, without the choice of nodes by
cost; and with everybody paid. Runs in simulated time (benchmarks/plays) at the paper's scale: steps of 1,649 s on
eight GPUs, 128 groups each, S = 4. `whole weights` sends versions as that paper does, all 16 GB of an 8 B model every
S - 1 steps; `diffs` sends echo2's, at the largest share of the weights that was measured (a 150th), every step. Prices
are round figures of the order of what such machines are rented for; they are stated, not surveyed.

`prompts` is another question: how many leases and rollouts go to groups that teach something, where prompts differ in
difficulty, by rules of selection. The policy is a model, whose assumptions stand in
benchmarks/plays/simulated_prompts.py; nobody asks for money.

`run` writes docs/results/ablation.json, `draw` the table and the picture beside it. The same rows come from
`echo2-coord simulate`, whose command the table names.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import bench, picture
from benchmarks.harness.figure_mark import figure_mark, prose
from benchmarks.harness.picture import Linear
from benchmarks.plays.comparison import ALL, Compared, FleetTerms, NodeClass, VersionTerms, compared
from benchmarks.plays.told import GB, MB
from echo2.runtime.units import MBIT

CLASSES: Final = (
    NodeClass(4, 1.6, 1.20), NodeClass(10, 1.0, 0.69), NodeClass(10, 0.6, 0.35), NodeClass(10, 0.35, 0.16),
)  # fmt: skip
LEARNER_PRICE: Final = 12.0
UPLINK_PRICE: Final = 0.05
"""Per GB."""
STEP: Final = 1649.0
STEPS, SEEDS = 30, 5
MINUTES: Final = STEP * STEPS / 60
FULL: Final = FleetTerms(
    supply=2.0, batch=128, staleness=4, publish_every=3, step_seconds=STEP, learner_price=LEARNER_PRICE,
    classes=CLASSES, version=VersionTerms(16_000 * MB, 1000 * MBIT, 100 * MBIT, 500 * MBIT, UPLINK_PRICE / GB),
)  # fmt: skip
DIFF: Final = VersionTerms(107 * MB, 1000 * MBIT, 100 * MBIT, 500 * MBIT, UPLINK_PRICE / GB)
DIFFS: Final = FULL._replace(publish_every=1, version=DIFF)
SCENES: Final[Mapping[str, FleetTerms]] = {"whole weights": FULL, "diffs": DIFFS}
ROWS: Final[Mapping[str, str]] = {
    ALL: "in full", "star": "without peers", "any nodes": "without the choice by cost", "everybody": "everybody paid",
}  # fmt: skip
PAPER: Final[Mapping[str, float]] = {ALL: 8.098, "star": 8.432, "any nodes": 9.339}
SELECTED: Final = "prompts"
SELECTION: Final = FleetTerms(nodes=60, supply=1.5, batch=32, staleness=4, prompts=1000, group_size=8)
SELECTION_STEPS: Final = 120
SELECTION_ROWS: Final[Mapping[str, str]] = {
    ALL: "in full", "by variance": "prompts by variance", "by signal": "draw by signal",
    "without window": "by `room` alone",
    "room, signal": "by `room` alone, draw by signal",
}  # fmt: skip
FOLDER: Final = Path(__file__).parents[1] / "docs" / "results"
_PARTS: Final = (("learner", "#8c959f"), ("nodes", "#1a7f37"), ("uplink", "#bf8700"))


def command(terms: FleetTerms, seeds: int) -> str:
    """Return the `echo2-coord simulate` that has these rows among its own."""
    version = terms.version
    assert version is not None
    classes = " ".join(f"--class {one.number}:{one.speed:g}:{one.ask:g}" for one in terms.classes)
    lines = f"--uplink {version.uplink / MBIT:g} --node-uplink {version.node_uplink / MBIT:g}"
    return (
        f"echo2-coord simulate --ablate {classes} --supply {terms.supply:g} --batch {terms.batch} "
        f"--staleness {terms.staleness} --publish-every {terms.publish_every} --step-seconds {terms.step_seconds:g} "
        f"--minutes {MINUTES:g} --learner-price {terms.learner_price:g} --version-mb {version.payload / MB:g} {lines} "
        f"--node-downlink {version.node_downlink / MBIT:g} --uplink-price {version.price * GB:g} --seeds {seeds}"
    )


def selection_command(seeds: int) -> str:
    """Return the `echo2-coord simulate` that has the rows of `SELECTED` among its own."""
    return (
        f"echo2-coord simulate --ablate --nodes {SELECTION.nodes} --supply {SELECTION.supply:g} --batch "
        f"{SELECTION.batch} --staleness {SELECTION.staleness} --minutes "
        f"{SELECTION.step_seconds * SELECTION_STEPS / 60:g} --prompts {SELECTION.prompts} --group "
        f"{SELECTION.group_size} --seeds {seeds}"
    )


def figures(steps: int, selection_steps: int, seeds: int) -> dict[str, Any]:
    """Return, by scene and row, means and standard errors."""
    found: dict[str, Any] = {}
    for scene, terms in SCENES.items():
        found[scene] = {}
        for one in compared(terms, STEP * steps, seeds, ablate=True, only=ROWS):
            found[scene][one.name] = _stored(one, seeds)
            print(f"{scene}, {ROWS[one.name]}: {one.mean.cost:.3f} ± {one.error.cost:.3f}", flush=True)
    found[SELECTED] = {}
    seconds = SELECTION.step_seconds * selection_steps
    for one in compared(SELECTION, seconds, seeds, ablate=True, only=SELECTION_ROWS):
        found[SELECTED][one.name] = _stored(one, seeds)
        print(f"{SELECTED}, {SELECTION_ROWS[one.name]}: {one.mean.useful:.3f} ± {one.error.useful:.3f}", flush=True)
    return found


def _stored(one: Compared, seeds: int) -> dict[str, Any]:
    return {"mean": one.mean._asdict(), "error": one.error._asdict(), "seeds": seeds}


def markdown(found: Mapping[str, Any]) -> str:
    """Return the tables, with mean and standard error."""
    classes = "; ".join(f"{one.number} of speed {one.speed:g} at {one.ask:g}" for one in CLASSES)
    rows = [
        "# What a step costs without single rules", "",
        prose(f"After Table 2 of ECHO-2. Simulated: {STEPS} steps of {STEP:g} s, {FULL.batch} groups per step, S = "
        f"{FULL.staleness}. Prices, stated and not surveyed, per hour: learner {LEARNER_PRICE:g}; nodes: {classes}; "
        f"and {UPLINK_PRICE:g} per GB that the coordinator sends. Nodes for {FULL.gamma:g} times the need are chosen "
        "among twice the need. Lines: coordinator 1,000 Mbit/s up, nodes 100 up and 500 down. Mean and standard error "
        "of the seeds."), "",
        figure_mark("python -m benchmarks.ablation run", "ablation.json"), "",
        "![Cost of a step by row](ablation.svg)", "",
    ]  # fmt: skip
    for scene in SCENES:
        by_row = found[scene]
        columns = ["", "cost of a step", "against in full", "in ECHO-2", "idle", "age, steps", "active", "copies sent"]
        rows += [f"## {scene}", "", f"`{command(SCENES[scene], by_row[ALL]['seeds'])}`", ""]
        rows += [_cells(columns), "|---" * len(columns) + "|"]
        rows += [_cells(_row(name, by_row)) for name in ROWS]
        rows.append("")
    return "\n".join([*rows, *_selection(found[SELECTED]), ""])


def _selection(by_row: Mapping[str, Any]) -> list[str]:
    columns = ["", "groups with signal", "leases per such group", "through the learner", "mean advantage", "age, steps"]
    return [
        f"## {SELECTED}", "",
        prose("Which groups teach something: "
        f"{SELECTION.prompts:,} prompts of several difficulties, {SELECTION_STEPS} steps "
        f"of {SELECTION.batch} groups of {SELECTION.group_size}. Shares are of the groups learned from, and of their "
        "rollouts. The policy is a model of a few lines (benchmarks/plays/simulated_prompts.py), in which a step "
        "has no noise: how good a policy becomes is not in it. `python -m benchmarks.selection` asks a real one."), "",
        f"`{selection_command(by_row[ALL]['seeds'])}`", "",
        _cells(columns), "|---" * len(columns) + "|",
        *(_cells(_selection_row(name, by_row[name])) for name in SELECTION_ROWS),
    ]  # fmt: skip


def _selection_row(name: str, one: Mapping[str, Any]) -> list[str]:
    mean, error = one["mean"], one["error"]
    return [
        SELECTION_ROWS[name],
        f"{mean['signal']:.1%} ± {error['signal']:.1%}",
        f"{mean['useful']:.3f} ± {error['useful']:.3f}",
        f"{mean['passed']:.1%} ± {error['passed']:.1%}",
        f"{mean['strength']:.3f} ± {error['strength']:.3f}",
        f"{mean['age']:.2f} ± {error['age']:.2f}",
    ]


def _row(name: str, by_row: Mapping[str, Any]) -> list[str]:
    mean, error, full = by_row[name]["mean"], by_row[name]["error"], by_row[ALL]["mean"]
    return [
        ROWS[name],
        f"{mean['cost']:.3f} ± {error['cost']:.3f}",
        f"{mean['cost'] / full['cost']:.3f}",
        f"{PAPER[name] / PAPER[ALL]:.3f}" if name in PAPER else "–",
        f"{mean['idle']:.1%} ± {error['idle']:.1%}",
        f"{mean['age']:.2f} ± {error['age']:.2f}",
        f"{mean['active']:.1f}",
        f"{mean['copies']:.1f}",
    ]


def _cells(values: Sequence[str]) -> str:
    return f"| {' | '.join(values)} |"


def drawing(found: Mapping[str, Any]) -> str:
    """Return the SVG: a bar per scene and row, of the learner's part, the nodes' and the uplink's."""
    bars = [(scene, name, found[scene][name]) for scene in SCENES for name in ROWS]
    most = max(one["mean"]["cost"] + one["error"]["cost"] for _, _, one in bars)
    up = Linear(0, most * 1.05, picture.BOTTOM, picture.TOP + 20)
    wide = (picture.WIDTH - picture.LEFT - 20) / (len(bars) + len(SCENES) - 1)
    parts = list[str]()
    for tick in up.ticks():
        y = up.at(tick)
        parts.append(f'<path class="grid" d="M{picture.LEFT} {y}H{picture.WIDTH - 20}"/>')
        parts.append(picture.text(picture.LEFT - 8, y + 4, f"{tick:g}", "small", "end"))
    for place, (scene, name, one) in enumerate(bars):
        x = picture.LEFT + wide * (place + list(SCENES).index(scene))
        parts += _bar(x + wide * 0.15, wide * 0.7, up, one)
        parts.append(picture.text(x + wide / 2, picture.BOTTOM + 16, _short(name), "small", "middle"))
    for number, scene in enumerate(SCENES):
        middle = picture.LEFT + wide * (number * (len(ROWS) + 1) + len(ROWS) / 2)
        parts.append(picture.text(middle, picture.BOTTOM + 36, scene, "", "middle"))
    for number, (part, colour) in enumerate(_PARTS):
        x = picture.LEFT + 110 * number
        parts.append(f'<rect x="{x}" y="{picture.HEIGHT - 22}" width="12" height="12" fill="{colour}"/>')
        parts.append(picture.text(x + 18, picture.HEIGHT - 12, part, "small"))
    heading = "Cost of a step, at stated prices, without single rules"
    return picture.svg(heading, heading, "simulated; means of the seeds, bars of one standard error", parts)


def _short(name: str) -> str:
    return {ALL: "in full", "star": "no peers", "any nodes": "any nodes", "everybody": "all paid"}[name]


def _bar(x: float, wide: float, up: Linear, one: Mapping[str, Any]) -> list[str]:
    mean, error, low = one["mean"], one["error"]["cost"], 0.0
    of_learner = mean["cost"] - mean["of_nodes"] - mean["of_uplink"]
    parts = list[str]()
    for (_, colour), value in zip(_PARTS, (of_learner, mean["of_nodes"], mean["of_uplink"]), strict=True):
        top = up.at(low + value)
        parts.append(
            f'<rect x="{x:.1f}" y="{top}" width="{wide:.1f}" height="{up.at(low) - top:.1f}" fill="{colour}"/>'
        )
        low += value
    middle, (least, most) = x + wide / 2, (up.at(low - error), up.at(low + error))
    parts.append(f'<path d="M{middle:.1f} {least}V{most}" stroke="#1f2328" stroke-width="2"/>')
    return parts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["run", "draw"])
    parser.add_argument("--quick", action="store_true", help="one seed, 10 steps, written nowhere")
    chosen = parser.parse_args(arguments)
    place = FOLDER / "ablation.json"
    if chosen.what == "draw":
        found = json.loads(place.read_text())
        (FOLDER / "ablation.md").write_text(markdown(found))
        (FOLDER / "ablation.svg").write_text(drawing(found))
        return 0
    bench.header("the cost of a step without single rules, simulated", ["numpy"])
    found = figures(10, 10, 1) if chosen.quick else figures(STEPS, SELECTION_STEPS, SEEDS)
    if not chosen.quick:
        place.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
