"""A model in llama.cpp's memory, without a file: filled from a snapshot, and changed in place with it.

Rules
1. llama.cpp makes the tensors from keys alone and asks for each one's content; its pointer is kept for later changes.
   Matrices have the engine's type, all else is float32, as llama.cpp's operations want it. With the type "blocks" a
   matrix of a quantised base has the blocks that it is stored in, and other matrices are bfloat16.
2. A tensor that is foreign, missing or of another shape than config.json says refuses the model.
3. A change writes the elements that differ. Where more than 1 in `DENSE_ELEMENTS_PER_CHANGE` of a tensor differ, the
   tensor is written whole. Memory of a GPU is written in ranges of whole rows.
4. The memory that the weights take is compared with what the device has free before they are loaded.
"""

import ctypes
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from echo2.engines.engine import Dtype, EngineError
from echo2.engines.llamacpp import backends, builds
from echo2.engines.llamacpp.architectures import Architecture, TensorSource
from echo2.engines.llamacpp.casts import ITEM, Values, cast
from echo2.engines.llamacpp.gguf_file import Stored, TensorPlan, metadata
from echo2.engines.llamacpp.library import FILL_CALLBACK, Library
from echo2.runtime.figures import apart
from echo2.weights.codec.frames import Bits
from echo2.weights.diff import Change
from echo2.weights.documents import TensorEntry
from echo2.weights.errors import BadSnapshot
from echo2.weights.lora.block_formats import BLOCK, BLOCK_BYTES, BlockFormat

DENSE_ELEMENTS_PER_CHANGE: Final = 64
PIECE_ELEMENTS: Final = 1 << 18
"""Elements that are cast and written at a time: 1 MiB of float32 stays in a cache."""
MOST_GAP_BYTES: Final = 1 << 16
"""Ranges that lie at most so many bytes apart are written as one: a transfer costs as much as so many bytes."""


class WeightSource(Protocol):
    """The part of `weights.snapshot.Snapshot` that is read here."""

    path: Path
    tensors: list[TensorEntry]
    aliases: dict[str, str]

    def bits(self, name: str) -> Bits:
        """Return the elements of a tensor, flat."""


class QuantisedSource(WeightSource, Protocol):
    """The part of `weights.lora.frozen_base.FrozenBase` that is read here."""

    formats: dict[str, BlockFormat]

    def blocks(self, name: str) -> Bits:
        """Return the bytes of a quantised tensor: [rows, bytes per row]."""


class _Target(NamedTuple):
    """A tensor of llama.cpp that a tensor of the model fills. `place`: its row in llama.cpp for each of the model's
    rows, the inverse of `rows`. `memory`: its elements, where the CPU can write to them."""

    pointer: int
    stored: Stored
    entry: TensorEntry
    rows: NDArray[np.int64] | None
    place: NDArray[np.int64] | None
    memory: Values | None

    @property
    def width(self) -> int:
        return self.entry.elements // self.entry.shape[0]

    @property
    def row_bytes(self) -> int:
        return _nbytes(self.stored, self.width)


