"""Weights as other programs read them: under the base's names, tied ones as in its file, an adapter merged."""

import json
from pathlib import Path

import numpy as np
import pytest

from echo2.weights.documents import TensorEntry
from echo2.weights.hf_export import OtherNames, float_dtype_of, merged_tensors, tensors_of, write_tensors
from echo2.weights.hf_import import bf16_of, floats_of
from echo2.weights.lora.adapter_config import AdapterConfig
from echo2.weights.lora.frozen_base import FrozenBase, write_base
from echo2.weights.snapshot import Snapshot, writing_snapshot

Tensors = dict[str, tuple[int, ...]]


def snapshot(
    path: Path, tensors: Tensors, first: float, dtype: str = "BF16", tied: dict[str, str] | None = None
) -> Snapshot:
    """Write tensors of one number after another, from `first`."""
    entries = [TensorEntry(name=name, dtype=dtype, shape=tensors[name]) for name in sorted(tensors)]  # type: ignore[arg-type]
    with writing_snapshot(path, entries, tied or {}) as writer:
        for number, entry in enumerate(entries):
            values = np.full(entry.elements, first + number, np.float32).view(np.uint32)
            writer.write(bf16_of(values) if dtype == "BF16" else values)
        writer.finish()
    return Snapshot(path)


def values(path: Path) -> dict[str, float]:
    """Return the first number of each tensor of a file."""
    file = Snapshot(path)
    return {entry.name: float(floats_of(file.bits(entry.name), entry.dtype)[0]) for entry in file.tensors}


def test_a_version_is_written_under_the_names_of_its_base_with_what_no_version_has(tmp_path: Path) -> None:
    base = snapshot(tmp_path / "base", {"a": (2,), "buffer": (1,), "embed": (2,), "head": (2,)}, 1.0, "F32")
    version = snapshot(tmp_path / "version", {"a": (2,), "embed": (2,)}, 7.0, tied={"head": "embed"})
    exported = tensors_of(version, base)
    write_tensors(tmp_path / "out", exported)
    assert values(tmp_path / "out") == {"a": 7.0, "buffer": 2.0, "embed": 8.0, "head": 8.0}
    assert float_dtype_of(exported) == "bfloat16"
    header = (tmp_path / "out").read_bytes()
    length = int.from_bytes(header[:8], "little")
    assert json.loads(header[8 : 8 + length])["__metadata__"] == {"format": "pt"}, "transformers 4 asks for it"


def test_a_tied_tensor_that_the_bases_file_lacks_stays_away(tmp_path: Path) -> None:
    base = snapshot(tmp_path / "base", {"embed": (2,)}, 1.0)
    version = snapshot(tmp_path / "version", {"embed": (2,)}, 7.0, tied={"head": "embed"})
    assert [tensor.entry.name for tensor in tensors_of(version, base)] == ["embed"]


@pytest.mark.parametrize("tensors", [{"experts": (4,)}, {"a": (3,)}], ids=["another name", "another shape"])
def test_other_names_or_shapes_in_memory_are_refused(tmp_path: Path, tensors: Tensors) -> None:
    base, version = snapshot(tmp_path / "base", {"a": (2,)}, 1.0), snapshot(tmp_path / "version", tensors, 7.0)
    with pytest.raises(OtherNames):
        tensors_of(version, base)


def test_an_adapter_is_merged_into_its_base_in_float32(tmp_path: Path) -> None:
    name = "model.layers.0.q_proj"
    source = snapshot(tmp_path / "whole", {f"{name}.weight": (2, 3), "model.norm.weight": (3,)}, 1.0)
    write_base(tmp_path / "base", source, "bfloat16")
    tensors = {f"base_model.model.{name}.lora_A.weight": (1, 3), f"base_model.model.{name}.lora_B.weight": (2, 1)}
    adapter = snapshot(tmp_path / "adapter", tensors, 2.0)
    config = AdapterConfig(r=1, lora_alpha=0.5, target_modules=["q_proj"])
    write_tensors(tmp_path / "out", merged_tensors(adapter, config, FrozenBase(tmp_path / "base")))
    assert values(tmp_path / "out") == {f"{name}.weight": 1.0 + 0.5 * 3.0 * 2.0, "model.norm.weight": 2.0}
