"""Keep the memory and the environment of this process from others of the same user, its own children included.

Rules
1. Each process of ours is private from its first act on: both programs (coordinator/cli.py, node/cli.py) with every
   command that loads a key, and each child (runtime/child_pipe.py). A private process is not dumpable (Linux): /proc
   shows its memory, its environment with the passphrase and its open files to root alone, no process of its user may
   trace it, and it leaves no core file.
2. What it starts is open again until it, too, has made itself private.
3. Processes that share a device's memory read each other's: they are open (runtime/child_budgets.py, rule 4).
4. On other systems nothing is done.

Source: PR_SET_DUMPABLE(2const), ptrace(2) on access modes, proc_pid_environ(5).
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_PR_GET_DUMPABLE: Final = 3
_PR_SET_DUMPABLE: Final = 4


def keep_private() -> None:
    """Keep others out (rule 1)."""
    _set_dumpable(0)


def keep_open() -> None:
    """Let other processes of this user in (rule 3)."""
    _set_dumpable(1)


@contextmanager
def open_for_a_moment() -> Iterator[None]:
    """Be open within the block: the files of a private process in /proc are root's."""
    private = ctypes.CDLL(None).prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 1
    keep_open()
    try:
        yield
    finally:
        if private:
            keep_private()


def _set_dumpable(value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, value, 0, 0, 0)
