"""The limits of an environment's process, and their setting in that process.

Rules
1. Memory: the address space has at most `memory_mb`. Beyond it an allocation fails, which ends the episode or the
   process. Open files: runtime/child_budgets.py.
2. Output: a file that it writes has at most `FILE` bytes. The daemon bounds what its folder holds
   (work_folders.py), its answers and the text that it prints (runtime/child.py).
3. Network, processes and signals to others: runtime/system_call_filter.py. Where a system has no such filter, the
   environment runs without it, and the daemon's log says so.
   A task that speaks with processes of its own (`loopback`) may start them and open sockets, in a network of its own
   (runtime/own_network.py). Where a system has none, it is refused: the operator may then allow it the system's.
4. Time is bounded by the daemon, which kills the process (coordinator/environments/process_pool.py). On Linux the
   process is killed with the daemon, too: a call of C code that never returns would not see that the pipe is closed.
   It sees no other process, and those that it starts end with it (own_processes.py).
5. It opens the files of readable_files.py alone, sees an empty environment but for what Python needs, and works in a
   folder of its own.
6. A limit that the system lacks is left out: the log and `echo2-coord doctor` say which.

Against the operator's own code these are no prison: it runs as the operator's user. They keep a completion, which a
stranger's model may have sampled, from costing more than its own episode.
"""

import resource
import sys
from typing import Final

import msgspec

from echo2.coordinator.environments import own_processes, readable_files
from echo2.runtime import file_access, own_network
from echo2.runtime.child_budgets import BUDGETS, limit_files
from echo2.runtime.landlock import LandlockUnavailable
from echo2.runtime.system_call_filter import FilterUnavailable, Sockets, install

FILE: Final = 64 << 20
"""Most bytes of a file that an environment writes."""
MOST_ANSWER_BYTES: Final = 8 << 20
"""Most bytes of an answer."""
MOST_PRINTED_BYTES: Final = 1 << 20
"""Most bytes that an environment prints during one call."""
MOST_REASON_CHARACTERS: Final = 300
"""Most characters of the reason why an episode failed."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """`seconds`: most time of one call. `opening`: most seconds for opening the task. `memory_mb`: memory mb of address
    space. `loopback`: whether the task speaks with processes of its own. `files`: files and folders that it may read,
    beside those of every environment."""

    seconds: float = 10.0
    opening: float = 300.0
    memory_mb: int = 4096
    network: bool = False
    subprocesses: bool = False
    loopback: bool = False
    files: tuple[str, ...] = ()


def apply(limits: Limits) -> str:
    """Set the limits for this process (rules 1 to 5), before it starts threads. Return why some are missing; empty:
    none is. Raises `NamespaceRefused`."""
    wanted = {resource.RLIMIT_AS: limits.memory_mb << 20, resource.RLIMIT_FSIZE: FILE, resource.RLIMIT_CORE: 0}
    for name, most in wanted.items():
        _, hard = resource.getrlimit(name)
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(name, (value, value))
    limit_files(BUDGETS["environment"].files)
    if limits.loopback and not limits.network:
        own_network.enter()
    refused = own_processes.enter()
    missing = [refused] if refused else []
    if sys.platform == "linux":  # after `enter`: a change of rights takes the request back
        own_processes.die_with_parent()
    try:
        file_access.limit(
            read=readable_files.readable(limits.files, own_proc=not refused), write=readable_files.writable()
        )
    except LandlockUnavailable as unavailable:
        missing.append(f"it opens all files of its user, as {unavailable}")
    try:
        sockets: Sockets = "all" if limits.network or limits.loopback else "none"
        install(sockets=sockets, subprocesses=limits.subprocesses or limits.loopback)
    except FilterUnavailable as unfiltered:
        missing.append(str(unfiltered))
    return "; ".join(missing)
