"""Measure what a version writes to the disk of a node: `python -m benchmarks.wear [--quick]`.

A stream of versions comes to a node's store and weights as the follower brings them: the payload is stored, the weights
are stepped and checked, payloads beyond the room are dropped, and a log that is long enough is folded. Bytes written
are those that the kernel counts for this process (/proc/self/io, `write_bytes` without `cancelled_write_bytes`): pages
that were dirtied, of files on a disk. The anchor is the payload; beside it stands what a folder without a log writes
for the first versions, as each node did before.

The weights are random bfloat16. In each version a weight moves by one unit in the last place, with a probability that
halves with each step of its exponent, as it does in training; the share of weights that move is set. `--folder` names a
folder on the disk to be measured.
"""

import argparse
import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from echo2.engines.batch.stepped_weights import SteppedWeights
from echo2.node.versions.local_weights import LocalWeights
from echo2.p2p.envelope import document_hash, verify_named
from echo2.weights.diff import encode
from echo2.weights.documents import Edge, TensorEntry
from echo2.weights.journaled import Rolling
from echo2.weights.logged_weights import has_log, open_weights
from echo2.weights.snapshot import Bits, root_of, tensor_hash
from echo2.weights.store import Store

SHARES: Final = (0.01, 0.002, 0.0005)
"""Shares of the weights that a version changes."""
MOST_WRITTEN: Final = 3.0
"""The bar: bytes written, by the bytes of the payloads."""
MOST_DISK: Final = 2.0
"""The bar: bytes of weights and payloads on the disk, by the bytes of the weights."""
ANCHOR_STEPS: Final = 3
QUOTA: Final = 1 << 50
_NOTHING: Final = 0.01
_POLL_SECONDS: Final = 0.01