class ResidentModel:
    """`pointer`: llama_model. `nbytes`: bytes of all its tensors. `parameters`: their number, tied ones once. `handle`:
    handle of the device, None: the CPU. `tell`: called after each tensor that is filled. Raises EngineError,
    BadSnapshot. Call `close` to free it."""

    def __init__(
        self,
        library: Library,
        architecture: Architecture,
        snapshot: WeightSource | QuantisedSource,
        dtype: Dtype,
        handle: int | None,
        tell: Callable[[], None] = lambda: None,
    ) -> None:
        check_shapes(architecture, snapshot.tensors, snapshot.path)
        self._formats: Mapping[str, BlockFormat] = getattr(snapshot, "formats", {}) if dtype == "blocks" else {}
        if dtype == "blocks" and not self._formats:
            raise EngineError("this run's weights are not quantised: compute in float32, float16 or bfloat16")
        self.library, self.architecture, self.handle = library, architecture, handle
        self._dtype = dtype
        self._targets: dict[str, list[_Target]] = {}
        self._fault: Exception | None = None
        self.nbytes = 0
        self.parameters = sum(entry.elements for entry in snapshot.tensors)
        self._check_memory(snapshot)
        self.pointer = self._build(snapshot, tell)

    @property
    def vocabulary(self) -> int:
        return self.architecture.sizes["vocabulary"]

    def apply(self, changes: Iterable[Change], snapshot: WeightSource) -> None:
        """Write changes (rule 3). `snapshot`: the weights after them. Raises EngineError for a weight that the type
        cannot hold; some changes are then written."""
        for change in changes:
            for target in self._targets[snapshot.aliases.get(change.tensor.name, change.tensor.name)]:
                if len(change.index) * DENSE_ELEMENTS_PER_CHANGE > change.tensor.elements:
                    self._write(target, snapshot, 0, target.entry.shape[0])
                elif target.memory is not None:
                    target.memory[_moved_index(target, change.index)] = cast(
                        change.bits, change.tensor.dtype, target.stored, change.tensor.name
                    )
                else:
                    for first, last in _ranges(target, change.index):
                        self._write(target, snapshot, first, last)

    def read(self, name: str) -> list[Values]:
        """Return the content of each tensor that the model's tensor `name` fills, as llama.cpp holds it."""
        return [self._read(target) for target in self._targets[name]]

    def close(self) -> None:
        """Free the model. It must have no context any more."""
        self._targets = {}
        self.library.llama_model_free(self.pointer)

    # --- building

    def _check_memory(self, snapshot: WeightSource) -> None:
        output = self.architecture.sizes["vocabulary"] * self.architecture.sizes["width"]
        needed = sum(_nbytes(self._stored_as(entry), entry.elements) for entry in snapshot.tensors)
        needed += _nbytes("q8_0" if self._formats else self._plain, output) if self.architecture.tied else 0
        free = backends.free_memory(self.library, self.handle)
        if needed > free:
            there, wanted = apart(free / 2**30, needed / 2**30)
            raise EngineError(
                f"the model takes {wanted} GiB in {self._dtype}, and the device has {there} GiB free: end other "
                "programs, or choose another device or a smaller model"
            )

    @property
    def _plain(self) -> Stored:
        """The type of matrices that are not quantised."""
        return "bfloat16" if self._dtype == "blocks" else self._dtype

    def _stored_as(self, entry: TensorEntry) -> Stored:
        """Return the type in which llama.cpp has a tensor (rule 1)."""
        if len(entry.shape) != 2:
            return "float32"
        return self._formats.get(entry.name, self._plain)

    def _build(self, snapshot: WeightSource, tell: Callable[[], None]) -> int:
        library = self.library
        devices = backends.device_list(self.handle)
        params = builds.model_params(
            library.llama_model_default_params(), library.layout, devices=ctypes.addressof(devices),
            n_gpu_layers=0 if self.handle is None else -1, split_mode=0, use_extra_bufts=False,
        )  # fmt: skip
        names = {entry.name: entry for entry in snapshot.tensors}
        names |= {alias: names[name] for alias, name in snapshot.aliases.items()}

        def fill(tensor: int, _: Any) -> None:
            if self._fault is None:
                try:
                    self._fill(tensor, snapshot, names)
                    tell()
                except Exception as error:  # nothing may be raised into C
                    self._fault = error

        with metadata(library, self.architecture.keys, list(self._matrix_types(names))) as keys:
            pointer = library.llama_model_init_from_user(keys, FILL_CALLBACK(fill), None, params)
        self._fault = self._fault or self._lacking(pointer, snapshot)
        if self._fault is not None:
            if pointer:
                library.llama_model_free(pointer)
            raise self._fault
        return int(pointer)

    def _lacking(self, pointer: int | None, snapshot: WeightSource) -> Exception | None:
        """Return why a model that was built cannot be used, if so."""
        if not pointer:
            return EngineError(f"llama.cpp cannot load this model: {self.library.reason('it gives no reason')}")
        unused = sorted({entry.name for entry in snapshot.tensors} - self._targets.keys())
        if unused:
            return BadSnapshot(f"llama.cpp's {self.architecture.name} has no use for {unused[0]!r} of {snapshot.path}")
        return None

    def _matrix_types(self, names: dict[str, TensorEntry]) -> Iterator[TensorPlan]:
        """Yield the matrices by type; llama.cpp knows their shapes."""
        for name in self.architecture.matrices():
            entry = names.get(str(self.architecture.source(name, names).name))
            yield TensorPlan(name, self._plain if entry is None else self._stored_as(entry), (1, BLOCK))

    def _fill(self, pointer: int, snapshot: WeightSource, names: dict[str, TensorEntry]) -> None:
        library = self.library
        name = library.ggml_get_name(pointer).decode()
        nbytes, elements = library.ggml_nbytes(pointer), library.ggml_nelements(pointer)
        self.nbytes += nbytes
        source = self.architecture.source(name, names)
        if source.name is None:
            values = np.ascontiguousarray(np.broadcast_to(np.asarray(source.values, np.float32), elements))
            self._set(pointer, values, 0)
            return
        entry = names[source.name]
        target = self._target(pointer, entry, source)
        if nbytes != _nbytes(target.stored, entry.elements):
            raise EngineError(f"llama.cpp made {name} of {nbytes} bytes, the model has {entry.elements} elements")
        self._targets.setdefault(entry.name, []).append(target)
        self._write(target, snapshot, 0, entry.shape[0])

    def _target(self, pointer: int, entry: TensorEntry, source: TensorSource) -> _Target:
        stored = self._stored_as(entry)
        place = None if source.rows is None else np.argsort(source.rows)
        memory = None
        if self.handle is None and stored in _NUMPY:
            nbytes = _nbytes(stored, entry.elements)
            address = self.library.ggml_get_data(pointer)
            memory = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address)).view(_NUMPY[stored])
        return _Target(pointer, stored, entry, source.rows, place, memory)

    # --- content

    def _write(self, target: _Target, snapshot: WeightSource, first: int, last: int) -> None:
        """Write llama.cpp's rows from `first` up to `last`."""
        bits, width = self._rows_of(target, snapshot), target.width
        rows = max(1, PIECE_ELEMENTS // width)
        for start in range(first, last, rows):
            end = min(last, start + rows)
            piece = bits[start:end] if target.rows is None else bits[target.rows[start:end]]
            values: Values = piece.reshape(-1)
            if target.stored in _NUMPY:
                values = cast(piece.reshape(-1), target.entry.dtype, target.stored, target.entry.name)
            self._set(target.pointer, values, start * target.row_bytes)

    def _rows_of(self, target: _Target, snapshot: WeightSource) -> Bits:
        """Return a tensor's rows: bits of the snapshot's type, or bytes of blocks."""
        if target.stored in _NUMPY:
            return snapshot.bits(target.entry.name).reshape(-1, target.width)
        return typing.cast("QuantisedSource", snapshot).blocks(target.entry.name)

    def _set(self, pointer: int, values: Values, offset: int) -> None:
        whole = np.ascontiguousarray(values)
        self.library.ggml_backend_tensor_set(pointer, whole.ctypes.data, offset, whole.nbytes)

    def _read(self, target: _Target) -> Values:
        values = np.empty(target.entry.elements, _NUMPY[target.stored])
        self.library.ggml_backend_tensor_get(target.pointer, values.ctypes.data, 0, values.nbytes)
        return values


_NUMPY: Final = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}


