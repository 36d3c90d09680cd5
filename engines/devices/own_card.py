"""Let a process see the GPU that it computes on, and no other.

PyTorch makes a context on each card that it looks at, some 0.4 GB: n engines of one machine would take n of them on
each of n cards. The variables are read as a driver's library is loaded, so this comes before the first look.
"""

from collections.abc import Collection, MutableMapping
from typing import Final

_VARIABLES: Final = {"cuda": ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"), "xpu": ("ZE_AFFINITY_MASK",)}
"""Kind of a device, as PyTorch calls it -> the variables that its driver reads. The first that is set already counts,
else the last: PyTorch for ROCm reads both of cuda's."""


def see_alone(device: str, kinds: Collection[str], environ: MutableMapping[str, str]) -> str:
    """Hide all cards but `device` from this process; return the name that the device has then. `kinds`: those of which
    the engine's library sees one card alone. Another device, or one without a number, stays as it is."""
    kind, _, number = device.partition(":")
    if kind not in kinds or not number.isdecimal():
        return device
    variable = next((name for name in _VARIABLES[kind] if environ.get(name)), _VARIABLES[kind][-1])
    visible = [part for part in environ.get(variable, "").split(",") if part]
    if visible and int(number) >= len(visible):
        return device
    environ[variable] = visible[int(number)] if visible else number
    return f"{kind}:0"