class Weights:
    """Weights in memory, as `diff.encode` reads them."""

    def __init__(self, bits: NDArray[np.uint16]) -> None:
        self.bits = bits
        self.tensors = [TensorEntry(name="w", dtype="BF16", shape=(len(bits),))]
        self.aliases: dict[str, str] = {}
        self.root = root_of(self.tensors, {}, [tensor_hash(bits)])

    @property
    def nbytes(self) -> int:
        return self.bits.nbytes

    def span(self, start: int, elements: int, width: int) -> Bits:
        return self.bits[start // width : start // width + elements]


class Stream:
    """Versions of random weights, each a step from the one before."""

    def __init__(self, elements: int, share: float) -> None:
        self._chance = np.random.default_rng(7)
        normal = self._chance.standard_normal(elements, dtype=np.float32) / 50
        self.present = Weights((normal.view(np.uint32) >> 16).astype(np.uint16))
        exponents = (self.present.bits >> 7) & 255
        self._chances = _chances(np.bincount(exponents, minlength=256) / elements, share)

    def advance(self) -> Weights:
        """Make the next version; return it."""
        bits = self.present.bits.copy()
        chances = self._chances[(bits >> 7) & 255]
        index = np.flatnonzero(self._chance.random(len(bits), dtype=np.float32) < chances)
        bits[index] += np.where(self._chance.random(len(index)) < 0.5, 1, 0xFFFF).astype(np.uint16)
        self.present = Weights(bits)
        return self.present


def _chances(counts: NDArray[np.float64], share: float) -> NDArray[np.float32]:
    """Return by exponent how likely a weight moves, for this share of all."""
    halving = 2.0 ** -np.arange(256, dtype=np.float64)
    low, high = 0.0, 2.0**256
    for _ in range(600):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(0.5, middle * halving) @ counts < share else (low, middle)
    return np.minimum(0.5, high * halving).astype(np.float32)


def written() -> int:
    """Return the bytes that this process has written to disks so far."""
    rows = dict(row.split(": ") for row in Path("/proc/self/io").read_text().splitlines())
    return int(rows["write_bytes"]) - int(rows["cancelled_write_bytes"])


class Totals(NamedTuple):
    """Bytes that a stream of versions cost. `standing`: bytes written while the engine stood for a change, and
    `seconds`: seconds of reading the changes, for a version. `disk`: most that weights and payloads took. `start`:
    seconds of a start after a power cut, by a log of `diffs`."""

    payloads: int
    written: int
    standing: int
    seconds: float
    folds: int
    disk: int
    diffs: int
    start: float
    weights: int


class Node:
    """A node's store and weights, without its network and its engine's model."""

    def __init__(self, folder: Path, first: Weights, store: Store) -> None:
        self.folder, self.store = folder, store
        self.weights = LocalWeights(folder / "weights", quota=QUOTA)
        Rolling.create(self.weights.path, first)
        self.weights.root()
        if not has_log(self.weights.path):
            sys.exit("this machine's memory does not take the weights: a node steps them on disk, as before")
        self._engine = SteppedWeights(self.weights.path)
        self.disk = self.standing = self.folds = 0
        self.seconds = 0.0

    def take(self, payload: Path, edge: Edge) -> None:
        """Take a version."""
        path = self.store.put_payload(1, edge.version, edge.payload_hash, payload)
        self.store.put_document("edge", 1, edge.version, edge.to_bytes())
        open_weights(self.weights.path).apply(path, edge.root)
        before, began = written(), time.perf_counter()
        for changes in self._engine.step_to(edge.root):
            for _ in changes:
                pass
        self.standing += written() - before
        self.seconds += time.perf_counter() - began
        self.store.collect({(1, edge.version)}, self.weights.room())
        self._look()
        if self.weights.is_fold_due():
            self.folds += 1
            self._fold()

    def restart(self) -> tuple[int, float]:
        """Start as after a power cut; return the diffs in the log, and the seconds."""
        self.weights.free_memory()
        began = time.perf_counter()
        log = open_weights(self.weights.path).log
        return len(log.paths) if log is not None else 0, time.perf_counter() - began

    def _fold(self) -> None:
        """Fold the log, and look at the disk meanwhile."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(_POLL_SECONDS):
                self._look()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            self.weights.fold()
        finally:
            ended.set()
            watcher.join()

    def _look(self) -> None:
        taken = dict[int, int]()
        for file in self.folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                taken[file.stat().st_ino] = file.stat().st_blocks * 512
        self.disk = max(self.disk, sum(taken.values()))


def edge_of(version: int, base: Weights, new: Weights, digest: bytes, length: int) -> Edge:
    """Return the edge of a step."""
    edge = Edge(
        era=1, base=version - 1, base_root=base.root, version=version, root=new.root, codec="classes/1",
        payload_hash=digest, length=length, chunk_size=1 << 18, chunk_root=bytes(32),
    )  # fmt: skip
    return verify_named(edge.to_bytes(), document_hash(edge.to_bytes()), Edge.from_bytes).value


def measure(folder: Path, elements: int, share: float, versions: int) -> Totals:
    """Bring so many versions to a node."""
    stream = Stream(elements, share)
    with Store(folder / "store") as store:
        node = Node(folder, stream.present, store)
        try:
            payloads, before = 0, written()
            for version in range(1, versions + 1):
                base, new = stream.present, stream.advance()
                payload = encode(base, new, store.incoming(b"\1" * 32))
                payloads += payload.length
                node.take(payload.path, edge_of(version, base, new, payload.hash, payload.length))
            total, seconds = written() - before, node.seconds / versions
            return Totals(
                payloads, total, node.standing, seconds, node.folds, node.disk, *node.restart(), stream.present.nbytes
            )
        finally:
            node.weights.free_memory()


def measure_before(folder: Path, elements: int, share: float) -> float:
    """Return how many times its payload a step of a folder without a log writes."""
    stream = Stream(elements, share)
    weights = Rolling.create(folder / "weights", stream.present)
    ratios = []
    for version in range(ANCHOR_STEPS):
        base, new = stream.present, stream.advance()
        payload = encode(base, new, folder / f"{version}.payload")
        start = written()
        weights.apply(payload.path, new.root)
        ratios.append((written() - start) / payload.length)
    return float(np.median(ratios))


def measured(arguments: argparse.Namespace) -> Iterator[list[Claim]]:
    """Measure each share, and yield its claims."""
    elements, versions = 1 << 25 if arguments.quick else 1 << 26, arguments.versions or (24 if arguments.quick else 200)
    for share in SHARES:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
            for part in ("node", "before"):
                (Path(name) / part).mkdir()
            total = measure(Path(name) / "node", elements, share, versions)
            before = measure_before(Path(name) / "before", elements, share)
        columns = [
            "changed", "versions", "payload, %", "written / payload", "without a log", "folds", "disk / weights",
            "changes, s", "start, s", "of diffs",
        ]  # fmt: skip
        ratio, size = total.written / total.payloads, 100 * total.payloads / versions / total.weights
        disk = total.disk / total.weights
        cells = [
            f"{share:.2%}",
            versions,
            size,
            ratio,
            before,
            total.folds,
            disk,
            total.seconds,
            total.start,
            total.diffs,
        ]
        bench.table(columns, [cells])
        yield [
            Claim(f"bytes written at {share:.2%}", ratio, "the payloads", MOST_WRITTEN, at_most=True),
            Claim(f"bytes written while the engine stands at {share:.2%}", total.standing / total.payloads,
                  "the payloads", _NOTHING, at_most=True),
            Claim(f"disk at {share:.2%}", disk, "the weights", MOST_DISK, at_most=True),
        ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="weights of 64 MiB and 24 versions, without a fold")
    parser.add_argument("--versions", type=int, help="versions of each share (default: 200, or 24)")
    parser.add_argument("--folder", type=Path, help="a folder on the disk to be measured (default: the temporary one)")
    arguments = parser.parse_args()
    bench.header("wear: bytes that a version writes to the disk of a node", ["numpy"])
    if not os.access("/proc/self/io", os.R_OK):
        print("this system does not count the bytes that a process writes", file=sys.stderr)
        return 2
    return bench.close_each(measured(arguments))


if __name__ == "__main__":
    sys.exit(main())
