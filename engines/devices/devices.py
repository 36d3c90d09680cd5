"""Choose the device to compute on, by name or by `auto`, and state the reason.

Rules
1. `auto` takes the GPU with the most free memory of the first kind in `KINDS` that has a usable one, else the CPU, and
   says why. It never takes a GPU that is emulated on the CPU.
2. A device that is named is used or refused, never replaced.
3. If a GPU is present but unusable (a CPU-only PyTorch, a broken driver), the reason names it and the command that
   helps (engines.devices.gpu_remedies).
4. An engine only gets a device of a kind that it supports (engines.registry, `devices`).
"""

import platform
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from echo2.engines.devices.gpu_remedies import TorchBuild, for_torch
from echo2.engines.devices.system_gpus import system_gpus
from echo2.runtime.figures import apart

KINDS: Final = ("cuda", "rocm", "xpu", "metal", "mps", "vulkan", "cpu")
"""Kinds of devices, the fastest first. PyTorch calls ROCm's GPUs cuda, Intel's xpu, and a Mac's mps."""
SINGLE_DEVICE_KINDS: Final = ("metal", "mps", "cpu")
"""Kinds of which a machine has one device, named without a number."""
T = TypeVar("T")


class NoDevice(Exception):
    """The device asked for cannot be used; the message names the fix."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """`free`, `total`: bytes of memory, 0 where it is not known. `fault`: the reason why it cannot be used, or empty.
    `emulated`: it is a program on the CPU."""

    name: str
    free: int = 0
    total: int = 0
    fault: str = ""
    emulated: bool = False


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of this machine that an engine can see. `gpus`: kind -> GPUs in the engine's order. `unused`: a GPU
    that the engine does not see, or empty."""

    cpu: str
    gpus: dict[str, list[Gpu]] = {}
    unused: str = ""


class ComputeDevice(msgspec.Struct, frozen=True, kw_only=True):
    """`kind`: one of `KINDS`, with its number where there may be several ('cpu', 'cuda:0', 'mps'). `name`: name of the
    hardware. `why`: one line for a person."""

    kind: str
    name: str
    why: str


def inventory() -> Inventory:
    """Look for the devices of PyTorch. Imports torch: call it in a child process only."""
    import torch

    gpus = {"cuda": [_gpu("cuda", index) for index in range(torch.cuda.device_count())]}
    if torch.xpu.is_available():
        gpus["xpu"] = [_gpu("xpu", index) for index in range(torch.xpu.device_count())]
    if torch.backends.mps.is_available():
        gpus["mps"] = [Gpu(name="Apple GPU")]
    unused = "" if any(gpus.values()) else for_torch(system_gpus(), _build())
    return Inventory(cpu=cpu_name(), gpus=gpus, unused=unused)


def choose(spec: str, available: Inventory | None = None, kinds: Collection[str] = KINDS) -> ComputeDevice:
    """Choose a device. `spec`: auto, or one of `KINDS`, with a number where there may be several. `available`: devices;
    by default PyTorch's devices. `kinds`: those that the engine supports. Raises NoDevice."""
    check_name(spec, kinds)
    available = available or inventory()
    if spec == "auto":
        return _auto(available, kinds)
    kind, _, number = spec.partition(":")
    if kind == "cpu":
        return ComputeDevice(kind="cpu", name=available.cpu, why="asked for")
    gpus, index = available.gpus.get(kind, []), int(number or 0)
    if index >= len(gpus):
        raise NoDevice(f"{spec} does not exist: {available.unused or f'the engine sees {len(gpus)} {kind} devices'}")
    if gpus[index].fault:
        raise NoDevice(f"{_device_name(kind, index)} ({gpus[index].name}) cannot be used: {gpus[index].fault}")
    return ComputeDevice(kind=_device_name(kind, index), name=gpus[index].name, why="asked for")


def check_name(spec: str, kinds: Collection[str]) -> None:
    """Check that `choose` could take a device of this name somewhere. Raises NoDevice."""
    kind, _, number = spec.partition(":")
    if spec == "auto":
        return
    if kind not in KINDS or not (number or "0").isdecimal() or (number and kind in SINGLE_DEVICE_KINDS):
        known = ", ".join(one for one in KINDS if one in kinds)
        raise NoDevice(f"{spec!r} is no device: use auto, {known}, or a number too, as in cuda:1")
    if kind not in kinds:
        raise NoDevice(f"this engine does not compute on {kind}: use auto or {' or '.join(kinds)}")


def _auto(available: Inventory, kinds: Collection[str]) -> ComputeDevice:
    for kind in KINDS:
        gpus = available.gpus.get(kind, []) if kind in kinds else []
        usable = [index for index, gpu in enumerate(gpus) if not gpu.fault and not gpu.emulated]
        if usable:
            best = max(usable, key=lambda index: (gpus[index].free, -index))
            why = _reason(gpus[best], len(usable))
            return ComputeDevice(kind=_device_name(kind, best), name=gpus[best].name, why=why)
    faults = [
        f"{_device_name(kind, index)} ({gpu.name}) cannot be used: {gpu.fault}"
        for kind, gpus in available.gpus.items()
        for index, gpu in enumerate(gpus)
        if gpu.fault
    ]
    real = any(not gpu.emulated for gpus in available.gpus.values() for gpu in gpus)
    other = "the engine does not use the GPU here" if real else "no GPU found"
    why = "; ".join(filter(None, [*faults, available.unused])) or other
    if "cpu" not in kinds:
        raise NoDevice(f"this engine computes on {' or '.join(kinds)} only: {why}")
    return ComputeDevice(kind="cpu", name=available.cpu, why=why)


def names_device(name: str, device: str) -> bool:
    """Tell whether an owner's word, as in 1 or cuda:1, names a device."""
    return name in (device, device.partition(":")[2])


def value_for(by_name: Mapping[str, T], device: str) -> T | None:
    """Return the value of a device among those by an owner's words; that of all others is under ''."""
    return by_name.get(device, by_name.get(device.partition(":")[2], by_name.get("")))


def _reason(gpu: Gpu, among: int) -> str:
    if not gpu.total:
        return "this machine's own GPU"
    free, total = apart(gpu.free / 2**30, gpu.total / 2**30)
    return f"most free memory{f' of {among} GPUs' if among > 1 else ''}: {free} of {total} GiB"


def _device_name(kind: str, index: int) -> str:
    return kind if kind in SINGLE_DEVICE_KINDS else f"{kind}:{index}"


def _gpu(kind: str, index: int) -> Gpu:
    import torch

    interface = getattr(torch, kind)
    name = interface.get_device_name(index)
    try:
        free, total = interface.mem_get_info(index)
        (torch.ones(1, device=f"{kind}:{index}") + 1).item()
    except RuntimeError as error:  # a driver too old, a card of an architecture this build has no code for, a full one
        return Gpu(name=name, free=0, total=0, fault=str(error).splitlines()[0])
    return Gpu(name=name, free=free, total=total)


def _build() -> TorchBuild:
    import torch

    return TorchBuild(
        version=torch.__version__.partition("+")[0], cuda=torch.version.cuda or "", rocm=torch.version.hip or "",
        xpu=torch.version.xpu or "", metal=torch.backends.mps.is_built(),
    )  # fmt: skip


def cpu_name() -> str:
    """Return the name of this machine's processor."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for text_line in cpuinfo.read_text(errors="replace").splitlines():
            if text_line.startswith("model name"):
                return text_line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
