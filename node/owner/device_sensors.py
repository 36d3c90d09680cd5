"""Temperature, power and memory of the devices that generate: by NVML, by the kernel's files of a card, or of the CPU.

Rules
1. What a machine does not show is None, never guessed.
2. A GPU is found by its name where only one card has it, else by its number among the cards that this process may see.
3. A read takes a few milliseconds, and hangs where a driver does: a thread reads, one at a time, and a read that does
   not come within `ANSWER_SECONDS` shows nothing. So a hung driver keeps one thread, not one more at each look.
"""

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import anyio.to_thread
import psutil

from echo2.engines.devices.system_gpus import text_of
from echo2.engines.process.versioned import VersionedEngine
from echo2.node.owner.nvml import NvidiaCards

ANSWER_SECONDS: Final = 2.0

CPU_SENSORS: Final = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "acpitz")
"""Sensors of a processor, the best first."""
READING_SECONDS: Final = 1.0
"""Seconds for which a reading is taken as new."""
_SYSFS_VENDORS: Final = ("0x1002", "0x8086")


class DeviceReading(NamedTuple):
    """What a device shows. `temperature`: degrees Celsius. `watts`: its power. `memory_used`, `memory`: bytes; of a
    CPU those of the machine."""

    temperature: float | None = None
    watts: float | None = None
    memory_used: int | None = None
    memory: int | None = None


NOTHING_READ: Final = DeviceReading()


class PowerLimit(NamedTuple):
    """The driver's limit of a card, W. `put`: sets it; raises OSError where this user may not. `command`: the command
    by which root does."""

    present: float
    least: float
    most: float
    put: Callable[[float], None]
    command: Callable[[float], str]

    def put_back(self) -> None:
        """Set it as it was. Raises OSError."""
        self.put(self.present)


