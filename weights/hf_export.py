"""Write weights as a model's folder has them: one safetensors file, under the names of the base, for other programs.

Rules
1. The file has the tensors of the base by name: those of the version, a tied one where the base's file has it too, and
   unchanged ones that no version has, such as buffers.
2. A version whose names the base lacks is refused: some architectures have other names in memory than in their files,
   and only the library that loaded them can write them back.
3. An adapter is merged in float32: base + scaling * B A, then rounded to bfloat16.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from echo2.runtime.files import writing
from echo2.weights import safetensors_header
from echo2.weights.documents import TensorEntry
from echo2.weights.errors import BadSnapshot
from echo2.weights.hf_import import bf16_of, floats_of
from echo2.weights.lora.adapter_config import INNER_SUFFIX, OUTER_SUFFIX, PREFIX, AdapterConfig
from echo2.weights.lora.frozen_base import FrozenBase
from echo2.weights.snapshot import Bits, Snapshot


class ExportedTensor(NamedTuple):
    """A tensor of the file. `bits`: returns its elements, flat."""

    entry: TensorEntry
    bits: Callable[[], Bits]


class OtherNames(BadSnapshot):
    """A version whose tensors have other names than those of the base's file (rule 2)."""


def tensors_of(version: Snapshot, base: Snapshot) -> list[ExportedTensor]:
    """Return the tensors of a version of whole models (rule 1). Raises `OtherNames`."""
    entries, names = {entry.name: entry for entry in version.tensors}, {entry.name for entry in base.tensors}
    names |= base.aliases.keys()
    if other := sorted(entries.keys() - names):
        raise OtherNames(f"{base.path} has no tensor {other[0]!r}")
    exported = list[ExportedTensor]()
    for entry in base.tensors:
        source = entries.get(version.aliases.get(entry.name, entry.name))
        if source is None:
            exported.append(ExportedTensor(entry, _read(base, entry.name)))
            continue
        if source.shape != entry.shape:
            raise OtherNames(f"tensor {entry.name!r} is {entry.shape} in {base.path}, and {source.shape} here")
        exported.append(ExportedTensor(_rename(source, entry.name), _read(version, source.name)))
    return exported


def merged_tensors(adapter: Snapshot, config: AdapterConfig, base: FrozenBase) -> list[ExportedTensor]:
    """Return the tensors of a base with an adapter merged into it (rule 3)."""
    adapted = {entry.name for entry in adapter.tensors}

    def bits(entry: TensorEntry) -> Bits:
        values = base.values(entry.name)
        module = f"{PREFIX}{entry.name.removesuffix('.weight')}"
        if f"{module}{INNER_SUFFIX}" in adapted:
            outer, inner = _matrix(adapter, f"{module}{OUTER_SUFFIX}"), _matrix(adapter, f"{module}{INNER_SUFFIX}")
            values = values + np.float32(config.scaling) * (outer @ inner).reshape(-1)
        return bf16_of(values.astype(np.float32).view(np.uint32))

    tensors = [TensorEntry(name=entry.name, dtype="BF16", shape=entry.shape) for entry in base.tensors]
    return [ExportedTensor(entry, lambda entry=entry: bits(entry)) for entry in tensors]  # type: ignore[misc]


def write_tensors(path: Path, tensors: Iterable[ExportedTensor]) -> None:
    """Write a safetensors file, as transformers writes its own. Memory: one tensor. Raises `DiskFull`."""
    ordered = sorted(tensors, key=lambda tensor: tensor.entry.name)
    with writing(path) as file:
        file.write(safetensors_header.build([tensor.entry for tensor in ordered], {"format": "pt"}))
        for tensor in ordered:
            file.write(np.ascontiguousarray(tensor.bits()).view(np.uint8).data)


def float_dtype_of(tensors: Iterable[ExportedTensor]) -> str | None:
    """Return the type of most elements, in torch's words; None: none is of floating point."""
    sizes = dict[str, int]()
    for tensor in tensors:
        sizes[tensor.entry.dtype] = sizes.get(tensor.entry.dtype, 0) + tensor.entry.elements
    names = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
    known = {names[dtype]: number for dtype, number in sizes.items() if dtype in names}
    return max(known, key=lambda name: known[name], default=None)


def _read(snapshot: Snapshot, name: str) -> Callable[[], Bits]:
    return lambda: snapshot.bits(name)


def _rename(entry: TensorEntry, name: str) -> TensorEntry:
    return TensorEntry(name=name, dtype=entry.dtype, shape=entry.shape)


def _matrix(snapshot: Snapshot, name: str) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    entry = next(entry for entry in snapshot.tensors if entry.name == name)
    return floats_of(snapshot.bits(name), entry.dtype).reshape(entry.shape[0], entry.shape[1])
