"""Compare modes of a run at equal time and at equal rollouts: `python -m benchmarks.modes run|draw [--quick]`.

`sequential` (the nodes generate while the learner waits, S = 0) against `async` (S = 4) with leases bounded by the
window and by `room`: Echo's two modes, and freshness against the older rule. Runs of real processes (benchmarks/paced):
a step lasts 1 s, four nodes supply 1.2 times what the learner then needs, and the tiny model learns `reverse`. One run
of each mode and seed gives both figures: held-out accuracy `SECONDS` after the first version, and at version `VERSION`.

`run` adds the runs that are missing to docs/results/modes.json, about 2 minutes each on a free machine; `draw` writes
modes.md and modes.svg from them. Runs of other code are not added to: the file is removed first.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import claims
from benchmarks.harness import bars, bench
from benchmarks.harness.figure_mark import figure_mark
from benchmarks.harness.seeds import shown, standard_error
from benchmarks.paced import paced_run
from benchmarks.paced.paced_run import Pace
from echo2.coordinator.demo.demo_settings import TINY_DEMO, DemoSettings
from echo2.coordinator.metrics.views import Evaluation, RunState

MODES: Final[Mapping[str, tuple[Mapping[str, Any], bool]]] = {
    "sequential": ({"mode": "sequential", "staleness": 0}, False),
    "async, window": ({}, True),
    "async, room": ({}, False),
}
"""By name: settings of the run, and whether its leases are bounded by the window."""
SEEDS: Final = (0, 1, 2)
SECONDS: Final = 40.0
VERSION: Final = 32
STEPS: Final = 48
SUPPLY: Final = 1.2
FOLDER: Final = Path(__file__).parents[1] / "docs" / "results"
AGED: Final = ("decoupled, rate 1, S 0", "decoupled, rate 1, S 4")
"""Cells of benchmarks.staleness with these runs' objective and rate: groups of age 0, and of age 4."""


def settings_of(mode: str, *, quick: bool = False) -> DemoSettings:
    """Return the settings of a mode's runs. `quick`: after a short warm-up."""
    changed = {**TINY_DEMO.run, "evaluate_every": 4, **MODES[mode][0]}
    return dataclasses.replace(paced_run.TIMED if quick else TINY_DEMO, run=changed)


def accuracy(evaluations: Sequence[Evaluation], by: float) -> float:
    """Return the sampled accuracy at a version, between two evaluations on a straight line. `by`: the version, maybe
    between two."""
    earlier = [one for one in evaluations if one.version <= by][-1]
    later = next((one for one in evaluations if one.version >= by), earlier)
    span = later.version - earlier.version
    share = (by - earlier.version) / span if span else 0.0
    return earlier.sampled + share * (later.sampled - earlier.sampled)


def version_after(state: RunState, seconds: float) -> float:
    """Return the version that a run had so many seconds after its first one, by the times of its steps."""
    first = state.steps[0].at
    return float(max((one.step for one in state.steps if one.at <= first + 1000 * seconds), default=0))


def figures(first: RunState, last: RunState) -> dict[str, float]:
    """Return the figures of a run by two looks at it."""
    reached = version_after(last, SECONDS)
    groups = max(1, sum(last.staleness))
    return {
        "versions": reached,
        "at equal time": accuracy(last.evaluations, reached),
        "at equal rollouts": accuracy(last.evaluations, min(VERSION, last.evaluations[-1].version)),
        "mean age": sum(age * count for age, count in enumerate(last.staleness)) / groups,
        "idle": last.idle or 0.0,
    }


