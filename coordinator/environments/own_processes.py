"""A namespace of process ids for an environment (Linux): it sees no other process, and whatever it starts ends with it.

Rules
1. `enter` forks twice and returns in the second child. The process itself, whose id the daemon knows, waits. The first
   child, with which the namespace begins, takes in what loses its parent. Both end as the second child ends.
2. When the first of a namespace ends, in whatever way, the kernel kills all others in it, also those with sessions of
   their own. It is killed with the process that waits, and this one with the daemon.
3. A /proc of the namespace's own hides the system's, with the memory, the environment and the open files of all other
   processes. Named shared memory is the namespace's own, too.
4. The second child has no privileges, so it cannot uncover the system's /proc: in a namespace that it makes later what
   was mounted before is locked.

Source: pid_namespaces(7), user_namespaces(7), mount_namespaces(7), PR_SET_PDEATHSIG in prctl(2).
"""

import ctypes
import errno
import os
import signal
from typing import Final, NoReturn

from echo2.runtime import namespaces
from echo2.runtime.capabilities import give_up
from echo2.runtime.namespaces import NamespaceRefused

_SAFE_MOUNT: Final = 2 | 4 | 8
"""Without set-user-ID, devices and programs."""
_SHARED_MEMORY: Final = b"size=64m,mode=1777"
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_OF_A_SIGNAL: Final = 128
"""Added to a signal's number for an exit code, as shells do."""


def enter() -> str:
    """Go on in a namespace of processes (rule 1), before this process starts threads. Return what of it is missing, and
    why; empty: nothing."""
    try:
        own_mounts = _leave_the_systems()
    except NamespaceRefused as refused:
        return f"it sees other processes, and what it starts may outlive it, as {refused}"
    die_with_parent()
    first = os.fork()
    if first:
        _wait_for(first)
    die_with_parent()
    missing = _mount_own() if own_mounts else "this system has no user namespaces"
    second = os.fork()
    if second:
        _take_in(second)
    give_up()
    return f"it sees other processes, as {missing}" if missing else ""


def die_with_parent() -> None:
    """Have this process killed when the one that started it ends. A change of its rights takes that back."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _leave_the_systems() -> bool:
    """Leave the system's processes. Return whether the mounts are its own, too. Raises `NamespaceRefused`."""
    try:
        return namespaces.leave(namespaces.USER | namespaces.MOUNTS | namespaces.PROCESSES)
    except NamespaceRefused:  # as root a namespace of processes needs no other
        namespaces.leave(namespaces.PROCESSES)
        return False


def _mount_own() -> str:
    """Mount /proc, and the folder of shared memory, anew (rule 3). Return why the first cannot be; empty: it is."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mount(b"none", b"/dev/shm", b"tmpfs", _SAFE_MOUNT, _SHARED_MEMORY)
    if library.mount(b"none", b"/proc", b"proc", _SAFE_MOUNT, None) == 0:
        return ""
    code = ctypes.get_errno()
    return f"the kernel refuses a /proc of its own ({errno.errorcode.get(code, code)})"


def _wait_for(first: int) -> NoReturn:
    """Wait for the first of the namespace, and end as it did. The pipes are its own: they are closed here."""
    _close_all()
    _, status = os.waitpid(first, 0)
    code = os.waitstatus_to_exitcode(status)
    number = -code if code < 0 else code - _OF_A_SIGNAL
    if number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(code & 0xFF)


def _take_in(second: int) -> NoReturn:
    """Wait for all that loses its parent, until the second child ends; end with its exit code."""
    _close_all()
    while True:
        ended, status = os.wait()
        if ended == second:
            code = os.waitstatus_to_exitcode(status)
            os._exit(_OF_A_SIGNAL - code if code < 0 else code)


def _close_all() -> None:
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))
