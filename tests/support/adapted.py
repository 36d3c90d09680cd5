"""A tiny model as a frozen base and an adapter, on disk, and versions of the adapter."""

import shutil
from pathlib import Path

import numpy as np

from echo2.weights.documents import TensorEntry
from echo2.weights.hf_import import bf16_of
from echo2.weights.lora.adapter_folder import AdapterOrder, make_adapter
from echo2.weights.lora.frozen_base import BaseFormat
from echo2.weights.snapshot import Snapshot, writing_snapshot
from tests.support import tiny_model
from tests.support.tiny_model import OnDisk


def make(folder: Path, base: BaseFormat = "bfloat16", rank: int = 4, targets: list[str] | None = None) -> Path:
    """Make a model folder whose versions are adapters; return it."""
    return adapt(tiny_model.make(folder), base, rank, targets)


def adapt(whole: OnDisk, base: BaseFormat = "bfloat16", rank: int = 4, targets: list[str] | None = None) -> Path:
    """Turn a whole model on disk into base and adapter; return its folder."""
    shutil.move(whole.snapshot, whole.folder / "model.safetensors")
    make_adapter(whole.folder, AdapterOrder(rank, 2.0 * rank, targets, base), seed=1)
    return whole.folder


def trained(folder: Path, seed: int = 0, size: float = 0.1) -> Snapshot:
    """Write a version of the folder's adapter with values of the given size; return it."""
    first = Snapshot(folder / "model.safetensors")
    return write(folder / f"adapter-{seed}.snapshot", first.tensors, seed, size)


def write(path: Path, tensors: list[TensorEntry], seed: int, size: float) -> Snapshot:
    """Write a snapshot of random values."""
    random = np.random.Generator(np.random.Philox(seed))
    with writing_snapshot(path, tensors, {}) as writer:
        for entry in tensors:
            values = random.normal(0, size, entry.elements).astype(np.float32)
            writer.write(bf16_of(values.view(np.uint32)))
        writer.finish()
    return Snapshot(path)