def run(place: Path, *, quick: bool) -> None:
    """Make the runs that the file lacks, and add each to it at once. `quick`: one seed, and fewer steps."""
    known = json.loads(place.read_text()) if place.exists() else {}
    for seed in SEEDS[:1] if quick else SEEDS:
        for mode, (_, windowed) in MODES.items():
            name = f"{mode}, seed {seed}"
            if name in known:
                continue
            with tempfile.TemporaryDirectory(prefix="echo2-modes-") as folder:
                origin = paced_run.made(Path(folder) / "made", settings_of(mode, quick=quick), seed)
                batch = int(TINY_DEMO.run["batch_groups"])
                pace = Pace(12 if quick else STEPS, SUPPLY, 1.0, step_seconds=1.0, windowed=windowed, batch=batch)
                first, last = paced_run.looks(pace, origin, Path(folder) / "copy")
            known[name] = {
                **figures(first.state, last.state),
                "processors busy": first.processors.share_until(last.processors),
            }
            print(f"{name}: {known[name]}", flush=True)
            place.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def markdown(known: Mapping[str, Mapping[str, float]]) -> str:
    """Return the table: means and standard errors of the seeds."""
    columns = list(next(iter(known.values())))
    rows = [
        "# Modes at equal time and at equal rollouts", "",
        f"Held-out accuracy, sampled, {SECONDS:.0f} s after the first version and at version {VERSION}; mean and "
        "standard error of the seeds.", "",
        figure_mark("python -m benchmarks.modes run", "modes.json"), "",
        "![Held-out accuracy by mode](modes.svg)", "",
        f"| mode | seeds | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|",
    ]  # fmt: skip
    for mode in MODES:
        runs = [figures for name, figures in known.items() if name.startswith(f"{mode}, seed")]
        if runs:
            cells = [shown([one[column] for one in runs]) for column in columns]
            rows.append(f"| {mode} | {len(runs)} | {' | '.join(cells)} |")
    told = window_gain(known, json.loads((FOLDER / "staleness.json").read_text()))
    return "\n".join([*rows, *(["", *told] if told else []), ""])


def window_gain(known: Mapping[str, Mapping[str, float]], aged: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Say what the window brings against `room` at equal time, and why, where it brings nothing; empty: no seed has
    both. `aged`: the cells of benchmarks.staleness."""
    names = [(f"async, window, seed {seed}", f"async, room, seed {seed}") for seed in SEEDS]
    pairs = [(known[window], known[room]) for window, room in names if window in known and room in known]
    gains = [window["at equal time"] - room["at equal time"] for window, room in pairs if "at equal time" in window]
    if not gains:
        return []
    younger = statistics.fmean(room["mean age"] - window["mean age"] for window, room in pairs)
    if statistics.fmean(gains) > standard_error(gains):
        told = f"At equal time the window gains {shown(gains)} in accuracy:"
        return [f"{told} its groups are {younger:.1f} steps younger."]
    fresh, old = (
        statistics.fmean(one["sampled"] for name, one in aged.items() if name.startswith(cell)) for cell in AGED
    )
    return [
        f"At equal time the window gains nothing in accuracy: {shown(gains)}, seed by seed. Its groups are "
        f"{younger:.1f}",
        f"steps younger, but the objective corrects for age: from age 0 to age 4 it loses {fresh - old:.3f} in all",
        "([staleness](staleness.md)), no more than the seeds differ by.",
    ]


def drawing(known: Mapping[str, Mapping[str, float]]) -> str:
    """Return the SVG: accuracy at equal time and at equal rollouts, a bar per mode."""
    groups = {
        figure: {
            mode: [figures[figure] for name, figures in known.items() if name.startswith(f"{mode}, seed")]
            for mode in MODES
            if any(name.startswith(f"{mode}, seed") for name in known)
        }
        for figure in ("at equal time", "at equal rollouts")
    }
    return bars.drawing(
        "Held-out accuracy by mode", "sampled; means of the seeds, bars of one standard error", groups, 1.0
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["run", "draw"])
    parser.add_argument("--quick", action="store_true", help="one seed, 12 steps, written nowhere")
    chosen = parser.parse_args(arguments)
    place = FOLDER / "modes.json"
    if chosen.what == "draw":
        known = json.loads(place.read_text())
        (FOLDER / "modes.md").write_text(markdown(known))
        (FOLDER / "modes.svg").write_text(drawing(known))
        return 0
    if not chosen.quick and (why := claims.outdated(place, "python -m benchmarks.modes run")) is not None:
        print(why)
        return 2
    bench.one_thread()
    bench.header("modes: sequential and async runs", ["torch"])
    with tempfile.TemporaryDirectory(prefix="echo2-modes-") as folder:
        run(Path(folder) / place.name if chosen.quick else place, quick=chosen.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
