"""Give way to the owner's own programs: the scheduling of a node's processes.

Rules
1. `idle`, of an engine on a CPU: it computes on time that no other process wants, and its disk waits likewise. On Linux
   this is SCHED_IDLE with idle I/O, elsewhere nice 19.
2. `low`, of a daemon and of an engine on a GPU: nice 10. They use little CPU time, but late, so that leases are kept.
3. Both hold within a control group alone. Between groups the group's own weight decides: a service of ours has
   CPUWeight=idle. Where groups have no weights, Linux makes one of each session (autogroup): that of an engine, which
   leads one of its own, is made as nice. A terminal's is left alone, for the owner's other programs are in it.
"""

import contextlib
import os
import sys
from pathlib import Path
from typing import Final, Literal

import psutil

from echo2.runtime.host_memory import control_group

Priority = Literal["idle", "low", "normal"]

VARIABLE: Final = "ECHO2_ENGINE_GIVES_WAY"
"""Variable by which a node tells its engine's process to give way: it knows its device only later."""
LOW_NICE: Final = 10
IDLE_NICE: Final = 19
_AUTOGROUP: Final = Path("/proc/self/autogroup")


def give_way(priority: Priority) -> None:
    """Lower this process to a priority, with all of its threads and those to come. What the system refuses is left as
    it is."""
    if priority == "normal":
        return
    wanted = IDLE_NICE if priority == "idle" else LOW_NICE
    for task in _tasks():
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, task, max(wanted, os.getpriority(os.PRIO_PROCESS, task)))
        if priority == "idle" and sys.platform == "linux":
            with contextlib.suppress(OSError):
                os.sched_setscheduler(task, os.SCHED_IDLE, os.sched_param(0))
    if priority == "idle":
        _wait_for_the_disk()
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            _AUTOGROUP.write_text(str(wanted))


def describe(priority: Priority, files: Path = Path("/")) -> str:
    """Return in words what an engine on this machine's CPU gives way to. `files`: files under which /proc lies."""
    if priority == "normal":
        return "none: priority is normal"
    engine = "nice 10" if priority == "low" else "SCHED_IDLE" if sys.platform == "linux" else "nice 19"
    group = control_group("cpu", files)
    if sys.platform != "linux" or group == "/":
        return f"{engine}: it gives way to every program"
    return f"{engine}, within its control group ({group}): a service of ours gives way beyond it"


def _tasks() -> list[int]:
    """Return the ids of this process's threads; 0 where the system lists none."""
    try:
        return [int(task) for task in os.listdir("/proc/self/task")]
    except OSError:
        return [0]


def _wait_for_the_disk() -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, psutil.Error):
            psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
