"""Write GGUF files: keys and tensors by llama.cpp's own functions, so that the form is that of its build. No torch.

Rules
1. The head of a file, or the gguf_context of a model in memory, has the keys, and each tensor by name, type and shape.
2. The content of a file follows its head, tensor by tensor, each from an offset that `ALIGNMENT` divides. One tensor is
   in memory at a time.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import c_bool, c_char_p, c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from echo2.engines.llamacpp.casts import GGML_TYPES, Values
from echo2.engines.llamacpp.library import InitParams, Library
from echo2.runtime.files import writing

Stored = Literal["float32", "float16", "bfloat16", "q8_0", "q4_0"]
Value = str | bool | int | float | Sequence[str] | Sequence[int] | Sequence[float]
"""A key's value. A sequence has at least one element."""
ALIGNMENT: Final = 32
"""Bytes: llama.cpp's default."""
_INT32: Final = 5
"""Number of the type of an array's elements in GGUF."""
_FLOAT32: Final = 6
_FUNCTIONS: Final[dict[str, tuple[Any, list[Any]]]] = {
    "gguf_set_val_bool": (None, [c_void_p, c_char_p, c_bool]),
    "gguf_set_arr_str": (None, [c_void_p, c_char_p, c_void_p, c_size_t]),
    "gguf_set_arr_data": (None, [c_void_p, c_char_p, c_int, c_void_p, c_size_t]),
    "gguf_get_meta_size": (c_size_t, [c_void_p]),
    "gguf_get_meta_data": (None, [c_void_p, c_void_p]),
}
"""The functions that only files need: result and arguments."""


class TensorPlan(NamedTuple):
    """A tensor as the head states it. `shape`: [rows, columns] of a matrix, else [elements]."""

    name: str
    stored: Stored
    shape: tuple[int, ...]


class FilledTensor(NamedTuple):
    """A tensor of a file. `values`: returns its elements as `plan.stored` has them."""

    plan: TensorPlan
    values: Callable[[], Values]


@contextmanager
def metadata(library: Library, keys: Mapping[str, Value], tensors: Sequence[TensorPlan]) -> Iterator[int]:
    """Yield the gguf_context of keys and of tensors without content (rule 1)."""
    pointer = library.gguf_init_empty()
    context = library.ggml_init(InitParams(library.ggml_tensor_overhead() * (len(tensors) + 1), None, True))
    try:
        for key, value in keys.items():
            _set_key(library, pointer, key.encode(), value)
        for plan in tensors:
            rows, columns = plan.shape if len(plan.shape) == 2 else (1, *plan.shape)
            tensor = library.ggml_new_tensor_2d(context, GGML_TYPES[plan.stored], columns, rows)
            library.ggml_set_name(tensor, plan.name.encode())
            library.gguf_add_tensor(pointer, tensor)
        yield pointer
    finally:
        library.gguf_free(pointer)
        library.ggml_free(context)


def write(library: Library, path: Path, keys: Mapping[str, Value], tensors: Sequence[FilledTensor]) -> None:
    """Write a file (rules 1 and 2). Raises `DiskFull`, EngineError."""
    with metadata(library, keys, [tensor.plan for tensor in tensors]) as pointer:
        head = ctypes.create_string_buffer(_call(library, "gguf_get_meta_size", pointer))
        _call(library, "gguf_get_meta_data", pointer, head)
    with writing(path) as file:
        file.write(head.raw)
        for tensor in tensors:
            content = np.ascontiguousarray(tensor.values()).reshape(-1).view(np.uint8)
            file.write(content.data)
            file.write(bytes(-len(content) % ALIGNMENT))


def _set_key(library: Library, pointer: int, key: bytes, value: Value) -> None:
    if isinstance(value, str):
        library.gguf_set_val_str(pointer, key, value.encode())
    elif isinstance(value, bool):
        _call(library, "gguf_set_val_bool", pointer, key, value)
    elif isinstance(value, float):
        library.gguf_set_val_f32(pointer, key, value)
    elif isinstance(value, int):
        library.gguf_set_val_u32(pointer, key, value)
    elif isinstance(value[0], str):
        texts = (c_char_p * len(value))(*(str(text).encode() for text in value))
        _call(library, "gguf_set_arr_str", pointer, key, texts, len(value))
    else:
        kind, stored = (_FLOAT32, np.float32) if isinstance(value[0], float) else (_INT32, np.int32)
        numbers = np.asarray(value, stored)
        _call(library, "gguf_set_arr_data", pointer, key, kind, numbers.ctypes.data, len(numbers))


def _call(library: Library, name: str, *arguments: Any) -> Any:
    return library.other(name, *_FUNCTIONS[name])(*arguments)
