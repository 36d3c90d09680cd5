"""List the GPUs that the system shows, whatever any engine's build can use: from /sys, /proc and nvidia-smi.

1. A GPU is a PCI display device of NVIDIA, AMD or Intel, an NVIDIA device node without one (a container, WSL), or an
   Apple processor's own.
2. The list says what a build cannot: whether the kernel has a driver for the card, and whether this user may open it.
   engines.devices.gpu_remedies makes a sentence of it.
"""

import contextlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

Vendor = Literal["nvidia", "amd", "intel", "apple"]
NAMES: Final[dict[Vendor, str]] = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel", "apple": "Apple"}
SMI_PATIENCE: Final = 5.0
"""Seconds for nvidia-smi, which hangs where a card has fallen off the bus."""
_PCI: Final[dict[str, Vendor]] = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
_DISPLAY_CLASS: Final = "0x03"
"""Class of PCI devices that display or compute in 3D."""


class SystemGpu(msgspec.Struct, frozen=True, kw_only=True):
    """`name`: name of the card, where the system knows it. `driver`: the kernel's driver for it, empty: none. `denied`:
    the device file that this user may not open, or empty."""

    vendor: Vendor
    name: str = ""
    driver: str = ""
    denied: str = ""

    @property
    def text(self) -> str:
        """Return the card for people: 'an AMD GPU', 'an NVIDIA GPU (GeForce RTX 3060)'."""
        return f"an {NAMES[self.vendor]} GPU{f' ({self.name})' if self.name else ''}"


def system_gpus(root: Path = Path("/")) -> list[SystemGpu]:
    """Return the GPUs of this machine. `root`: root of its files, for tests."""
    if sys.platform == "darwin":
        return [SystemGpu(vendor="apple", driver="metal")] if platform.machine() == "arm64" else []
    gpus = _on_pci(root)
    if not any(gpu.vendor == "nvidia" for gpu in gpus) and any((root / "dev" / name).exists() for name in _NODES):
        gpus.append(SystemGpu(vendor="nvidia", driver="nvidia", denied=_denied_file(root, _NODES)))
    return _with_names(gpus, nvidia_names() if any(gpu.vendor == "nvidia" for gpu in gpus) else [])


def nvidia_names() -> list[str]:
    """Return the names of NVIDIA's cards, as nvidia-smi lists them; empty where it cannot."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    asked = [program, "--query-gpu=name", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(asked, capture_output=True, text=True, timeout=SMI_PATIENCE, check=True)
        return [name.strip() for name in done.stdout.splitlines() if name.strip()]
    return []


def driver_builds(root: Path = Path("/")) -> list[str]:
    """Name the builds of the drivers of this machine's GPUs: the kernel's modules with a version of their own, and else
    the system's release, with which the others come. `root`: see `system_gpus`."""
    names = sorted({gpu.driver for gpu in system_gpus(root) if gpu.driver})
    return [f"{name} {text_of(root / 'sys/module' / name / 'version') or platform.release()}" for name in names]


_NODES: Final = ("nvidia0", "dxg")
"""Files in /dev of an NVIDIA card whose PCI device is hidden: in a container, and under WSL."""


def _on_pci(root: Path) -> list[SystemGpu]:
    devices = root / "sys/bus/pci/devices"
    gpus = []
    for device in sorted(devices.iterdir()) if devices.is_dir() else []:
        vendor = _PCI.get(text_of(device / "vendor"))
        if vendor is not None and text_of(device / "class").startswith(_DISPLAY_CLASS):
            driver = (device / "driver").resolve().name if (device / "driver").exists() else ""
            gpus.append(SystemGpu(vendor=vendor, driver=driver, denied=_denied_file(root, _files(device, vendor))))
    return gpus


def _files(device: Path, vendor: Vendor) -> list[str]:
    """Return the names in /dev through which a program computes on a PCI device."""
    if vendor == "nvidia":
        return ["nvidia0"]
    renders = device / "drm"
    own = sorted(one.name for one in renders.iterdir() if one.name.startswith("render")) if renders.is_dir() else []
    return [f"dri/{name}" for name in own]


def _denied_file(root: Path, names: Sequence[str]) -> str:
    present = [root / "dev" / name for name in names if (root / "dev" / name).exists()]
    return next((str(path) for path in present if not os.access(path, os.R_OK | os.W_OK)), "")


def _with_names(gpus: list[SystemGpu], names: list[str]) -> list[SystemGpu]:
    left = iter(names)
    return [
        msgspec.structs.replace(gpu, name=next(left, "").removeprefix("NVIDIA ")) if gpu.vendor == "nvidia" else gpu
        for gpu in gpus
    ]


def text_of(path: Path) -> str:
    """Return the text of a small file of the system; empty: it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
