"""Keep the memory and the environment of this process from others of the same user, its own children included.

Rules
1. A daemon that loads private keys is not dumpable (Linux). So /proc shows its memory, its environment with the
   passphrase and its open files to root alone, no process of its user may trace it, and it leaves no core file.
2. A program that it starts is dumpable again: the daemon still measures its children.
3. On other systems nothing is done.

Source: PR_SET_DUMPABLE(2const), ptrace(2) on access modes, proc_pid_environ(5).
"""

import ctypes
import sys
from typing import Final

_PR_SET_DUMPABLE: Final = 4


def keep_private() -> None:
    """Keep others out (rule 1)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
