"""Snapshots of random bits, small enough to make by the hundred."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo2.weights.codec.frames import Bits
from echo2.weights.documents import DType, TensorEntry
from echo2.weights.snapshot import Snapshot, writing_snapshot

MakeSnapshot = Callable[..., Snapshot]


@pytest.fixture
def make_snapshot(tmp_path: Path) -> MakeSnapshot:
    """make_snapshot("name", {"tensor": ("BF16", bits)}, aliases) -> Snapshot; a tensor's shape is that of its bits."""

    def make(name: str, tensors: Mapping[str, tuple[DType, Bits]], aliases: dict[str, str] | None = None) -> Snapshot:
        table = [TensorEntry(name=key, dtype=dtype, shape=bits.shape) for key, (dtype, bits) in sorted(tensors.items())]
        path = tmp_path / f"{name}.safetensors"
        with writing_snapshot(path, table, aliases or {}) as writer:
            for entry in table:
                writer.write(np.ascontiguousarray(tensors[entry.name][1]).reshape(-1))
            writer.finish()
        return Snapshot(path)

    return make


def scrambled(count: int, dtype: type[np.unsignedinteger[Any]]) -> Bits:
    """Return bits that are the same under every version of numpy, for golden vectors (Knuth's multiplicative hash)."""
    return ((np.arange(count, dtype=np.uint64) * np.uint64(2654435761)) >> np.uint64(7)).astype(dtype)


@pytest.fixture
def step(make_snapshot: MakeSnapshot) -> tuple[Snapshot, Snapshot]:
    """Return a model before and after a step: bf16 slightly changed, f32 much, an empty tensor, an int."""
    before: dict[str, tuple[DType, Bits]] = {
        "a.weight": ("BF16", scrambled(2000, np.uint16).reshape(40, 50)),
        "b.empty": ("BF16", np.empty((0, 3), np.uint16)),
        "c.norm": ("F32", scrambled(30, np.uint32)),
        "d.flag": ("BOOL", np.array([1, 0, 1], np.uint8)),
        "e.weight": ("BF16", scrambled(3000, np.uint16)),
        "f.position": ("I64", np.arange(5, dtype=np.uint64)),
    }
    after = {name: (dtype, bits.copy()) for name, (dtype, bits) in before.items()}
    for name in ("a.weight", "e.weight"):
        flat = after[name][1].reshape(-1)
        flat[::97] += np.uint16(1)
    after["c.norm"][1][:] ^= np.uint32(5)
    aliases = {"head.weight": "a.weight"}
    return make_snapshot("before", before, aliases), make_snapshot("after", after, aliases)
