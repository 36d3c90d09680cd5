"""Measure pay: `python -m benchmarks.market [--quick]`.

Claims:

    CPU per point   for each engine by itself the CPU seconds per point of nine shapes of prompt and completion are
                    within a factor of 2; how far engines are from each other is printed
    false asks      under `pivot` a false ask gains at most 0.01 % of a node's cost, over 200 seeded markets of 40 nodes
                    whose budget does not bind, also with the cap on an owner's share; other prices, and a budget that
                    binds, are printed beside, and what each pays beyond the costs of the cheapest nodes
    epoch           to close an epoch of 10,000 nodes and to open the next costs at most 30 times a bare sort of costs

The model has SmolLM2-135M's shape and random weights; with --quick, 8 M weights. One thread. `--prices`: the last two
claims alone, which need no engine.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import bench

bench.one_thread()

from benchmarks.market import cpu_per_point, epoch_close, false_asks  # noqa: E402
from benchmarks.rollout import prepare  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a model of 8 M weights")
    parser.add_argument("--prices", action="store_true", help="false asks and epochs alone, without an engine")
    options = parser.parse_args()
    quick = options.quick
    bench.header("market", ["torch", "transformers"])
    prices = [*false_asks.claims(200), *epoch_close.claims()]
    if options.prices:
        return bench.close(prices)
    with tempfile.TemporaryDirectory() as name:
        made = prepare(Path(name), real=False, new_tokens=1, groups=1, small=quick)
        return bench.close([*prices, *cpu_per_point.claims(made.folder, made.snapshot, 16_384 if quick else 49_152)])


if __name__ == "__main__":
    sys.exit(main())
