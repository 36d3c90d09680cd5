"""A namespace of process ids for an environment that may start processes (Linux): whatever it starts ends with it.

Rules
1. `enter` forks twice and returns in the second child. The process itself, whose id the daemon knows, waits. The first
   child, with which the namespace begins, takes in what loses its parent. Both end as the second child ends.
2. When the first of a namespace ends, in whatever way, the kernel kills all others in it, also those with sessions of
   their own. It is killed with the process that waits, and this one with the daemon.
3. Without privileges the process gets a user namespace too, in which its user and group are what they were.

Source: pid_namespaces(7), user_namespaces(7), PR_SET_PDEATHSIG in prctl(2).
"""

import ctypes
import errno
import os
import signal
import sys
from pathlib import Path
from typing import Final, NoReturn

_NEW_USER: Final = 0x10000000
_NEW_PROCESSES: Final = 0x20000000
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_OF_A_SIGNAL: Final = 128
"""Added to a signal's number for an exit code, as shells do."""


def enter() -> str:
    """Go on in a namespace of processes (rule 1), before this process starts threads. Return why there is none; empty:
    there is one."""
    if not sys.platform.startswith("linux"):
        return f"{sys.platform} has no namespaces of processes"
    try:
        _leave_the_systems()
    except OSError as error:
        return f"the kernel refuses a namespace of processes ({errno.errorcode.get(error.errno or 0, error.errno)})"
    die_with_parent()
    first = os.fork()
    if first:
        _wait_for(first)
    die_with_parent()
    second = os.fork()
    if second:
        _take_in(second)
    return ""


def die_with_parent() -> None:
    """Have this process killed when the one that started it ends. A change of its rights takes that back."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _leave_the_systems() -> None:
    user, group = os.geteuid(), os.getegid()
    try:
        _unshare(_NEW_PROCESSES)
    except PermissionError:
        _unshare(_NEW_USER | _NEW_PROCESSES)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path("/proc/self", name).write_text(text)


def _unshare(flags: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


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
