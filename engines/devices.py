"""Choose the device to compute on, by name or by `auto`, and state the reason.

Rules
1. `auto` takes the CUDA (or ROCm) GPU with the most free memory, else a Mac's GPU, else the CPU, and says why.
2. A device that is named is used or refused, never replaced.
3. If a GPU is present but unusable (a CPU-only PyTorch, a broken driver), the reason names it.
4. An engine only gets a device of a kind that it supports (engines.registry, `devices`).
"""

import platform
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from runtime.figures import apart

KINDS: Final = ("cuda", "mps", "cpu")
"""Kinds of devices, the fastest first."""

_CPU_ONLY = "this PyTorch is built for CPUs only; install a GPU build (see PyTorch's install page)"


class NoDevice(Exception):
    """The device asked for cannot be used; the message names the fix."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """`free`, `total`: bytes of memory. `fault`: the reason why it cannot be used, or empty."""

    name: str
    free: int
    total: int
    fault: str = ""


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of this machine. `cuda`: GPUs in PyTorch's order. `unused`: a GPU that PyTorch does not see, or
    empty."""

    cpu: str
    cuda: list[Gpu] = []
    mps: bool = False
    unused: str = ""


class ComputeDevice(msgspec.Struct, frozen=True, kw_only=True):
    """`kind`: as PyTorch names it ('cpu', 'cuda:0', 'mps'). `name`: of the hardware. `why`: one line for a person."""

    kind: str
    name: str
    why: str


def inventory() -> Inventory:
    """Look for the devices of this machine. Imports torch: call it in a child process only."""
    import torch

    gpus = [_gpu(index) for index in range(torch.cuda.device_count())]
    unused = ""
    if not gpus and (present := gpu_present()):
        built_for_gpu = torch.version.cuda is not None or torch.version.hip is not None
        unused = f"{present} is present, but {'its driver shows PyTorch no device' if built_for_gpu else _CPU_ONLY}"
    return Inventory(cpu=_cpu_name(), cuda=gpus, mps=torch.backends.mps.is_available(), unused=unused)


def choose(spec: str, available: Inventory | None = None, kinds: Collection[str] = KINDS) -> ComputeDevice:
    """Choose a device. `spec`: 'auto', 'cpu', 'cuda', 'cuda:N' or 'mps'. `available`: by default this machine's.
    `kinds`: those that the engine supports. Raises NoDevice."""
    available = available or inventory()
    kind, _, number = spec.partition(":")
    if kind in KINDS and kind not in kinds:
        raise NoDevice(f"this engine does not compute on {kind}: use auto or {' or '.join(kinds)}")
    if spec == "auto":
        return _auto(available, kinds)
    if spec == "cpu":
        return ComputeDevice(kind="cpu", name=available.cpu, why="asked for")
    if spec == "mps":
        if not available.mps:
            raise NoDevice("no Metal GPU is available to PyTorch here; use --gpu auto or --gpu cpu")
        return ComputeDevice(kind="mps", name="Apple GPU", why="asked for")
    if kind != "cuda" or not (number or "0").isdecimal():
        raise NoDevice(f"{spec!r} is no device: use auto, cpu, cuda, cuda:N or mps")
    index = int(number or 0)
    if index >= len(available.cuda):
        raise NoDevice(
            f"cuda:{index} does not exist: {available.unused or f'PyTorch sees {len(available.cuda)} CUDA devices'}"
        )
    gpu = available.cuda[index]
    if gpu.fault:
        raise NoDevice(f"cuda:{index} ({gpu.name}) cannot be used: {gpu.fault}")
    return ComputeDevice(kind=f"cuda:{index}", name=gpu.name, why="asked for")


def _auto(available: Inventory, kinds: Collection[str]) -> ComputeDevice:
    usable = [index for index, gpu in enumerate(available.cuda) if not gpu.fault and "cuda" in kinds]
    if usable:
        best = max(usable, key=lambda index: (available.cuda[index].free, -index))
        gpu = available.cuda[best]
        among = f" of {len(usable)} GPUs" if len(usable) > 1 else ""
        free, total = apart(gpu.free / 2**30, gpu.total / 2**30)
        why = f"most free memory{among}: {free} of {total} GiB"
        return ComputeDevice(kind=f"cuda:{best}", name=gpu.name, why=why)
    faults = [
        f"cuda:{index} ({gpu.name}) cannot be used: {gpu.fault}"
        for index, gpu in enumerate(available.cuda)
        if gpu.fault
    ]
    if available.mps and "mps" in kinds:
        return ComputeDevice(kind="mps", name="Apple GPU", why="the Mac's own GPU")
    other = "the engine does not use the GPU here" if available.cuda or available.mps else "no GPU found"
    why = "; ".join(filter(None, [*faults, available.unused])) or other
    if "cpu" not in kinds:
        raise NoDevice(f"this engine computes on {' or '.join(kinds)} only: {why}")
    return ComputeDevice(kind="cpu", name=available.cpu, why=why)


def _gpu(index: int) -> Gpu:
    import torch

    name = torch.cuda.get_device_name(index)
    try:
        free, total = torch.cuda.mem_get_info(index)
        (torch.ones(1, device=f"cuda:{index}") + 1).item()
    except RuntimeError as error:  # a driver too old, a card of an architecture this build has no code for, a full one
        return Gpu(name=name, free=0, total=0, fault=str(error).splitlines()[0])
    return Gpu(name=name, free=free, total=total)


def gpu_present() -> str:
    """Name a GPU that the system shows, independent of PyTorch's build; empty without one."""
    if Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi"):
        return "an NVIDIA GPU"
    if Path("/dev/kfd").exists():
        return "an AMD GPU"
    return ""


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for text_line in cpuinfo.read_text(errors="replace").splitlines():
            if text_line.startswith("model name"):
                return text_line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
