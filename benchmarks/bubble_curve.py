"""Draw the learner's idle share against the nodes' supply: `python -m benchmarks.bubble_curve run|draw [--quick]`.

Figure 3c of ECHO-2 (arXiv 2602.02192), by runs of real processes with given times, as in `benchmarks.bubble`, at six
supplies and three seeds of model and learner. `run` adds the runs that are missing to docs/results/bubble.json, 2
minutes each on a free machine; one whose processors were busy for more than `bubble.MOST_BUSY` is not taken. `draw`
writes bubble.md and bubble.svg from them. Runs of other code are not added to: the file is removed first. The line is
1 - mu / mu_min.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks import bubble, claims
from benchmarks.harness import bench, picture
from benchmarks.harness.figure_mark import figure_mark, prose
from benchmarks.harness.picture import Linear
from benchmarks.harness.seeds import shown, standard_error
from benchmarks.paced.paced_run import Pace, made, run_paced

SUPPLIES: Final = (0.6, 0.8, 0.9, 1.0, 1.1, 1.5)
SEEDS: Final = (0, 1, 2)
STEPS: Final = 50
FOLDER: Final = Path(__file__).parents[1] / "docs" / "results"

Runs = Mapping[str, Mapping[str, float]]
"""By supply and seed: the supply by the measured period, and the idle share."""


def run(place: Path, *, quick: bool) -> int:
    """Make the runs that the file lacks, and add each to it at once; return the exit status, 2 where one was not
    taken. `quick`: one seed, two supplies, and fewer steps."""
    known, skipped = json.loads(place.read_text()) if place.exists() else {}, 0
    steps, supplies = (15, (0.8, 1.1)) if quick else (STEPS, SUPPLIES)
    for seed in SEEDS[:1] if quick else SEEDS:
        missing = [supply for supply in supplies if f"{supply:g}, seed {seed}" not in known]
        if not missing:
            continue
        with tempfile.TemporaryDirectory(prefix="echo2-bubble-") as name:
            folder = Path(name)
            origin = made(folder / "made", seed=seed)
            period = run_paced(Pace(bubble.CALIBRATING, 3.0, 2.0), origin, folder / "period").period
            for supply in missing:
                one = run_paced(Pace(steps, supply, period), origin, folder / f"supply-{supply:g}")
                print(f"supply {supply:g}, seed {seed}: {one}", flush=True)
                if one.busy > bubble.MOST_BUSY:
                    skipped += 1
                    continue
                known[f"{supply:g}, seed {seed}"] = {"supply": one.supply, "idle": one.idle, "busy": one.busy}
                place.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    if skipped:
        print(f"{skipped} runs were not taken: the processors were busy for more than {bubble.MOST_BUSY:.0%} of them")
    return 2 if skipped else 0


def of_supply(known: Runs, supply: float, figure: str) -> list[float]:
    """Return a figure of the seeds."""
    return [one[figure] for name, one in known.items() if name.startswith(f"{supply:g}, seed")]


def markdown(known: Runs) -> str:
    """Return the table."""
    rows = [
        "# Idle share against supply", "",
        prose(f"The learner's idle share in runs of real processes with given times ({STEPS} steps of 2 s); mean and "
              "standard error of the seeds."), "",
        figure_mark("python -m benchmarks.bubble_curve run", "bubble.json"), "",
        "![Idle share against supply](bubble.svg)", "",
        "| mu / mu_min | seeds | idle | 1 - mu / mu_min |", "|---|---|---|---|",
    ]  # fmt: skip
    for supply in SUPPLIES:
        idle, measured = (of_supply(known, supply, figure) for figure in ("idle", "supply"))
        if idle:
            theory = max(0.0, 1 - sum(measured) / len(measured))
            rows.append(f"| {shown(measured)} | {len(idle)} | {shown(idle)} | {theory:.3f} |")
    return "\n".join([*rows, ""])


def drawing(known: Runs) -> str:
    """Return the SVG: points with bars of one standard error, and the theory's line."""
    across = Linear(0.5, 1.6, picture.LEFT, picture.RIGHT)
    up = Linear(0, 0.5, picture.BOTTOM, picture.TOP)
    columns = {value / 10: f"{value / 10:g}" for value in range(5, 17, 2)}
    rows = {value / 10: f"{10 * value} %" for value in range(6)}
    parts = picture.grid(across, up, columns, rows, "supply over mu_min")
    ends = [(0.5, 0.5), (1.0, 0.0), (1.6, 0.0)]
    parts.append(picture.polyline([(across.at(x), up.at(y)) for x, y in ends], "c6"))
    for supply in SUPPLIES:
        idle, measured = (of_supply(known, supply, figure) for figure in ("idle", "supply"))
        if not idle:
            continue
        x, mean, error = across.at(sum(measured) / len(measured)), sum(idle) / len(idle), standard_error(idle)
        parts.append(f'<path class="c5" d="M{x} {up.at(max(0.0, mean - error))}V{up.at(mean + error)}"/>')
        parts.append(picture.circle(x, up.at(mean), "c5"))
    heading = "The learner's idle share against supply"
    return picture.svg(heading, heading, "real processes, given times; dotted: 1 - mu / mu_min", parts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["run", "draw"])
    parser.add_argument("--quick", action="store_true", help="one seed, two supplies, 15 steps, written nowhere")
    chosen = parser.parse_args(arguments)
    place = FOLDER / "bubble.json"
    if chosen.what == "draw":
        known = json.loads(place.read_text())
        (FOLDER / "bubble.md").write_text(markdown(known))
        (FOLDER / "bubble.svg").write_text(drawing(known))
        return 0
    if not chosen.quick and (why := claims.outdated(place, "python -m benchmarks.bubble_curve run")) is not None:
        print(why)
        return 2
    bench.one_thread()
    bench.header("bubble: the learner's idle share against supply, a curve", ["torch"])
    with tempfile.TemporaryDirectory(prefix="echo2-bubble-") as folder:
        return run(Path(folder) / place.name if chosen.quick else place, quick=chosen.quick)


if __name__ == "__main__":
    sys.exit(main())
