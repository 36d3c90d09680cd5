"""How fast is the diff codec? On a stream tiled to 256 MB, against memcpy of the same buffer. For `benchmarks.diff`."""

import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from benchmarks import bench
from benchmarks.bench import Candidate, Claim
from benchmarks.diff_anchors import gaps_apply, gaps_encode, xor_apply, xor_encode
from benchmarks.diff_streams import Stream
from weights import codec, native
from weights.classes import REFERENCE
from weights.codec import Build
from weights.order import in_order

Item = TypeVar("Item")
Result = TypeVar("Result")
TILED: Final = 256 << 20
CORES_BAR: Final = 1.8
ATTEMPTS: Final = 30
QUIET: Final = 5
"""Turns, at least, in which both cores were free."""
WAITED: Final = 0.02
"""Share of its time that a thread waits for a core in a turn that counts."""


class Tiled:
    """A step of a stream, repeated to `TILED` bytes; and what each codec makes of it."""

    def __init__(self, stream: Stream) -> None:
        versions = stream.versions()
        old, new = next(versions), next(versions)
        times = -(-TILED // old.nbytes)
        self.old, self.new = np.tile(old, times), np.tile(new, times)
        self.held, self.copy = self.old.copy(), np.empty_like(self.old)
        self.waits: list[float] = []
        """For each frame so far, what its thread waited for a core."""
        self.frames = [slice(at, at + codec.FRAME) for at in range(0, len(self.old), codec.FRAME)]

    def encode(self, threads: int = 1) -> list[tuple[int, bytes]]:
        return self._each(lambda part: codec.encode("BF16", self.old[part], self.new[part]), self.frames, threads)

    def decode(self, bodies: list[tuple[int, bytes]], threads: int = 1) -> None:
        """Into `held`, frame by frame. It may hold the new weights' bits of an earlier turn: the old are read apart."""

        def one(found: tuple[slice, tuple[int, bytes]]) -> None:
            part, (kind, body) = found
            old = self.old[part]
            patch = codec.decode("BF16", kind, memoryview(body), old, len(old))
            patch.into(self.held[part])

        self._each(one, list(zip(self.frames, bodies, strict=True)), threads)

    def copied(self, threads: int) -> None:
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


BARS: Final = {
    ("numba", "encode"): 0.08, ("numba", "decode+apply"): 0.08,
    ("native", "encode"): 0.35, ("native", "decode+apply"): 0.30,
}  # fmt: skip
"""numba is what a machine without a compiler runs; numpy is the reference, and for frames too small to matter."""


def builds() -> dict[str, Build]:
    native_build = native.best()
    found = {"numpy": REFERENCE, "numba": codec.compiled()}
    return found | ({"native": native_build} if native_build else {})


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
    claims = [
        Claim(f"{stream.name}, {which} {what}", ratios[f"{which}, {what}"], "memcpy", bar)
        for (which, what), bar in BARS.items()
        if which in builds()
    ]
    return claims + cores(tiled, stream.name)


# -- two cores ------------------------------------------------------------


class Turn(NamedTuple):
    """`waited`: the share of `seconds`, by the clock, in which a thread had no core, because other work had it."""

    seconds: float
    waited: float


def cores(tiled: Tiled, name: str) -> list[Claim]:
    """Two threads against one, by the clock; of the turns in which two cores were free. No claim where there were too
    few, for a turn without a core to run on says nothing about the codec."""
    bodies = tiled.encode()
    works: dict[str, Callable[[int], Any]] = {
        "memcpy": tiled.copied,
        "encode": tiled.encode,
        "decode+apply": lambda threads: tiled.decode(bodies, threads),
    }
    claims, lines = [], []
    for what, work in works.items():
        turns = [(turn_of(tiled, work, 1), turn_of(tiled, work, 2)) for _ in range(ATTEMPTS)]
        quiet = [(one.seconds, two.seconds) for one, two in turns if max(one.waited, two.waited) < WAITED]
        least = min(max(one.waited, two.waited) for one, two in turns)
        lines.append(f"{what} {len(quiet)} of {len(turns)} turns quiet (least waiting {least:.1%})")
        if len(quiet) < QUIET:
            print(f"{name}, {what} on two cores against one: not judged, other work had them")
            continue
        ratio = statistics.median(one for one, _ in quiet) / statistics.median(two for _, two in quiet)
        if what == "memcpy":
            lines[-1] += f", {ratio:.2f} x"
        else:
            claims.append(Claim(f"{name}, {what} on two cores", ratio, "one", CORES_BAR))
    print(f"two threads against one (load {os.getloadavg()[0]:.1f}): {'; '.join(lines)}\n")
    return claims


def turn_of(tiled: Tiled, work: Callable[[int], Any], threads: int) -> Turn:
    """`waited` is a share of the time of all threads."""
    tiled.waits.clear()
    start = time.perf_counter()
    work(threads)
    seconds = time.perf_counter() - start
    return Turn(seconds, sum(tiled.waits) / (threads * seconds))


def waited() -> float:
    """Seconds that the calling thread could have run so far and had no core; NaN where the system does not tell."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return math.nan
