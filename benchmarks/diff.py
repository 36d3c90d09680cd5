"""How small and how fast is the diff between two policy versions? `python -m benchmarks.diff [--quick] [--stream FILE]`

Claims, per stream of real versions: bytes against the full weights and the two codecs in use elsewhere, both at their
best; against the entropy of a change given the old exponent; 16 missed versions at once against one by one. And on the
stream tiled to 256 MB, one core: encode, and decode and write into the weights, against memcpy of the same buffer.

Where the versions come from: `--stream FILE ...`, recorded (format: `benchmarks.diff_streams`); `--snapshots FOLDER`,
the snapshots of a run of one's own, in the order of their names (era, version); with neither, a short run of the
project's own learner on SmolLM2-135M (`benchmarks.diff_learner` says what is real about it), which `--task`, `--rate`,
`--steps`, `--fresh` and `--lessons` change and `--save FILE` keeps. `--quick` makes a stream up, and says so: AdamW on
random gradients, exported as bf16; sizes are then claimed all the same, but prove nothing about a real learner.

`--picture FILE` draws bytes against learning rate, of streams whose names tell it. `--sizes` leaves speed out.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import bench, diff_picture
from benchmarks.bench import Candidate, Claim
from benchmarks.diff_anchors import gaps_apply, gaps_encode, xor_apply, xor_encode
from benchmarks.diff_sizes import COLUMNS, MISSED, row, size_claims, sizes, written
from benchmarks.diff_streams import Stream, of_snapshots, recorded, save, synthetic
from p2p.errors import LocalFault
from weights import codec, native
from weights.diff import apply, encode
from weights.order import in_order
from weights.snapshot import Snapshot

TILED: Final = 256 << 20
STRETCH: Final = "stretch: 230 or 145 times, 3.25 or 3.0, 3.5, 1.02; 0.12 portable, 0.5 native; 1.95; 0.40"


# -- speed ------------------------------------------------------------


class Tiled:
    """A step of a stream, repeated to `TILED` bytes; and what each codec makes of it."""

    def __init__(self, stream: Stream) -> None:
        versions = stream.versions()
        old, new = next(versions), next(versions)
        times = -(-TILED // old.nbytes)
        self.old, self.new = np.tile(old, times), np.tile(new, times)
        self.held, self.copy = self.old.copy(), np.empty_like(self.old)
        self.frames = [slice(at, at + codec.FRAME) for at in range(0, len(self.old), codec.FRAME)]

    def encode(self, threads: int = 1) -> list[tuple[int, bytes]]:
        return list(in_order(lambda part: codec.encode("BF16", self.old[part], self.new[part]), self.frames, threads))

    def decode(self, bodies: list[tuple[int, bytes]], threads: int = 1) -> None:
        """Into `held`, frame by frame. It may hold the new weights' bits of an earlier turn: the old are read apart."""

        def one(found: tuple[slice, tuple[int, bytes]]) -> None:
            part, (kind, body) = found
            old = self.old[part]
            patch = codec.decode("BF16", kind, memoryview(body), old, len(old))
            patch.into(self.held[part])

        for _ in in_order(one, list(zip(self.frames, bodies, strict=True)), threads):
            pass

    def candidates(self, build: native.Native | None) -> dict[str, Candidate]:
        def encoding() -> float:
            with codec.using(build):
                self.encode()
            return float(self.old.nbytes)

        with codec.using(build):
            bodies = self.encode()

        def decoding() -> float:
            with codec.using(build):
                self.decode(bodies)
            return float(self.old.nbytes)

        return {"encode": bench.timed(encoding), "decode+apply": bench.timed(decoding)}

    def anchors(self) -> dict[str, Candidate]:
        def work(done: Callable[[], Any]) -> Candidate:
            def run() -> float:
                done()
                return float(self.old.nbytes)

            return bench.timed(run)

        xor, gaps = xor_encode(self.old, self.new), gaps_encode(self.old, self.new)
        return {
            "memcpy": work(lambda: np.copyto(self.copy, self.old)),
            "XOR + zstd-1, encode": work(lambda: xor_encode(self.old, self.new)),
            "XOR + zstd-1, decode+apply": work(lambda: xor_apply(xor, self.copy)),
            "int32 gaps, encode": work(lambda: gaps_encode(self.old, self.new)),
            "int32 gaps, decode+apply": work(lambda: gaps_apply(gaps, self.held)),
        }


SPEED_BARS: Final = {("portable", "encode"): 0.08, ("portable", "decode+apply"): 0.08} | {
    ("native", "encode"): 0.35, ("native", "decode+apply"): 0.30,
}  # fmt: skip


def builds() -> dict[str, native.Native | None]:
    native_build = native.best()
    return {"portable": None} | ({"native": native_build} if native_build else {})


