"""Measure the speed of the diff codec on the first step of a stream, tiled to at least 256 MiB, against XOR and zstd of
the same buffers. For `benchmarks.diff`.

Both are bound by the processor. memcpy, which the table shows beside them, is bound by the memory: from run to run on
one machine it went from 6.9 to 12.4 GB/s, while each of the others stayed within a fifth.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from benchmarks.diff.anchors import gaps_apply, gaps_encode, xor_apply, xor_encode
from benchmarks.diff.streams import Stream
from benchmarks.harness import bench
from benchmarks.harness.bench import Candidate, Claim
from echo2.weights.codec import frames, native
from echo2.weights.codec.exponent_classes import REFERENCE
from echo2.weights.codec.frames import Build
from echo2.weights.ordered_map import in_order

Item = TypeVar("Item")
Result = TypeVar("Result")
TILED: Final = 256 << 20
"""Least bytes of the weights that are measured."""
ANCHOR: Final = "XOR + zstd-1"
"""The codec to whose speed ours is compared."""
SPARSE: Final = 0.01
"""Highest share of changed weights at which numpy has the higher one of its two bars."""


def waited() -> float:
    """Return the seconds so far in which the calling thread was ready to run and had no core; NaN where the system does
    not report it."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return math.nan


class Tiled:
    """The first step of a stream, repeated to at least `TILED` bytes, with the work of each codec on it. `old`, `new`:
    the weights before and after; `current`: the buffer into which diffs are applied."""

    def __init__(self, stream: Stream) -> None:
        versions = stream.versions()
        old, new = next(versions), next(versions)
        times = -(-TILED // old.nbytes)
        self.old, self.new = np.tile(old, times), np.tile(new, times)
        self.current, self.copy = self.old.copy(), np.empty_like(self.old)
        self.waits: list[float] = []
        """Per frame so far, the seconds that its thread waited for a core."""
        self.frames = [slice(at, at + frames.FRAME_ELEMENTS) for at in range(0, len(self.old), frames.FRAME_ELEMENTS)]

    def encode(self, threads: int = 1) -> list[tuple[int, bytes]]:
        return self._each(lambda part: frames.encode("BF16", self.old[part], self.new[part]), self.frames, threads)

    def decode(self, bodies: list[tuple[int, bytes]], threads: int = 1) -> None:
        """Decode frame by frame, and apply to `current`. The old bits are read from `old`, since `current` may hold the
        new weights of an earlier round."""

        def one(tile: tuple[slice, tuple[int, bytes]]) -> None:
            part, (kind, body) = tile
            old = self.old[part]
            patch = frames.decode("BF16", kind, memoryview(body), old, len(old))
            patch.apply_in_place(self.current[part])

        self._each(one, list(zip(self.frames, bodies, strict=True)), threads)

    def copy_place(self, threads: int) -> None:
        self._each(lambda part: np.copyto(self.copy[part], self.old[part]), self.frames, threads)

    def _each(self, work: Callable[[Item], Result], items: list[Item], threads: int) -> list[Result]:
        def one(item: Item) -> Result:
            before = waited()
            try:
                return work(item)
            finally:
                self.waits.append(waited() - before)

        return list(in_order(one, items, threads))

    def candidates(self, build: Build) -> dict[str, Candidate]:
        """Return the codec's work under one build. The amount of work is in bytes of weights."""

        def encoding() -> float:
            with frames.using(build):
                self.encode()
            return float(self.old.nbytes)

        with frames.using(build):
            bodies = self.encode()

        def decoding() -> float:
            with frames.using(build):
                self.decode(bodies)
            return float(self.old.nbytes)

        return {"encode": bench.timed(encoding), "decode+apply": bench.timed(decoding)}

    def anchors(self) -> dict[str, Candidate]:
        """Return memcpy and the work of the other codecs."""

        def work(done: Callable[[], Any]) -> Candidate:
            def run() -> float:
                done()
                return float(self.old.nbytes)

            return bench.timed(run)

        xor, gaps = xor_encode(self.old, self.new), gaps_encode(self.old, self.new)
        return {
            "memcpy": work(lambda: np.copyto(self.copy, self.old)),
            f"{ANCHOR}, encode": work(lambda: xor_encode(self.old, self.new)),
            f"{ANCHOR}, decode+apply": work(lambda: xor_apply(xor, self.copy)),
            "int32 gaps, encode": work(lambda: gaps_encode(self.old, self.new)),
            "int32 gaps, decode+apply": work(lambda: gaps_apply(gaps, self.current)),
        }


def bars(stream: Stream) -> dict[tuple[str, str], float]:
    """Return the least ratio to `ANCHOR` per build and work. The build numpy serves where the C part was not built."""
    sparse = 1.0 if stream.rho <= SPARSE else 0.75
    return {
        ("numpy", "encode"): 2.4 * sparse, ("numpy", "decode+apply"): 0.6 * sparse,
        ("native", "encode"): 7.0, ("native", "decode+apply"): 2.5,
    }  # fmt: skip


def builds() -> dict[str, Build]:
    """Return the builds of the codec that this machine has."""
    native_build = native.best()
    return {"numpy": REFERENCE} | ({"native": native_build} if native_build else {})


def speeds(stream: Stream, repeats: int) -> list[Claim]:
    """Measure every build and anchor, print the table, and return the claims."""
    tiled = Tiled(stream)
    candidates = tiled.anchors()
    for which, build in builds().items():
        candidates |= {f"{which}, {what}": run for what, run in tiled.candidates(build).items()}
    measured = bench.take_turns(candidates, repeats)
    assert (tiled.current == tiled.new).all()
    ratios = {name: bench.ratio(runs, measured["memcpy"]) for name, runs in measured.items()}
    rows = [
        (name, sorted(run.rate for run in runs)[len(runs) // 2] / 1e9, ratios[name]) for name, runs in measured.items()
    ]
    print(f"{stream.name}: one step, tiled to {tiled.old.nbytes >> 20} MiB, one core")
    bench.table(["what", "GB of model per CPU second", "of memcpy"], rows)
    return [
        Claim(
            f"{stream.name}, {which} {what}",
            bench.ratio(measured[f"{which}, {what}"], measured[f"{ANCHOR}, {what}"]),
            ANCHOR,
            bar,
        )
        for (which, what), bar in bars(stream).items()
        if which in builds()
    ]
