"""Leave namespaces of the system for ones of this process's own (Linux).

Rules
1. Without the privileges that a namespace needs the process gets a user namespace too, in which its user and group are
   what they were.
2. A private process (runtime/own_memory.py) is open while it writes these names: its files in /proc are root's else.

Source: unshare(2), user_namespaces(7).
"""

import ctypes
import errno
import os
import sys
from pathlib import Path
from typing import Final

from echo2.runtime.own_memory import open_for_a_moment

USER: Final = 0x10000000
MOUNTS: Final = 0x00020000
PROCESSES: Final = 0x20000000
NETWORK: Final = 0x40000000


class NamespaceRefused(Exception):
    """This system gives a process no such namespace; the message says why."""


def leave(kinds: int) -> bool:
    """Leave namespaces of the system, before this process starts threads. `kinds`: a sum of the constants above. Return
    whether a user namespace is among them (rule 1), in which the process has privileges. Raises `NamespaceRefused`."""
    if not sys.platform.startswith("linux"):
        raise NamespaceRefused(f"{sys.platform} has no namespaces")
    user, group = os.geteuid(), os.getegid()
    code = _unshare(kinds)
    if code == errno.EPERM and not kinds & USER:
        kinds |= USER
        code = _unshare(kinds)
    if code != 0:
        raise NamespaceRefused(f"the kernel refuses a namespace ({errno.errorcode.get(code, code)})")
    if not kinds & USER:
        return False
    maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
    try:
        with open_for_a_moment():
            for name, text in maps.items():
                Path("/proc/self", name).write_text(text)
    except OSError as error:
        raise NamespaceRefused(f"the kernel refuses the map of users ({error.strerror})") from error
    return True


def _unshare(kinds: int) -> int:
    """Return 0, or the error's number."""
    library = ctypes.CDLL(None, use_errno=True)
    return 0 if library.unshare(kinds) == 0 else ctypes.get_errno()