def speeds(stream: Stream, repeats: int) -> list[Claim]:
    tiled = Tiled(stream)
    candidates = tiled.anchors()
    for which, build in builds().items():
        candidates |= {f"{which}, {what}": run for what, run in tiled.candidates(build).items()}
    found = bench.take_turns(candidates, repeats)
    assert (tiled.held == tiled.new).all()
    ratios = {name: bench.ratio(runs, found["memcpy"]) for name, runs in found.items()}
    rows = [
        (name, sorted(run.rate for run in runs)[len(runs) // 2] / 1e9, ratios[name]) for name, runs in found.items()
    ]
    print(f"{stream.name}: one step, tiled to {tiled.old.nbytes >> 20} MiB, one core")
    bench.table(["what", "GB of model per CPU second", "of memcpy"], rows)
    print(f"two threads against one, by the clock (load {os.getloadavg()[0]:.1f}): {cores(tiled):.2f} x\n")
    return [
        Claim(f"{stream.name}, {which} {what}", ratios[f"{which}, {what}"], "memcpy", bar)
        for (which, what), bar in SPEED_BARS.items()
        if which in builds()
    ]


def cores(tiled: Tiled) -> float:
    """How much sooner two threads decode than one; both cores must be free for it to say anything."""
    bodies, times = tiled.encode(), []
    for _ in range(3):
        for threads in (1, 2):
            start = time.perf_counter()
            tiled.decode(bodies, threads)
            times.append(time.perf_counter() - start)
    return min(times[::2]) / min(times[1::2])


# -- memory ------------------------------------------------------------


def memory(stream: Stream, folder: Path) -> list[Claim]:
    """Anonymous memory that applying a payload takes at its peak, in frames. Files are mapped and do not count. Each
    time in a new process: this one has memory to spare, which would hide what is taken."""
    tiled = Tiled(stream)
    old, new = written(tiled.old, folder / "old.safetensors"), written(tiled.new, folder / "new.safetensors")
    del tiled
    payload = encode(old, new, folder / "payload", threads=1)
    claims = []
    for which, build in builds().items():
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
            peak = fresh.submit(peak_of_apply, old.path, old.root, payload.path, new.root, build is not None).result()
        name = f"{stream.name}, {which} memory of apply by one worker"
        claims.append(Claim(name, peak / (2 * codec.FRAME), "a frame of 32 MiB", 1, at_most=True))
    return claims


def peak_of_apply(base: Path, base_root: bytes, payload: Path, root: bytes, with_native: bool) -> int:
    """Bytes; to be called once in a process."""
    held = Snapshot(base, root=base_root)
    with codec.using(native.best() if with_native else None):
        return peak_of(lambda: apply(held, payload, base.with_name("out"), root, threads=1))


def peak_of(work: Callable[[], Any]) -> int:
    """Most anonymous bytes above what was there before, sampled every millisecond."""
    samples, done = [anonymous()], threading.Event()

    def sample() -> None:
        while not done.wait(0.001):
            samples.append(anonymous())

    watcher = threading.Thread(target=sample)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return max(samples) - samples[0]


def anonymous() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0


def streams_of(arguments: argparse.Namespace, folder: Path) -> list[Stream]:
    """Raises `LocalFault` where a package is missing."""
    if arguments.stream:
        return [stream for path in arguments.stream for stream in recorded(path)]
    if arguments.snapshots:
        return [of_snapshots(arguments.snapshots)]
    if arguments.quick:
        return [synthetic(1 << 21, MISSED)]
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # is read when transformers is imported
    from benchmarks import diff_learner  # with torch, whose threads and memory are not to be measured elsewhere

    made = []
    for rate in arguments.rate:
        course = diff_learner.Course(arguments.task, rate, arguments.steps, arguments.fresh, arguments.lessons)
        with tempfile.TemporaryDirectory(dir=folder) as own:
            made.append(diff_learner.learned(course, Path(own), lambda line: print(line, flush=True)))
    print()
    return made


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a small synthetic stream, fewer repeats")
    parser.add_argument("--stream", type=Path, nargs="+", help="files of recorded streams (.npz)")
    parser.add_argument("--snapshots", type=Path, help="a folder of snapshots of one run")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the streams there (.npz)")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw bytes against learning rate (.svg)")
    parser.add_argument("--sizes", action="store_true", help="measure sizes alone, neither speed nor memory")
    learner = parser.add_argument_group("a stream by the project's own learner (none of the above says where from)")
    learner.add_argument("--task", default="single_sum", help="a task of this build (default: %(default)s)")
    learner.add_argument("--rate", type=float, nargs="+", default=[2e-6], help="learning rates, a stream each")
    learner.add_argument("--steps", type=int, default=MISSED, help="versions recorded (default: %(default)s)")
    learner.add_argument("--fresh", action="store_true", help="from a bf16 checkpoint's first step on")
    learner.add_argument("--lessons", type=int, default=0, help="supervised steps on the task's demonstrations first")
    return parser.parse_args()


def main() -> int:
    arguments = parsed()
    bench.header("diff: bytes and speed of what leads from one policy version to the next", ["numpy", "zstandard"])
    build = native.best()
    print(f"native build: {'none' if build is None else f'level {build.level}'}; {codec.NAME}; {STRETCH}\n")
    with tempfile.TemporaryDirectory() as folder:
        try:
            return bench.close(measured(arguments, Path(folder)))
        except LocalFault as fault:
            print(f"{fault}; --stream, --snapshots and --quick take other streams", file=sys.stderr)
            return 2


def measured(arguments: argparse.Namespace, folder: Path) -> list[Claim]:
    streams = streams_of(arguments, folder)
    if arguments.save:
        save(arguments.save, streams)
    found = [(stream, sizes(stream, folder)) for stream in streams]
    bench.table(COLUMNS, [row(*pair) for pair in found])
    claims = [claim for pair in found for claim in size_claims(*pair)]
    if arguments.picture:
        arguments.picture.write_text(diff_picture.draw(found))
    if arguments.sizes:
        return claims
    for stream in streams:
        claims += speeds(stream, 3 if arguments.quick else 7)
    for stream in streams if anonymous() else []:
        claims += memory(stream, folder)
    return claims


if __name__ == "__main__":
    sys.exit(main())
