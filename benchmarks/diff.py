"""How small and how fast is the diff between two policy versions? `python -m benchmarks.diff [--quick] [--stream FILE]`

Claims, per stream of real versions: bytes against the full weights and the two codecs in use elsewhere, both at their
best; against the entropy of a change given the old exponent; 16 missed versions at once against one by one. And on the
stream tiled to 256 MB, one core: encode, and decode and write into the weights, against memcpy of the same buffer.

FILE is an .npz of streams: RUN_base (uint16 bits of the first version), and for each step K from 1 on RUN_iK and RUN_vK
(flat indices of what changed, and the new bits). `--snapshots FOLDER` takes the snapshots of a run of one's own, in the
order of their names (era, version). Without either the stream is synthetic, and says so: AdamW on random gradients,
exported as bf16; sizes are then claimed all the same, but prove nothing about a real learner.
"""

import argparse
import itertools
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import bench
from benchmarks.bench import Candidate, Claim
from benchmarks.diff_anchors import Words, entropy, gaps_apply, gaps_encode, pack, xor_apply, xor_encode
from weights import codec, native
from weights.diff import apply, encode
from weights.documents import TensorEntry
from weights.order import in_order
from weights.snapshot import Snapshot, writing_snapshot

TILED: Final = 256 << 20
MISSED: Final = 16
STRETCH: Final = "stretch: 230 or 145 times, 3.25 or 3.0, 3.5, 1.02; 0.12 portable, 0.5 native; 1.95; 0.40"


class Stream(NamedTuple):
    """`steps`: (flat indices, new bits) of each version after the first."""

    name: str
    base: Words
    steps: list[tuple[NDArray[np.int64], Words]]

    def versions(self) -> Iterator[Words]:
        held = self.base.copy()
        yield held.copy()
        for index, bits in self.steps:
            held[index] = bits
            yield held.copy()

    @property
    def rho(self) -> float:
        return sum(len(index) for index, _ in self.steps) / len(self.steps) / len(self.base)


class Sizes(NamedTuple):
    """Bytes, summed over the steps of a stream."""

    ours: float
    full: float
    full_zstd: float
    xor: float
    gaps: float
    bound: float
    cumulative: float | None


def recorded(path: Path) -> list[Stream]:
    data = np.load(path)
    runs = [name.removesuffix("_base") for name in data.files if name.endswith("_base")]
    found = []
    for run in sorted(runs):
        count = sum(name.startswith(f"{run}_i") for name in data.files)
        steps = [(data[f"{run}_i{k}"].astype(np.int64), data[f"{run}_v{k}"]) for k in range(1, count + 1)]
        found.append(Stream(run, data[f"{run}_base"], steps))
    return found


def of_snapshots(folder: Path) -> Stream:
    """The bf16 tensors of the snapshots in a store's folder."""
    paths = sorted(folder.glob("*.safetensors"), key=lambda path: [int(part) for part in path.name.split("-")[:2]])
    bits = [
        np.concatenate([held.bits(entry.name) for entry in held.tensors if entry.dtype == "BF16"])
        for held in map(Snapshot, paths)
    ]
    steps = []
    for old, new in itertools.pairwise(bits):
        index = np.flatnonzero(old != new)
        steps.append((index, new[index]))
    return Stream(folder.name, bits[0], steps)


def synthetic(elements: int, count: int, rate: float = 2e-6) -> Stream:
    """AdamW on random gradients, each weight's of its own size; weights do not lie on the bf16 grid."""
    rng = np.random.default_rng(0)
    weights = rng.normal(0, 0.05, elements)
    scale = np.exp(rng.normal(0, 1, elements))
    mean, square = np.zeros(elements), np.zeros(elements)
    for _ in range(20):  # until the moments are steady
        gradient = rng.normal(0, scale)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.95 * square + 0.05 * gradient**2
    base = held = _bf16(weights)
    steps = []
    for _ in range(count):
        gradient = rng.normal(0, scale)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.95 * square + 0.05 * gradient**2
        weights = weights * (1 - 0.01 * rate) - rate * mean / (np.sqrt(square) + 1e-8)
        new = _bf16(weights)
        index = np.flatnonzero(new != held)
        steps.append((index, new[index]))
        held = new
    return Stream("synthetic AdamW", base, steps)


