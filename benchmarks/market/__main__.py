"""Measure pay: `python -m benchmarks.market [--quick]`.

Claims:

    CPU per point   for each engine by itself the CPU seconds per point of nine shapes of prompt and completion are
                    within a factor of 2; how far engines are from each other is printed
    false asks      under `pivot` a false ask gains at most 0.01 % of a node's cost, over 200 seeded markets of 40 nodes
                    whose budget does not bind, also with the cap on an owner's share; other prices, and a budget that
                    binds, are printed beside, and what each pays beyond the costs of the cheapest nodes
    turn-over       of a market of 10,000 nodes on disk no slice of the turn-over takes more than 0.55 of the CPU
                    time in which an epoch of as many nodes closes and opens in memory
    epoch           to close an epoch of 10,000 nodes and to open the next costs at most 30 times a bare sort of costs

    study           (`--study` alone) in markets of any size no false ask gains under `pivot`; cheating that is seen, in
                    exact classes at any rate, has a profit below zero

`--table2`: what a step costs without the choice by cost, after ECHO-2. `--places`: what nodes are measured at that work
on several groups at once. `--prices`: the claims about false asks and
epochs alone, which need no engine; `--turn-over`: that one alone. `--shapes [ENGINE ...]`: the claims about CPU per
point alone, of the operator's engine and of these; of all that are installed where none is named. The model has
SmolLM2-135M's shape and random weights; with --quick, 8 M weights. One thread.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import bench

bench.one_thread()

from benchmarks.harness.bench import Claim  # noqa: E402
from benchmarks.market import cpu_per_point, epoch_close, false_asks, places, study, table2, turn_over  # noqa: E402
from benchmarks.rollout import prepare  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="20 markets instead of 200, a model of 8 M weights")
    parser.add_argument("--prices", action="store_true", help="false asks and epochs alone, without an engine")
    parser.add_argument("--turn-over", action="store_true", help="the turn-over of an epoch alone")
    parser.add_argument("--shapes", nargs="*", metavar="ENGINE", help="CPU per point alone, of these engines (all)")
    parser.add_argument("--study", action="store_true", help="markets of all sizes, written to docs/results")
    parser.add_argument("--table2", action="store_true", help="what a step costs without the choice by cost")
    parser.add_argument("--places", action="store_true", help="nodes that work on several groups at once")
    options = parser.parse_args()
    bench.header("market", ["torch", "transformers"])
    if options.table2:
        table2.show()
        return 0
    if options.places:
        places.show()
        return 0
    if options.study:
        return bench.close(study.write())
    if options.turn_over:
        return bench.close(turn_over.claims())
    return bench.close_each(parts(options))


def parts(options: argparse.Namespace) -> Iterator[list[Claim]]:
    """Measure one part after the other."""
    if options.shapes is None:
        yield false_asks.claims(20 if options.quick else 200)
        yield epoch_close.claims()
        yield turn_over.claims()
    if options.prices:
        return
    with tempfile.TemporaryDirectory() as name:
        made = prepare(Path(name), real=False, new_tokens=1, groups=1, small=options.quick)
        vocabulary = 16_384 if options.quick else 49_152
        yield cpu_per_point.claims(made.folder, made.snapshot, vocabulary, options.shapes or cpu_per_point.ENGINES)


if __name__ == "__main__":
    sys.exit(main())
