"""Read and write the frozen base of an adapter: a safetensors file of plain and of quantised tensors.

Rules
1. A plain tensor is in bfloat16. A quantised one is stored as bytes [rows, bytes per row], and its name has the format
   as its ending: `model.layers.0.mlp.up_proj.weight.q8_0`.
2. In a base of format q8_0 or q4_0 the layers' matrices have that format. Embedding and output layer have q8_0, and the
   rest, vectors above all, is plain; so are matrices whose rows are no whole blocks.
"""

import re
from pathlib import Path
from typing import Final, Literal, Protocol, get_args

import numpy as np

from echo2.weights import safetensors_header
from echo2.weights.codec.frames import Bits
from echo2.weights.documents import TensorEntry
from echo2.weights.errors import BadSnapshot
from echo2.weights.hf_import import bf16_of, floats_of
from echo2.weights.lora import block_formats
from echo2.weights.lora.block_formats import BlockFormat, Floats
from echo2.weights.snapshot import Snapshot, header_metadata, writing_snapshot

BaseFormat = Literal["bfloat16", "q8_0", "q4_0"]
_FORMATS: Final[tuple[BlockFormat, ...]] = get_args(BlockFormat)
_LAYER: Final = re.compile(r"\.layers\.\d+\.")


class FrozenBase:
    """The frozen weights. `tensors`: tensors by the model's names, in ascending order, each as float32. `formats`: name
    -> format of those that are quantised. `aliases`: the same as in a snapshot."""

    def __init__(self, path: Path) -> None:
        """Open and check the header. Raises BadSnapshot, FileNotFoundError."""
        self._snapshot = Snapshot(path)
        self.path, self.aliases = path, self._snapshot.aliases
        self._stored = {entry.name.removesuffix(f".{_format(entry)}"): entry for entry in self._snapshot.tensors}
        if missing := sorted(set(self.aliases.values()) - self._stored.keys()):
            raise BadSnapshot(f"{path}: a tensor is tied to {missing[0]!r}, which is not there")
        self.formats = {name: form for name, entry in self._stored.items() if (form := _format(entry))}
        self.tensors = [TensorEntry(name=name, dtype="F32", shape=self._shape(name)) for name in sorted(self._stored)]

    def values(self, name: str) -> Floats:
        """Return a tensor's elements, flat."""
        entry = self._stored[self.aliases.get(name, name)]
        bits = self._snapshot.bits(entry.name)
        if form := self.formats.get(name):
            return block_formats.restore(bits.view(np.uint8).reshape(entry.shape), form).reshape(-1)
        return floats_of(bits, entry.dtype)

    def bits(self, name: str) -> Bits:
        """Return a tensor's elements as the bits of float32, flat."""
        return self.values(name).view(np.uint32)

    def blocks(self, name: str) -> Bits:
        """Return the bytes of a quantised tensor: [rows, bytes per row]."""
        entry = self._stored[name]
        return self._snapshot.bits(entry.name).reshape(entry.shape)

    def _shape(self, name: str) -> tuple[int, ...]:
        entry = self._stored[name]
        form = self.formats.get(name)
        if form is None:
            return entry.shape
        rows, nbytes = entry.shape if len(entry.shape) == 2 else (0, 1)
        if nbytes % block_formats.BLOCK_BYTES[form]:
            raise BadSnapshot(f"{self.path}: {entry.name!r} does not consist of whole blocks")
        return rows, nbytes // block_formats.BLOCK_BYTES[form] * block_formats.BLOCK


def _format(entry: TensorEntry) -> BlockFormat | None:
    """Return the format of a stored tensor by its name (rule 1); None: it is plain."""
    if entry.dtype != "U8":
        return None
    for form in _FORMATS:
        if entry.name.endswith(f".{form}"):
            return form
    return None


class WholeModel(Protocol):
    """A whole model's weights: a `Snapshot`, or those of a folder."""

    @property
    def tensors(self) -> list[TensorEntry]:
        """The tensors, ascending by name."""

    @property
    def aliases(self) -> dict[str, str]:
        """Name -> tensor it is tied to."""

    def bits(self, name: str) -> Bits:
        """Return the elements of a tensor, flat."""


def base_length(source: WholeModel, form: BaseFormat) -> int:
    """Return the bytes of the file that `write_base` writes."""
    _, table = _stored_table(source, form)
    header = safetensors_header.build(table, header_metadata(source.aliases))
    return len(header) + sum(entry.nbytes for entry in table)


def write_base(path: Path, source: WholeModel, form: BaseFormat) -> None:
    """Write a base from a whole model. Raises BadSnapshot, DiskFull."""
    stored, table = _stored_table(source, form)
    with writing_snapshot(path, table, source.aliases) as writer:
        for entry in table:
            values = floats_of(source.bits(stored[entry.name].name), stored[entry.name].dtype)
            block = _format(entry)
            if block is None:
                writer.write(bf16_of(values.view(np.uint32)))
            else:
                writer.write(block_formats.quantise(values.reshape(stored[entry.name].shape), block).reshape(-1))
        writer.finish()


def _stored_table(source: WholeModel, form: BaseFormat) -> tuple[dict[str, TensorEntry], list[TensorEntry]]:
    """Return the tensors of a whole model by their names in the base, and the base's own."""
    stored = {_stored_name(entry, form): entry for entry in source.tensors}
    return stored, [_stored_entry(name, stored[name]) for name in sorted(stored)]


def _stored_name(entry: TensorEntry, form: BaseFormat) -> str:
    """Return a base tensor's name, with its format (rule 2)."""
    if form == "bfloat16" or not block_formats.fits(entry.shape):
        return entry.name
    return f"{entry.name}.{form if _LAYER.search(entry.name) else 'q8_0'}"


def _stored_entry(name: str, source: TensorEntry) -> TensorEntry:
    for form in _FORMATS:
        if name == f"{source.name}.{form}":
            rows, columns = source.shape
            width = columns // block_formats.BLOCK * block_formats.BLOCK_BYTES[form]
            return TensorEntry(name=name, dtype="U8", shape=(rows, width))
    return TensorEntry(name=name, dtype="BF16", shape=source.shape)
