"""Read the devices that the setting `gpu` names. Pure.

    auto           one device, which is timed or chosen
    cuda:1         this device
    cuda:0,cpu     an engine on each
    0,2            those GPUs, in the order in which the first engine that sees any numbers them
    all            all of them

A GPU may be named once; the CPU as often as the owner likes, with an engine each.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from echo2.engines.devices.devices import KINDS, SINGLE_DEVICE_KINDS, Gpu, Inventory, NoDevice

if TYPE_CHECKING:
    from echo2.engines.process.candidates import Sight

PATTERN: Final = (
    r"^(auto|all|\d{1,2}(,\d{1,2})*"
    r"|(cpu|mps|metal|(cuda|rocm|xpu|vulkan)(:\d{1,2})?)(,(cpu|mps|metal|(cuda|rocm|xpu|vulkan)(:\d{1,2})?))*)$"
)
DEVICE_NAME: Final = r"(0|[1-9]\d?)|cpu|mps|metal|(cuda|rocm|xpu|vulkan):(0|[1-9]\d?)"
"""Pattern of an owner's word for one device."""
ALL_DEVICES: Final = "all"


def has_bare_numbers(spec: str) -> bool:
    """Tell whether a setting names GPUs without their kind, so that the engines must be asked what they see."""
    return spec == ALL_DEVICES or re.fullmatch(r"\d+(,\d+)*", spec) is not None


def device_list(spec: str) -> list[str]:
    """Return the devices of a setting that is not `numbered`. Raises NoDevice for a GPU that is named twice."""
    devices = spec.split(",")
    whole = [one if one in ("auto", *SINGLE_DEVICE_KINDS) or ":" in one else f"{one}:0" for one in devices]
    twice = next((one for one in whole if one != "cpu" and whole.count(one) > 1), None)
    if twice is not None:
        raise NoDevice(f"--gpu {spec} names {twice} twice: an engine takes a whole GPU, name it once")
    return devices


def numbered_devices(spec: str, sights: "Sequence[Sight]") -> list[str]:
    """Return the devices of a `numbered` setting. Raises NoDevice for a number that there is not, or no GPU."""
    for kind in KINDS:
        for sight in sights:
            gpus = sight.inventory.gpus.get(kind, []) if kind in sight.devices and kind != "cpu" else []
            if usable := [number for number, gpu in enumerate(gpus) if not gpu.fault and not gpu.emulated]:
                numbers = usable if spec == ALL_DEVICES else [int(one) for one in spec.split(",")]
                return device_list(",".join(_device(spec, kind, number, gpus) for number in numbers))
    reasons = "; ".join(filter(None, (sight.fault or sight.inventory.unused for sight in sights)))
    raise NoDevice(f"--gpu {spec}: no GPU can be used here{f' ({reasons})' if reasons else ''}")


def hardware_of(device: str, inventory: Inventory) -> str:
    """Return the name of a device's hardware; the device itself where an engine does not see it."""
    kind, _, number = device.partition(":")
    if kind == "cpu":
        return inventory.cpu
    gpus = inventory.gpus.get(kind, [])
    return gpus[int(number or 0)].name if int(number or 0) < len(gpus) else device


def _device(spec: str, kind: str, number: int, gpus: Sequence[Gpu]) -> str:
    if number >= len(gpus):
        raise NoDevice(f"--gpu {spec}: there is no GPU {number}, the engine sees {len(gpus)} {kind} devices")
    if gpus[number].fault:
        raise NoDevice(f"--gpu {spec}: GPU {number} ({gpus[number].name}) cannot be used: {gpus[number].fault}")
    return kind if kind in SINGLE_DEVICE_KINDS else f"{kind}:{number}"
