"""Measure pay: `python -m benchmarks.market [--quick]`.

Claims:

    CPU per point   for each engine by itself the CPU seconds per point of nine shapes of prompt and completion are
                    within a factor of 2; how far engines are from each other is printed

The model has SmolLM2-135M's shape and random weights; with --quick, 8 M weights. One thread.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import bench

bench.one_thread()

from benchmarks.market import cpu_per_point  # noqa: E402
from benchmarks.rollout import prepare  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a model of 8 M weights")
    quick = parser.parse_args().quick
    bench.header("market", ["torch", "transformers"])
    with tempfile.TemporaryDirectory() as name:
        made = prepare(Path(name), real=False, new_tokens=1, groups=1, small=quick)
        return bench.close(cpu_per_point.claims(made.folder, made.snapshot, 16_384 if quick else 49_152))


if __name__ == "__main__":
    sys.exit(main())
