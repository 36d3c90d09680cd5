"""Which other process uses a GPU of this machine: by NVML for NVIDIA's cards, else by what the kernel states of each
client of a card (DRM's fdinfo: AMD, Intel).

Rules
1. A process counts that takes `LEAST_SHARE` of a card's time or more: a desktop that draws its windows takes less.
2. Where NVML states no shares, every process counts that computes on the card.
3. The kernel shows the files of this user's processes alone. New processes are looked at each time, all of them every
   `ALL_SECONDS`.
"""

import contextlib
import ctypes
import os
import re
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from echo2.engines.devices.system_gpus import system_gpus
from echo2.node.owner.nvml import NvidiaCards

LEAST_SHARE: Final = 0.10
ALL_SECONDS: Final = 10.0
_INSUFFICIENT_SIZE: Final = 7
_NOT_FOUND: Final = 6
_CLIENT: Final = re.compile(r"^drm-client-id:\s*(\d+)", re.MULTILINE)
_ENGINE: Final = re.compile(r"^drm-engine-[\w-]+:\s*(\d+) ns", re.MULTILINE)


class NoGpuSource(NamedTuple):
    """No use of a GPU can be seen. `source`: why not."""

    source: str


class GpuUse(NamedTuple):
    """`source`: source of what it sees, in words. `shares`: shares of a card's time by process, since the last call."""

    source: str
    shares: Callable[[], Mapping[int, float]]

    def look(self) -> str:
        """Return which other process uses a GPU, a sentence; empty: none."""
        shares = self.shares()
        for number in sorted(shares, key=lambda one: -shares[one]):
            if shares[number] < LEAST_SHARE:
                break
            with contextlib.suppress(psutil.NoSuchProcess):
                if not is_ours(process := psutil.Process(number)):
                    return f"{process.name()} uses the GPU"
        return ""


def gpu_use() -> GpuUse | NoGpuSource:
    """Return how the use of this machine's GPUs is seen."""
    try:
        return GpuUse("NVML", NvidiaShares())
    except OSError as error:
        why = f"NVML: {error}"
    if any(gpu.vendor in ("amd", "intel") and gpu.driver for gpu in system_gpus()):
        return GpuUse("the kernel's fdinfo of this user's processes", ClientShares())
    return NoGpuSource(why)


def is_ours(process: psutil.Process) -> bool:
    """Tell whether a process is this one or was started by it. Raises `psutil.Error`."""
    return os.getpid() in (process.pid, *(one.pid for one in process.parents()))


class _Sample(ctypes.Structure):
    """NVML's nvmlProcessUtilizationSample_t."""

    _fields_ = (
        ("pid", ctypes.c_uint), ("at", ctypes.c_ulonglong), ("sm", ctypes.c_uint), ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint), ("decoder", ctypes.c_uint),
    )  # fmt: skip


class _Process(ctypes.Structure):
    """NVML's nvmlProcessInfo_t."""

    _fields_ = (
        ("pid", ctypes.c_uint), ("memory", ctypes.c_ulonglong), ("instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )  # fmt: skip


class NvidiaShares:
    """Shares of the time of NVIDIA's cards, by NVML. Calling it may raise OSError."""

    def __init__(self, library: Any = None) -> None:
        """`library`: see `NvidiaCards`. Raises OSError where it shows no card."""
        self._cards, self._since = NvidiaCards(library), dict[int, int]()

    def __call__(self) -> Mapping[int, float]:
        shares: dict[int, float] = {}
        for number, card in enumerate(self._cards.handles):
            for process, share in self._of_card(number, card):
                shares[process] = max(share, shares.get(process, 0.0))
        return shares

    def _of_card(self, number: int, card: ctypes.c_void_p) -> list[tuple[int, float]]:
        count, since = ctypes.c_uint(), ctypes.c_ulonglong(self._since.get(number, 0))
        name = "nvmlDeviceGetProcessUtilization"
        code = self._cards.library[name](card, None, ctypes.byref(count), since)
        if code == _NOT_FOUND or (not code and not count.value):
            return []
        if code != _INSUFFICIENT_SIZE:
            return [(process, 1.0) for process in self._computing(card)]
        samples = (_Sample * count.value)()
        if self._cards.call(name, card, samples, ctypes.byref(count), since, beside=(_NOT_FOUND,)) == _NOT_FOUND:
            return []
        newest = [one for one in samples[: count.value] if one.at > since.value]
        self._since[number] = max((one.at for one in newest), default=since.value)
        by_process: dict[int, list[float]] = {}
        for one in newest:
            by_process.setdefault(one.pid, []).append(max(one.sm, one.encoder, one.decoder) / 100)
        return [(process, statistics.fmean(shares)) for process, shares in by_process.items()]

    def _computing(self, card: ctypes.c_void_p) -> list[int]:
        count = ctypes.c_uint(256)
        processes = (_Process * count.value)()
        self._cards.call("nvmlDeviceGetComputeRunningProcesses_v3", card, ctypes.byref(count), processes)
        return [one.pid for one in processes[: count.value]]


class ClientShares:
    """Shares of the time of cards, by the counters that the kernel keeps of each client. `root`: the folder of
    processes. `now`: a clock that never goes back, seconds."""

    def __init__(self, root: Path = Path("/proc"), now: Callable[[], float] = time.monotonic) -> None:
        self._root, self._now = root, now
        self._clients: dict[str, set[str]] = {}
        """By process that was looked at: the numbers of its files that are clients."""
        self._counted: dict[tuple[str, str], int] = {}
        """By process and client: nanoseconds at the last look."""
        self._at, self._all_at = now(), -ALL_SECONDS

    def __call__(self) -> Mapping[int, float]:
        now = self._now()
        passed, self._at = max(0.05, now - self._at), now
        if now - self._all_at >= ALL_SECONDS:
            self._all_at, known = now, {}
        else:
            known = self._clients
        present = [entry for entry in os.listdir(self._root) if entry.isdigit()]
        self._clients = {entry: known[entry] if entry in known else self._find(entry) for entry in present}
        before, self._counted = self._counted, {}
        for entry, files in self._clients.items():
            for file in files:
                self._count(entry, file)
        shares: dict[int, float] = {}
        for (entry, client), total in self._counted.items():
            used = max(0, total - before.get((entry, client), total))
            shares[int(entry)] = shares.get(int(entry), 0.0) + used / 1e9 / passed
        return shares

    def _find(self, entry: str) -> set[str]:
        files = set()
        with contextlib.suppress(OSError):
            for file in os.listdir(self._root / entry / "fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(self._root / entry / "fd" / file).startswith("/dev/dri/"):
                        files.add(file)
        return files

    def _count(self, entry: str, file: str) -> None:
        """Note the nanoseconds that a client has used so far; several files may be one client."""
        with contextlib.suppress(OSError):
            text = (self._root / entry / "fdinfo" / file).read_text()
            client = _CLIENT.search(text)
            total = max((int(count) for count in _ENGINE.findall(text)), default=0)
            self._counted[entry, file if client is None else client[1]] = total
