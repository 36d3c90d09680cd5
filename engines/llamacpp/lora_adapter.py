"""A version's low-rank adapter (weights.lora) in llama.cpp: beside the frozen base's matrices, never merged into them.

1. llama.cpp reads an adapter from a GGUF file alone. It is written to a temporary file, in float32, read, and removed;
   an adapter has a few megabytes.
2. Of a matrix whose rows llama.cpp has in another order, B has its rows in that order too.
3. A context computes with the adapter once it is attached. All contexts are freed before the adapter is replaced.
"""

import ctypes
import math
import tempfile
from collections.abc import Iterator
from ctypes import c_char_p, c_float, c_int32, c_size_t, c_void_p
from pathlib import Path
from typing import Any, Final

from echo2.engines.engine import EngineError
from echo2.engines.llamacpp import gguf_file
from echo2.engines.llamacpp.gguf_file import FilledTensor, TensorPlan, Value
from echo2.engines.llamacpp.library import Library
from echo2.engines.llamacpp.resident_model import ResidentModel
from echo2.weights.errors import BadSnapshot
from echo2.weights.hf_import import floats_of
from echo2.weights.lora.adapter_config import INNER_SUFFIX, OUTER_SUFFIX, PREFIX, AdapterConfig, adapter_shapes
from echo2.weights.snapshot import Snapshot

_FUNCTIONS: Final[dict[str, tuple[Any, list[Any]]]] = {
    "llama_adapter_lora_init": (c_void_p, [c_void_p, c_char_p]),
    "llama_adapter_lora_free": (None, [c_void_p]),
    "llama_set_adapters_lora": (c_int32, [c_void_p, c_void_p, c_size_t, c_void_p]),
}  # fmt: skip
"""The functions that only a run of adapters needs: result and arguments."""


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
            path = Path(folder) / "adapter.gguf"
            gguf_file.write(self._library, path, self._keys(), parts)
            pointer = self._calls["llama_adapter_lora_init"](self._model.pointer, str(path).encode())
        if not pointer:
            raise EngineError(f"llama.cpp cannot load this adapter: {self._library.reason('it gives no reason')}")
        self._pointer = int(pointer)
        self.nbytes = sum(4 * math.prod(part.plan.shape) for part in parts)

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

    def _parts(self, version: Snapshot) -> Iterator[FilledTensor]:
        dtypes = {entry.name: (entry.dtype, entry.shape) for entry in version.tensors}
        for module, (name, _) in self._modules.items():
            for ending, llama_ending in ((INNER_SUFFIX, "lora_a"), (OUTER_SUFFIX, "lora_b")):
                own = f"{PREFIX}{module}{ending}"
                dtype, shape = dtypes[own]
                values = floats_of(version.bits(own), dtype).reshape(shape)
                rows = self._model.architecture.source(name, (f"{module}.weight",)).rows
                if ending == OUTER_SUFFIX and rows is not None:
                    values = values[rows]
                plan = TensorPlan(f"{name}.{llama_ending}", "float32", (values.shape[0], values.shape[1]))
                yield FilledTensor(plan, lambda values=values: values)  # type: ignore[misc]

    def _keys(self) -> dict[str, Value]:
        return {
            "general.type": "adapter", "general.architecture": self._model.architecture.name, "adapter.type": "lora",
            "adapter.lora.alpha": float(self._config.lora_alpha),
        }  # fmt: skip


def _modules(model: ResidentModel, config: AdapterConfig) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return target module -> llama.cpp's name of its weight, and the weight's shape."""
    own = {name.removesuffix(".weight"): shape for name, shape in model.architecture.tensors().items()}
    llama = {}
    for name in model.architecture.matrices():
        source = model.architecture.source(name, [f"{module}.weight" for module in own])
        llama[str(source.name).removesuffix(".weight")] = name
    return {module: (llama[module], own[module]) for module in config.targets(own) if module in llama}
