from types import SimpleNamespace
from typing import Any

import pytest

from echo2.engines.devices import devices
from echo2.engines.devices.system_gpus import SystemGpu
from echo2.engines.engine import EngineError
from echo2.engines.llamacpp import backends
from tests.support import llama_cpp

GIB = 2**30


def stand_in(*rows: tuple[str, str, int]) -> Any:
    """Return a library with devices of (backend, description, GiB free), and the CPU."""
    table = [("CPU", "a processor", 0), *rows]

    def memory(handle: int, free: Any, total: Any) -> None:
        free._obj.value, total._obj.value = table[handle][2] * GIB, 24 * GIB

    return SimpleNamespace(
        origin="a library",
        built_with=frozenset({"cpu", "vulkan"}),
        ggml_backend_dev_count=lambda: len(table),
        ggml_backend_dev_get=lambda number: number,
        ggml_backend_dev_backend_reg=lambda handle: handle,
        ggml_backend_reg_name=lambda handle: table[handle][0].encode(),
        ggml_backend_dev_description=lambda handle: table[handle][1].encode(),
        ggml_backend_dev_memory=memory,
    )


def test_the_devices_are_the_library_s_gpus_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    library = stand_in(
        ("Vulkan", "a card", 20), ("BLAS", "Accelerate", 0), ("Vulkan", "llvmpipe (LLVM 15)", 2), ("ROCm", "a card", 20)
    )
    monkeypatch.setattr(backends, "library", lambda: library)
    found_here = backends.inventory()
    assert {kind: [gpu.name for gpu in gpus] for kind, gpus in found_here.gpus.items()} == {
        "vulkan": ["a card", "llvmpipe (LLVM 15)"], "rocm": ["a card"],
    }  # fmt: skip
    assert [gpu.emulated for gpu in found_here.gpus["vulkan"]] == [False, True]
    assert devices.choose("auto", found_here).kind == "rocm:0"
    assert backends.device(library, "vulkan:1") == 3
    assert backends.device(library, "cpu") is None
    assert backends.free_memory(library, 1) == 20 * GIB
    assert backends.free_memory(library, None) > 0


def test_a_gpu_that_the_library_does_not_see_is_named_with_the_command_that_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = SystemGpu(vendor="amd", driver="amdgpu")
    monkeypatch.setattr(backends, "system_gpus", lambda: [card])
    monkeypatch.setattr(backends, "library", lambda: stand_in(("Vulkan", "llvmpipe", 2)))
    assert "an AMD GPU is present, but llama.cpp sees no device" in devices.choose("auto", backends.inventory()).why
    assert "apt install libvulkan1" in backends.inventory().unused
    monkeypatch.setattr(backends, "library", lambda: stand_in(("Vulkan", "a card", 2)))
    assert backends.inventory().unused == ""


def test_a_gpu_that_vanished_is_named() -> None:
    with pytest.raises(EngineError, match=r"vulkan:0 is gone: llama\.cpp sees 0 vulkan devices now"):
        backends.device(stand_in(), "vulkan:0")


def test_a_list_of_devices_ends_with_null() -> None:
    assert list(backends.device_list(None)) == [None]
    assert list(backends.device_list(7)) == [7, None]


@llama_cpp.needed
def test_this_machine_s_processor_is_named() -> None:
    assert backends.inventory().cpu == devices.cpu_name()
