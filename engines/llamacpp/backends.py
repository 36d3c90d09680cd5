"""List the devices that llama.cpp's backends compute on."""

import ctypes
import functools
from ctypes import byref, c_size_t, c_void_p
from typing import Final, NamedTuple

from echo2.engines.devices.devices import Gpu, Inventory, cpu_name
from echo2.engines.devices.gpu_remedies import for_llama
from echo2.engines.devices.memory_reserve import less_reserve
from echo2.engines.devices.system_gpus import system_gpus
from echo2.engines.engine import EngineError
from echo2.engines.llamacpp.library import Library, open_library
from echo2.runtime.host_memory import available_memory

_KINDS: Final = {"CUDA": "cuda", "ROCm": "rocm", "HIP": "rocm", "Metal": "metal", "MTL": "metal", "Vulkan": "vulkan"}
"""A backend's name -> kind of device."""
_EMULATED_GPUS: Final = ("llvmpipe", "SwiftShader", "Microsoft Basic Render")
"""Parts of the names of GPUs that are programs on the CPU."""


class LlamaDevice(NamedTuple):
    """A GPU of the library. `handle`: ggml_backend_dev_t."""

    kind: str
    handle: int
    gpu: Gpu


@functools.cache
def library() -> Library:
    """Return this process's llama.cpp. Raises EngineError."""
    return open_library()


def inventory() -> Inventory:
    """Look for the devices of llama.cpp. Call in a child process only: it loads drivers. Raises EngineError."""
    gpus: dict[str, list[Gpu]] = {}
    for backend in backends(library()):
        gpus.setdefault(backend.kind, []).append(backend.gpu)
    real = any(not gpu.emulated for some in gpus.values() for gpu in some)
    unused = "" if real else for_llama(system_gpus(), library().origin, library().built_with)
    return Inventory(cpu=cpu_name(), gpus=gpus, unused=unused)


def builds() -> list[str]:
    """Return the build of the library. Call in a child process only. Raises EngineError."""
    return [f"{library().origin} {library().build}"]


def backends(library: Library) -> list[LlamaDevice]:
    """Return the GPUs of the library, in its order."""
    handles = [library.ggml_backend_dev_get(number) for number in range(library.ggml_backend_dev_count())]
    kinds = [(_kind(library, handle), handle) for handle in handles]
    return [LlamaDevice(kind, handle, _gpu(library, handle)) for kind, handle in kinds if kind is not None]


def device(library: Library, name: str) -> int | None:
    """Return the handle of a device by its name, such as vulkan:0; None: the CPU. Raises EngineError."""
    kind, _, number = name.partition(":")
    if kind == "cpu":
        return None
    handles = [backend.handle for backend in backends(library) if backend.kind == kind]
    if int(number or 0) >= len(handles):
        raise EngineError(f"{name} is gone: llama.cpp sees {len(handles)} {kind} devices now; choose another device")
    return handles[int(number or 0)]


def free_memory(library: Library, handle: int | None) -> int:
    """Return the free bytes of a device, without the owner's reserve; None: of the CPU."""
    return less_reserve(available_memory() if handle is None else _memory(library, handle)[0])


def _kind(library: Library, handle: int) -> str | None:
    name = library.ggml_backend_reg_name(library.ggml_backend_dev_backend_reg(handle)).decode()
    return _KINDS.get(name)


def _gpu(library: Library, handle: int) -> Gpu:
    name = library.ggml_backend_dev_description(handle).decode(errors="replace")
    free, total = _memory(library, handle)
    return Gpu(name=name, free=free, total=total, emulated=any(part in name for part in _EMULATED_GPUS))


def _memory(library: Library, handle: int) -> tuple[int, int]:
    free, total = c_size_t(), c_size_t()
    library.ggml_backend_dev_memory(handle, byref(free), byref(total))
    return free.value, total.value


def device_list(handle: int | None) -> "ctypes.Array[c_void_p]":
    """Return the NULL-terminated list of devices that a model may use: the CPU is not named in it."""
    handles = [] if handle is None else [handle]
    return (c_void_p * (len(handles) + 1))(*handles, None)
