"""Measure the memory that applying a diff takes. For `benchmarks.diff`."""

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.diff.sizes import written
from benchmarks.diff.speed import Tiled, builds
from benchmarks.diff.streams import Stream
from benchmarks.harness.bench import Claim
from echo2.weights.codec import frames
from echo2.weights.diff import apply, encode
from echo2.weights.snapshot import Snapshot


def memory(stream: Stream, folder: Path) -> list[Claim]:
    """Return the claims about the peak of anonymous memory while a payload is applied, against a frame. Mapped files do
    not count.

    Each measurement runs in a new process: free memory of this one would hide allocations.
    """
    tiled = Tiled(stream)
    old, new = written(tiled.old, folder / "old.safetensors"), written(tiled.new, folder / "new.safetensors")
    del tiled
    payload = encode(old, new, folder / "payload", threads=1)
    claims = []
    for which in builds():
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
            peak = fresh.submit(peak_of_apply, old.path, old.root, payload.path, new.root, which).result()
        name = f"{stream.name}, {which} memory of apply by one worker"
        claims.append(Claim(name, peak / (2 * frames.FRAME_ELEMENTS), "a frame of 32 MiB", 1, at_most=True))
    return claims


def peak_of_apply(base: Path, base_root: bytes, payload: Path, root: bytes, which: str) -> int:
    """Apply `payload` to `base`; return the peak in bytes. Call it once per process. `which`: the build of the
    codec."""
    current = Snapshot(base, root=base_root)
    with frames.using(builds()[which]):
        # The first use allocates memory that is no part of applying: it is not measured.
        old = np.arange(4, dtype=np.uint16)
        kind, body = frames.encode("BF16", old, old ^ (old == 1))
        patch = frames.decode("BF16", kind, memoryview(body), old, len(old))
        assert [len(piece) for piece in (patch.apply_to_copy(old), *patch.pieces(old))] == [4, 4]
        return peak_of(lambda: apply(current, payload, base.with_name("out"), root, threads=1))


def peak_of(work: Callable[[], Any]) -> int:
    """Run `work`; return by how much anonymous memory grew at its peak, in bytes, sampled every millisecond."""
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
    """Return the anonymous resident bytes of this process; 0 where the system does not report them."""
    for text_line in Path("/proc/self/status").read_text().splitlines():
        if text_line.startswith("RssAnon:"):
            return int(text_line.split()[1]) << 10
    return 0
