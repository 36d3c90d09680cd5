"""Count the cores that this process may compute on, and the threads that follow where a setting says `auto`."""

import os
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Final, Literal

from echo2.runtime.host_memory import control_groups

Threads = int | Literal["auto"]
OWN_VARIABLE: Final = "OMP_NUM_THREADS"
"""The variable by which users of PyTorch and llama.cpp say it; it counts for `auto`."""


def usable_cores(files: Path = Path("/")) -> int:
    """Return the cores that the scheduler and the control groups leave to this process, at least 1. `files`: files
    under which /proc and /sys lie."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shares = (share for group in control_groups("cpu", files) if (share := _share(group)) is not None)
    return max(1, min([cores, *map(ceil, shares)]))


def threads_of(setting: Threads, processes: int = 1, environ: Mapping[str, str] = os.environ) -> int:
    """Return the threads of each of some processes that compute at a time: the setting's, else the variable's, else as
    many as give each core one."""
    if setting != "auto":
        return setting
    said = environ.get(OWN_VARIABLE, "").partition(",")[0]
    return int(said) if said.isdecimal() and int(said) else max(1, usable_cores() // processes)


def _share(group: Path) -> float | None:
    """Return the cores that a control group may keep busy; None: no limit."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # "max" is no number
        return None
