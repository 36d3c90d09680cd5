"""A version's low-rank adapter (weights.lora) in llama.cpp: beside the frozen base's matrices, never merged into them.

1. llama.cpp reads an adapter from a GGUF file alone. It is written to a temporary file, in float32, read, and removed;
   an adapter has a few megabytes.
2. Of a matrix whose rows llama.cpp has in another order, B has its rows in that order too.
3. A context computes with the adapter once it is attached. All contexts are freed before the adapter is replaced.
"""

import ctypes
import tempfile
from collections.abc import Iterator
from ctypes import c_bool, c_char_p, c_float, c_int32, c_size_t, c_void_p
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from echo2.engines.engine import EngineError
from echo2.engines.llamacpp.casts import GGML_TYPES
from echo2.engines.llamacpp.library import InitParams, Library
from echo2.engines.llamacpp.resident_model import ResidentModel
from echo2.weights.errors import BadSnapshot
from echo2.weights.hf_import import floats_of
from echo2.weights.lora.adapter_config import INNER_SUFFIX, OUTER_SUFFIX, PREFIX, AdapterConfig, adapter_shapes
from echo2.weights.snapshot import Snapshot

_FUNCTIONS: Final[dict[str, tuple[Any, list[Any]]]] = {
    "gguf_set_tensor_data": (None, [c_void_p, c_char_p, c_void_p]),
    "gguf_write_to_file": (c_bool, [c_void_p, c_char_p, c_bool]),
    "llama_adapter_lora_init": (c_void_p, [c_void_p, c_char_p]),
    "llama_adapter_lora_free": (None, [c_void_p]),
    "llama_set_adapters_lora": (c_int32, [c_void_p, c_void_p, c_size_t, c_void_p]),
}  # fmt: skip
"""The functions that only a run of adapters needs: result and arguments."""

Floats = NDArray[np.float32]


class _Part(NamedTuple):
    """A matrix of the adapter. `name`: llama.cpp's. `values`: [rows, columns]."""

    name: str
    values: Floats


class LoraAdapter:
    """The adapter of a loaded base. `config`: its settings. `nbytes`: bytes of its matrices. Call `load` before
    `attach`."""

    def __init__(self, library: Library, model: ResidentModel, config: AdapterConfig) -> None:
        """Raises EngineError for a library that knows no adapters."""
        self._library, self._model, self._config = library, model, config
        self._calls = {name: library.other(name, *signature) for name, signature in _FUNCTIONS.items()}
        self._pointer: int | None = None
        self._modules = _modules(model, config)
        self.nbytes = 0

    def load(self, version: Snapshot) -> None:
        """Replace the adapter by a version's. Raises BadSnapshot for one of another base or rank, EngineError."""
        self._check(version)
        parts = list(self._parts(version))
        self.close()
        with tempfile.TemporaryDirectory(prefix="echo2-adapter-") as folder:
            path = str(Path(folder) / "adapter.gguf").encode()
            self._write(parts, path)
            pointer = self._calls["llama_adapter_lora_init"](self._model.pointer, path)
        if not pointer:
            raise EngineError(f"llama.cpp cannot load this adapter: {self._library.reason('it gives no reason')}")
        self._pointer, self.nbytes = int(pointer), sum(part.values.nbytes for part in parts)

    def attach(self, context: int) -> None:
        """Have a context compute with the adapter. Raises EngineError."""
        adapters, scales = (c_void_p * 1)(self._pointer), (c_float * 1)(1.0)
        if self._calls["llama_set_adapters_lora"](context, ctypes.addressof(adapters), 1, ctypes.addressof(scales)):
            raise EngineError(f"llama.cpp does not take this adapter: {self._library.reason('it gives no reason')}")

    def close(self) -> None:
        """Free the adapter. No context uses it any more."""
        if self._pointer is not None:
            self._calls["llama_adapter_lora_free"](self._pointer)
        self._pointer = None

    def _check(self, version: Snapshot) -> None:
        wanted = adapter_shapes({module: shape for module, (_, shape) in self._modules.items()}, self._config.r)
        has = {entry.name: entry.shape for entry in version.tensors}
        if has != wanted:
            name = sorted(has.items() ^ wanted.items())[0][0]
            raise BadSnapshot(f"{version.path} is the adapter of another base or rank: {name!r} differs")

    def _parts(self, version: Snapshot) -> Iterator[_Part]:
        dtypes = {entry.name: (entry.dtype, entry.shape) for entry in version.tensors}
        for module, (name, _) in self._modules.items():
            for ending, llama_ending in ((INNER_SUFFIX, "lora_a"), (OUTER_SUFFIX, "lora_b")):
                own = f"{PREFIX}{module}{ending}"
                dtype, shape = dtypes[own]
                values = floats_of(version.bits(own), dtype).reshape(shape)
                rows = self._model.architecture.source(name, (f"{module}.weight",)).rows
                if ending == OUTER_SUFFIX and rows is not None:
                    values = values[rows]
                yield _Part(f"{name}.{llama_ending}", np.ascontiguousarray(values))

    def _write(self, parts: list[_Part], path: bytes) -> None:
        """Write the GGUF file (rule 1)."""
        library = self._library
        file = library.gguf_init_empty()
        context = library.ggml_init(InitParams(library.ggml_tensor_overhead() * (len(parts) + 1), None, True))
        try:
            architecture = self._model.architecture.name.encode()
            for key, value in ((b"general.type", b"adapter"), (b"general.architecture", architecture)):
                library.gguf_set_val_str(file, key, value)
            library.gguf_set_val_str(file, b"adapter.type", b"lora")
            library.gguf_set_val_f32(file, b"adapter.lora.alpha", self._config.lora_alpha)
            for part in parts:
                rows, columns = part.values.shape
                tensor = library.ggml_new_tensor_2d(context, GGML_TYPES["float32"], columns, rows)
                library.ggml_set_name(tensor, part.name.encode())
                library.gguf_add_tensor(file, tensor)
                self._calls["gguf_set_tensor_data"](file, part.name.encode(), part.values.ctypes.data)
            if not self._calls["gguf_write_to_file"](file, path, False):
                raise EngineError(f"cannot write an adapter of llama.cpp to {tempfile.gettempdir()}: free some space")
        finally:
            library.gguf_free(file)
            library.ggml_free(context)


def _modules(model: ResidentModel, config: AdapterConfig) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return target module -> llama.cpp's name of its weight, and the weight's shape."""
    own = {name.removesuffix(".weight"): shape for name, shape in model.architecture.tensors().items()}
    llama = {}
    for name in model.architecture.matrices():
        source = model.architecture.source(name, [f"{module}.weight" for module in own])
        llama[str(source.name).removesuffix(".weight")] = name
    return {module: (llama[module], own[module]) for module in config.targets(own) if module in llama}