class _Memory(ctypes.Structure):
    """NVML's nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class DeviceSensors:
    """The sensors of a machine. `nvidia`: returns NVIDIA's cards; it may raise OSError. `root`: root of the kernel's
    files. `now`: a clock that never goes back, seconds."""

    def __init__(
        self,
        nvidia: Callable[[], NvidiaCards] = NvidiaCards,
        root: Path = Path("/"),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root, self._now = root, now
        self._one_at_a_time, self._reads = anyio.Lock(), False
        self._cards: NvidiaCards | None = None
        with contextlib.suppress(OSError):
            self._cards = nvidia()
        self._energy: tuple[float, int] | None = None
        """When the processor's counter was read last, and its microjoules then."""
        self._known: dict[str, tuple[float, DeviceReading]] = {}

    async def read_all(self, engines: Sequence[VersionedEngine]) -> list[DeviceReading]:
        """Return the reading of each engine's device (rule 3)."""
        probed = [one.probed for one in engines]

        def read() -> list[DeviceReading]:
            try:
                return [self.read(one.kind, one.name) if one else NOTHING_READ for one in probed]
            finally:
                self._reads = False

        with anyio.move_on_after(ANSWER_SECONDS):
            async with self._one_at_a_time:
                if not self._reads:  # else the last read hangs
                    self._reads = True
                    return await anyio.to_thread.run_sync(read, abandon_on_cancel=True)
        return [NOTHING_READ] * len(engines)

    def read(self, device: str, name: str) -> DeviceReading:
        """Return the reading of a device. `device`: kind and number, as in cuda:1. `name`: name of its hardware."""
        at, known = self._known.get(device, (-READING_SECONDS, NOTHING_READ))
        if self._now() - at >= READING_SECONDS:
            known = self._read(device, name)
            self._known[device] = self._now(), known
        return known

    def _read(self, device: str, name: str) -> DeviceReading:
        kind, _, number = device.partition(":")
        if kind == "cpu":
            return self._processor()
        if kind in ("cuda", "vulkan") and (card := self.nvidia_card(int(number or 0), name)) is not None:
            return self._nvidia(card)
        return self._kernel(int(number or 0)) if kind in ("rocm", "xpu", "vulkan") else NOTHING_READ

    def nvidia_card(self, number: int, name: str) -> ctypes.c_void_p | None:
        """Return NVML's handle of a GPU (rule 2); None: NVML does not show it."""
        if self._cards is None:
            return None
        handles, asked = self._cards.handles, name.removeprefix("NVIDIA ")
        with contextlib.suppress(OSError):
            alike = [card for card in handles if self._cards.name(card) == asked]
            if len(alike) == 1:
                return alike[0]
        seen = _visible(handles)
        return seen[number] if number < len(seen) else None

    def power_limit(self, device: str, name: str) -> PowerLimit | None:
        """Return the driver's limit of an NVIDIA card; None: there is none, or it cannot be seen."""
        kind, _, number = device.partition(":")
        card = self.nvidia_card(int(number or 0), name) if kind in ("cuda", "vulkan") else None
        cards = self._cards
        if card is None or cards is None:
            return None
        least, most = ctypes.c_uint(), ctypes.c_uint()
        try:
            present = cards.number("nvmlDeviceGetPowerManagementLimit", card)
            cards.call("nvmlDeviceGetPowerManagementLimitConstraints", card, ctypes.byref(least), ctypes.byref(most))
        except OSError:
            return None

        def put(watts: float) -> None:
            cards.call("nvmlDeviceSetPowerManagementLimit", card, ctypes.c_uint(int(watts * 1000)))

        index = cards.handles.index(card)
        return PowerLimit(
            present / 1000, least.value / 1000, most.value / 1000, put,
            lambda watts: f"sudo nvidia-smi -i {index} -pl {watts:.0f}",
        )  # fmt: skip

    def _nvidia(self, card: ctypes.c_void_p) -> DeviceReading:
        cards = self._cards
        assert cards is not None
        memory = _Memory()
        temperature = watts = None
        with contextlib.suppress(OSError):
            temperature = float(cards.number("nvmlDeviceGetTemperature", card, ctypes.c_uint(0)))
        with contextlib.suppress(OSError):
            watts = cards.number("nvmlDeviceGetPowerUsage", card) / 1000
        with contextlib.suppress(OSError):
            cards.call("nvmlDeviceGetMemoryInfo", card, ctypes.byref(memory))
            return DeviceReading(temperature, watts, memory.used, memory.total)
        return DeviceReading(temperature, watts)

    def _kernel(self, number: int) -> DeviceReading:
        """Return what the kernel shows of a card of AMD or Intel, by its number among them."""
        cards = sorted((self._root / "sys/class/drm").glob("card[0-9]*/device"))
        ours = [card for card in cards if text_of(card / "vendor") in _SYSFS_VENDORS and "-" not in card.parent.name]
        if number >= len(ours):
            return NOTHING_READ
        card = ours[number]
        temperature = _first_number(card, "hwmon/hwmon*/temp1_input")
        watts = _first_number(card, "hwmon/hwmon*/power1_average") or _first_number(card, "hwmon/hwmon*/power1_input")
        return DeviceReading(
            None if temperature is None else temperature / 1e3,
            None if watts is None else watts / 1e6,
            _first_number(card, "mem_info_vram_used"),
            _first_number(card, "mem_info_vram_total"),
        )

    def _processor(self) -> DeviceReading:
        memory = psutil.virtual_memory()
        return DeviceReading(
            _processor_temperature(), self._processor_watts(), memory.total - memory.available, memory.total
        )

    def _processor_watts(self) -> float | None:
        """Return the mean power since the last read, by the counter of all packages; most systems show it to root
        alone."""
        counters = sorted((self._root / "sys/class/powercap").glob("intel-rapl:[0-9]/energy_uj"))
        counted = [_first_number(path.parent, path.name) for path in counters]
        if not counted or None in counted:
            return None
        before, self._energy = self._energy, (self._now(), sum(one for one in counted if one is not None))
        if before is None or self._energy[0] <= before[0] or self._energy[1] < before[1]:
            return None
        return (self._energy[1] - before[1]) / 1e6 / (self._energy[0] - before[0])


def _processor_temperature() -> float | None:
    """Return the hottest sensor of the processor."""
    if not hasattr(psutil, "sensors_temperatures"):
        return None
    with contextlib.suppress(OSError, ValueError):
        sensors = psutil.sensors_temperatures()
        named = next((sensors[name] for name in CPU_SENSORS if sensors.get(name)), [])
        return max((float(one.current) for one in named), default=None)
    return None


def _visible(handles: Sequence[ctypes.c_void_p]) -> list[ctypes.c_void_p]:
    """Return the cards that CUDA may see, in its order, where CUDA_VISIBLE_DEVICES has numbers; else all."""
    numbers = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if not all(one.strip().isdecimal() for one in numbers):
        return list(handles)
    return [handles[int(one)] for one in numbers if int(one) < len(handles)]


def _first_number(folder: Path, pattern: str) -> int | None:
    text = next((text_of(path) for path in sorted(folder.glob(pattern))), "")
    return int(text) if text.lstrip("-").isdecimal() else None