def _nbytes(stored: Stored, elements: int) -> int:
    """Return the bytes of whole rows of a type."""
    if stored in ITEM:
        return ITEM[stored] * elements
    return elements // BLOCK * BLOCK_BYTES[typing.cast("BlockFormat", stored)]


def check_shapes(architecture: Architecture, tensors: list[TensorEntry], path: Path) -> None:
    """Check rule 2, as far as the names and shapes in a file show it. Raises BadSnapshot."""
    shapes = architecture.tensors()
    foreign = sorted({entry.name for entry in tensors} - shapes.keys())
    if foreign:
        raise BadSnapshot(f"{path} is of another model: {len(foreign)} names differ, first {foreign[0]!r}")
    for entry in tensors:
        if entry.shape != shapes[entry.name]:
            raise BadSnapshot(
                f"{entry.name!r} is {entry.shape} in the snapshot, {shapes[entry.name]} in the model's config.json"
            )


def _moved_index(target: _Target, index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where llama.cpp has the elements at `index`."""
    if target.place is None:
        return index
    row, column = np.divmod(index, target.width)
    return target.place[row] * target.width + column


def _ranges(target: _Target, index: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield ranges of llama.cpp's rows that contain the elements at `index` (rule 3)."""
    rows = np.unique(_moved_index(target, index) // target.width)
    near = max(1, MOST_GAP_BYTES // target.row_bytes)
    cuts = np.flatnonzero(np.diff(rows) > near) + 1
    for part in np.split(rows, cuts):
        yield int(part[0]), int(part[-1]) + 1
