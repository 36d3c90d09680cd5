"""Measure learning against the age of the rollouts: `python -m benchmarks.staleness run|draw [--quick]`.

Figure 3b of ECHO-2 (arXiv 2602.02192), with the question of what harms: the age S, or S times the learning rate. The
tiny model of the demo learns `reverse` from rollouts exactly S steps old (benchmarks/learning.py), with equal numbers
of rollouts in every cell: S in `AGES`, `RATES` times the demo's rate, `OBJECTIVES`, three seeds; the other objectives
of the product (`OTHERS`) at fewer ages and rates. All cells of a seed start from one warmed-up model.

`run` adds the cells that are missing to `docs/results/staleness.json`, one after another, so it can be stopped; about
half an hour of a processor in all. `draw` makes staleness.svg (of `OBJECTIVES`) and staleness.md from them.
"""

import argparse
import copy
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import torch

from benchmarks import claims, learning
from benchmarks.harness import bench
from benchmarks.staleness.figure import drawing, markdown

AGES: Final = (0, 2, 4, 6, 8, 11, 16)
RATES: Final = (1 / 3, 1.0, 3.0)
"""Learning rates, in units of the demo's."""
OBJECTIVES: Final = ("decoupled", "grpo", "uncorrected")
OTHERS: Final = ("two_sided", "cispo", "gspo", "gepo", "dppo")
AGES_OF_OTHERS: Final = (0, 4, 8, 16)
RATES_OF_OTHERS: Final = (1.0, 3.0)
SEEDS: Final = (0, 1, 2)
FOLDER: Final = Path(__file__).parents[2] / "docs" / "results"


class Cell(NamedTuple):
    """One run. `rate`: in units of the demo's."""

    age: int
    rate: float
    objective: str
    seed: int

    @property
    def name(self) -> str:
        """The cell's key in the file."""
        return f"{self.objective}, rate {self.rate:.3g}, S {self.age}, seed {self.seed}"


def cells(*, quick: bool = False) -> Iterator[Cell]:
    """Yield the cells, seed by seed. `quick`: two ages and one objective."""
    if quick:
        yield from (Cell(age, 1.0, OBJECTIVES[0], SEEDS[0]) for age in (0, 4))
        return
    full = list(itertools.product(OBJECTIVES, RATES, AGES))
    others = list(itertools.product(OTHERS, RATES_OF_OTHERS, AGES_OF_OTHERS))
    for seed in SEEDS:
        for objective, rate, age in full + others:
            yield Cell(age, rate, objective, seed)


def measure(wanted: Sequence[Cell], place: Path, *, quick: bool = False) -> None:
    """Measure the cells that the file lacks, and add each to it at once. `quick`: in a few steps."""
    known = json.loads(place.read_text()) if place.exists() else {}
    models: dict[int, torch.nn.Module] = {}
    for cell in wanted:
        if cell.name in known:
            continue
        usual = learning.Setting(warm_steps=20, steps=8) if quick else learning.Setting()
        if cell.seed not in models:
            models = {cell.seed: learning.warmed(usual, cell.seed)}
        setting = usual._replace(staleness=cell.age, rate=cell.rate * usual.rate, objective=cell.objective)
        outcome = learning.learn(copy.deepcopy(models[cell.seed]), setting, cell.seed)  # type: ignore[arg-type]
        known[cell.name] = {
            "before": outcome.before, "sampled": outcome.after, "greedy": outcome.greedy_after,
        }  # fmt: skip
        print(f"{cell.name}: sampled {outcome.before:.3f} to {outcome.after:.3f}", flush=True)
        place.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def by_curve(known: dict[str, dict[str, float]]) -> dict[tuple[str, float], dict[int, list[float]]]:
    """Return the sampled accuracy of all seeds by age, for each objective and rate."""
    curves: dict[tuple[str, float], dict[int, list[float]]] = {}
    for cell in cells():
        if cell.name in known:
            curve = curves.setdefault((cell.objective, cell.rate), {})
            curve.setdefault(cell.age, []).append(known[cell.name]["sampled"])
    return curves


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["run", "draw"])
    parser.add_argument("--quick", action="store_true", help="two cells, written nowhere: a few steps")
    chosen = parser.parse_args(arguments)
    place = FOLDER / "staleness.json"
    if chosen.what == "run":
        if not chosen.quick and (why := claims.outdated(place, "python -m benchmarks.staleness run")) is not None:
            print(why)
            return 2
        bench.one_thread()
        torch.set_num_threads(1)
        bench.header("staleness: accuracy after equal rollouts", ["torch", "transformers"])
        with tempfile.TemporaryDirectory(prefix="echo2-staleness-") as folder:
            where = Path(folder) / place.name if chosen.quick else place
            measure(list(cells(quick=chosen.quick)), where, quick=chosen.quick)
        return 0
    known = json.loads(place.read_text())
    curves, before = by_curve(known), statistics.fmean(one["before"] for one in known.values())
    drawn = {key: curve for key, curve in curves.items() if key[0] in OBJECTIVES}
    (FOLDER / "staleness.svg").write_text(drawing(drawn))
    (FOLDER / "staleness.md").write_text(markdown(curves, before))
    return 0


if __name__ == "__main__":
    sys.exit(main())
