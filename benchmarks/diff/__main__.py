"""Measure the diff between two policy versions: `python -m benchmarks.diff [--quick] [--stream FILE]`.

A stream is a sequence of versions. The claims, per stream:

    bytes     of all diffs, against the full weights, against the two codecs in use elsewhere at their best settings,
              and against the entropy of a change given the old exponent; one diff over 16 versions against 16 diffs
    speed     of a step tiled to at least 256 MiB, on one core: encode, and decode and write into the weights, against
              XOR + zstd-1 of the same buffers
    cores     the same by two threads against one, where two cores are free, beside two processes that share no data
    memory    the peak while a payload is applied

Sources of versions: `--stream FILE ...`, recorded (format: `benchmarks.diff.streams`); `--snapshots FOLDER`, the
snapshots of your own run, in the order of their names (era, version). With neither, a short run of the project's own
learner on SmolLM2-135M makes them (`benchmarks.diff.learner` lists its differences from a real run); `--task`,
`--rate`, `--steps`, `--fresh` and `--lessons` change it. `--save FILE` keeps the streams. `--quick` synthesises a
stream, which its name says: AdamW on random gradients, exported as bf16. Its sizes are claimed as well, but prove
nothing about a real learner.

`--picture FILE` draws bytes against learning rate, for streams whose names contain the rate. `--sizes` leaves out
speed, cores and memory.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.diff import drawing
from benchmarks.diff.cores import cores
from benchmarks.diff.memory import anonymous, memory
from benchmarks.diff.sizes import COLUMNS, MISSED, row, size_claims, sizes
from benchmarks.diff.speed import speeds
from benchmarks.diff.streams import Stream, of_snapshots, recorded, save, synthetic
from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from echo2.runtime.errors import LocalFault
from echo2.weights.codec import frames, native

STRETCH: Final = "stretch: 230 or 145 times, 3.25 or 3.0, 3.5, 1.02; 1.95; 0.40"
"""Goals beyond the bars, printed for comparison: full, XOR, gaps, entropy; of a second core; of a chain."""


def streams_of(arguments: argparse.Namespace, folder: Path) -> list[Stream]:
    """Return the streams that the options select. Raises `LocalFault` where a package is missing."""
    if arguments.stream:
        return [stream for path in arguments.stream for stream in recorded(path)]
    if arguments.snapshots:
        return [of_snapshots(arguments.snapshots)]
    if arguments.quick:
        return [synthetic(1 << 21, MISSED)]
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # read when transformers is imported
    from benchmarks.diff import (
        learner as diff_learner,  # imports torch, whose threads and memory must stay out of other measurements
    )

    streams = []
    for rate in arguments.rate:
        course = diff_learner.Course(arguments.task, rate, arguments.steps, arguments.fresh, arguments.lessons)
        with tempfile.TemporaryDirectory(dir=folder) as own:
            streams.append(diff_learner.learned(course, Path(own), lambda text_line: print(text_line, flush=True)))
    print()
    return streams


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a small synthetic stream, fewer repeats")
    parser.add_argument("--stream", type=Path, nargs="+", help="files of recorded streams (.npz)")
    parser.add_argument("--snapshots", type=Path, help="a folder of snapshots of one run")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the streams there (.npz)")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw bytes against learning rate (.svg)")
    parser.add_argument("--sizes", action="store_true", help="measure sizes alone, neither speed nor memory")
    learner = parser.add_argument_group("a stream by the own learner (without --stream, --snapshots and --quick)")
    learner.add_argument("--task", default="single_sum", help="a task of this build (default: %(default)s)")
    learner.add_argument("--rate", type=float, nargs="+", default=[2e-6], help="learning rates, a stream each")
    learner.add_argument("--steps", type=int, default=MISSED, help="versions recorded (default: %(default)s)")
    learner.add_argument("--fresh", action="store_true", help="from a bf16 checkpoint's first step on")
    learner.add_argument("--lessons", type=int, default=0, help="supervised steps on the task's demonstrations first")
    return parser.parse_args()


def main() -> int:
    arguments = parsed()
    bench.header("diff: bytes and speed of the diff between two policy versions", ["numpy", "zstandard"])
    build = native.best()
    print(f"native build: {'none' if build is None else f'level {build.level}'}; {frames.NAME}; {STRETCH}\n")
    with tempfile.TemporaryDirectory() as folder:
        try:
            return bench.close_each(measured(arguments, Path(folder)))
        except LocalFault as fault:
            print(f"{fault}; --stream, --snapshots and --quick take other streams", file=sys.stderr)
            return 2


def measured(arguments: argparse.Namespace, folder: Path) -> Iterator[list[Claim]]:
    """Measure what the options select, print the tables, and yield the claims of each part. Raises `LocalFault`."""
    streams = streams_of(arguments, folder)
    if arguments.save:
        save(arguments.save, streams)
    results = [(stream, sizes(stream, folder)) for stream in streams]
    bench.table(COLUMNS, [row(*pair) for pair in results])
    if arguments.picture:
        arguments.picture.write_text(drawing.draw(results))
    yield [claim for pair in results for claim in size_claims(*pair)]
    if arguments.sizes:
        return
    for stream in streams:
        yield speeds(stream, 3 if arguments.quick else 7)
        yield cores(stream)
    for stream in streams if anonymous() else []:
        yield memory(stream, folder)


if __name__ == "__main__":
    sys.exit(main())
