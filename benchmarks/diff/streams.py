"""Streams of policy versions for `benchmarks.diff`: recorded, from a run's snapshots, or synthetic.

An .npz of streams holds for each RUN: RUN_base (uint16 bits of the first version), and for each step K from 1 on RUN_iK
and RUN_vK: flat indices of the changed weights, and their new bits. A name that contains "lr" and a number names the
learning rate.
"""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.diff.anchors import Words
from echo2.weights.snapshot import Snapshot


class Stream(NamedTuple):
    """A first version and its changes. `base`: bits of the first; `steps`: per later version, the flat indices of the
    changed weights, and their new bits."""

    name: str
    base: Words
    steps: list[tuple[NDArray[np.int64], Words]]

    def versions(self) -> Iterator[Words]:
        """Yield a copy of the bits of each version."""
        current = self.base.copy()
        yield current.copy()
        for index, bits in self.steps:
            current[index] = bits
            yield current.copy()

    @property
    def rho(self) -> float:
        """Return the mean share of the weights that a step changes."""
        return sum(len(index) for index, _ in self.steps) / len(self.steps) / len(self.base)

    @property
    def rate(self) -> float | None:
        """Return the learning rate; None where the name does not contain it."""
        named = re.search(r"lr(\d+(?:\.\d+)?(?:e-\d+)?)", self.name)
        return float(named[1]) if named else None


def recorded(path: Path) -> list[Stream]:
    """Read the streams of a file."""
    data = np.load(path)
    runs = [name.removesuffix("_base") for name in data.files if name.endswith("_base")]
    streams = []
    for run in sorted(runs):
        count = sum(name.startswith(f"{run}_i") for name in data.files)
        steps = [(data[f"{run}_i{k}"].astype(np.int64), data[f"{run}_v{k}"]) for k in range(1, count + 1)]
        streams.append(Stream(run, data[f"{run}_base"], steps))
    return streams


def save(path: Path, streams: list[Stream]) -> None:
    """Write streams into a file."""
    parts: dict[str, Any] = {f"{one.name}_base": one.base for one in streams}
    for one in streams:
        for number, (index, bits) in enumerate(one.steps, 1):
            parts |= {f"{one.name}_i{number}": index.astype(np.uint32), f"{one.name}_v{number}": bits}
    np.savez(path, **parts)


def of_snapshots(folder: Path) -> Stream:
    """Return the stream of the snapshots in a folder, by era and version. Only bf16 tensors count."""
    paths = sorted(folder.glob("*.safetensors"), key=lambda path: [int(part) for part in path.name.split("-")[:2]])
    bits = [
        np.concatenate([snapshot.bits(entry.name) for entry in snapshot.tensors if entry.dtype == "BF16"])
        for snapshot in map(Snapshot, paths)
    ]
    steps = []
    for old, new in itertools.pairwise(bits):
        index = np.flatnonzero(old != new)
        steps.append((index, new[index]))
    return Stream(folder.name, bits[0], steps)


def synthetic(elements: int, count: int, rate: float = 2e-6) -> Stream:
    """Synthesise a stream of `count` steps: AdamW on random gradients, of a scale per weight, over weights off the bf16
    grid."""
    rng = np.random.default_rng(0)
    weights = rng.normal(0, 0.05, elements)
    scale = np.exp(rng.normal(0, 1, elements))
    mean, square = np.zeros(elements), np.zeros(elements)
    for _ in range(20):  # until the moments are steady
        gradient = rng.normal(0, scale)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.95 * square + 0.05 * gradient**2
    base = current = _bf16(weights)
    steps = []
    for _ in range(count):
        gradient = rng.normal(0, scale)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.95 * square + 0.05 * gradient**2
        weights = weights * (1 - 0.01 * rate) - rate * mean / (np.sqrt(square) + 1e-8)
        new = _bf16(weights)
        index = np.flatnonzero(new != current)
        steps.append((index, new[index]))
        current = new
    return Stream("synthetic AdamW", base, steps)


def _bf16(weights: NDArray[np.float64]) -> Words:
    """Return bf16 bits: rounded to nearest, ties to even."""
    bits = weights.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