def _bf16(weights: NDArray[np.float64]) -> Words:
    """Round to nearest, ties to even."""
    bits = weights.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


# -- sizes ------------------------------------------------------------


def sizes(stream: Stream, folder: Path) -> Sizes:
    total = dict.fromkeys(("ours", "full", "full_zstd", "xor", "gaps", "bound"), 0.0)
    held: list[tuple[Words, Snapshot]] = []
    for number, bits in enumerate(stream.versions()):
        held.append((bits, written(bits, folder / f"{number}.safetensors")))
        if number:
            (old, old_snapshot), (new, new_snapshot) = held[-2:]
            total["ours"] += encode(old_snapshot, new_snapshot, folder / "payload").length
            total["full"] += new.nbytes
            total["full_zstd"] += len(pack(new)[0])
            total["xor"] += sum(map(len, xor_encode(old, new)))
            total["gaps"] += sum(map(len, gaps_encode(old, new)))
            total["bound"] += entropy(old, new)
    jump = None
    if len(held) > MISSED:
        # The jump against the part of the chain that it replaces: the first 16 steps.
        chain = sum(encode(held[k][1], held[k + 1][1], folder / "payload").length for k in range(MISSED))
        jump = encode(held[0][1], held[MISSED][1], folder / "payload").length / chain
    return Sizes(**total, cumulative=jump)


def written(bits: Words, path: Path) -> Snapshot:
    with writing_snapshot(path, [TensorEntry(name="w", dtype="BF16", shape=bits.shape)], {}) as writer:
        writer.write(bits)
        writer.finish()
    return Snapshot(path)


def size_claims(stream: Stream, found: Sizes) -> list[Claim]:
    rho = stream.rho
    name = f"{stream.name} (rho {rho:.2%})"
    claims = [
        Claim(f"{name}, bytes of full over ours", found.full / found.ours, "full", 200 if rho <= 0.01 else 130),
        Claim(f"{name}, bytes of xor over ours", found.xor / found.ours, "XOR + zstd-1", 3.0 if rho >= 0.0035 else 2.8),
        Claim(f"{name}, bytes of gaps over ours", found.gaps / found.ours, "int32 gaps + bf16 + zstd-1", 3.2),
        Claim(
            f"{name}, our bytes", found.ours / found.bound, "entropy given the exponent",
            1.06 if rho >= 0.0035 else 1.08, at_most=True,
        ),
    ]  # fmt: skip
    if found.cumulative is not None:
        claims.append(Claim(f"{name}, {MISSED} missed versions", found.cumulative, "their chain", 0.45, at_most=True))
    return claims


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
            self.held[part][patch.index] = patch.bits

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a small synthetic stream, fewer repeats")
    parser.add_argument("--stream", type=Path, help="an .npz of recorded streams")
    parser.add_argument("--snapshots", type=Path, help="a folder of snapshots of one run")
    arguments = parser.parse_args()
    bench.header("diff: bytes and speed of what leads from one policy version to the next", ["numpy", "zstandard"])
    build = native.best()
    print(f"native build: {'none' if build is None else f'level {build.level}'}; {codec.NAME}; {STRETCH}\n")
    if arguments.stream:
        streams = recorded(arguments.stream)
    elif arguments.snapshots:
        streams = [of_snapshots(arguments.snapshots)]
    else:
        streams = [synthetic(1 << (21 if arguments.quick else 23), MISSED)]
    claims: list[Claim] = []
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        for stream in streams:
            found = sizes(stream, Path(folder))
            rows.append((stream.name, f"{stream.rho:.2%}", len(stream.steps), *(round(size) for size in found[:-1])))
            claims += size_claims(stream, found)
        bench.table(
            ["stream", "rho", "steps", "ours", "full", "full zstd-1", "XOR + zstd-1", "int32 gaps", "entropy"], rows
        )
        for stream in streams:
            claims += speeds(stream, 3 if arguments.quick else 7)
        for stream in streams if anonymous() else []:
            claims += memory(stream, Path(folder))
    return bench.close(claims)


if __name__ == "__main__":
    sys.exit(main())
