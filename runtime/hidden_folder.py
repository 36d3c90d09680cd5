"""Hide a folder from this process and its children: a Linux mount namespace with an empty file system over it.

Rules
1. A process hides the folder that `HIDDEN_FOLDER_VARIABLE` names before it starts threads, and before it imports what
   computes. Where the system does not allow that it works on without, and says so on its stderr; `echo2-coord doctor`
   says it, too.
2. The process gives up all capabilities, and those that a program it starts could get. So neither can remove the empty
   file system: in a namespace made later that is locked.
3. It is in a user namespace of its own, so it can neither trace nor read the memory or the environment of the daemon,
   whose user it shares.

Source: user_namespaces(7), mount_namespaces(7), ptrace(2).
"""

import ctypes
import errno
import os
import sys
from pathlib import Path
from typing import Final

from echo2.runtime import capabilities, namespaces

HIDDEN_FOLDER_VARIABLE: Final = "ECHO2_HIDDEN_FOLDER"
"""The environment variable with the folder's path."""
_MOUNT_FLAGS: Final = 1 | 2 | 4 | 8
"""Read-only, without set-user-ID, devices and programs."""


class CannotHide(Exception):
    """This system hides no folder from a process; the message says why."""


def hide(folder: Path) -> None:
    """Hide `folder` (rules 2 and 3). Raises `CannotHide`; the folder may be visible then."""
    try:
        namespaces.leave(namespaces.USER | namespaces.MOUNTS)
        cover(folder)
        capabilities.give_up()
    except namespaces.NamespaceRefused as refused:
        raise CannotHide(str(refused)) from refused
    except OSError as error:
        raise CannotHide(error.strerror) from error
    if any(folder.iterdir()):
        raise CannotHide(f"{folder} is still visible")


def hide_named() -> None:
    """Hide the folder that the environment names, if any, and forget the name (rule 1)."""
    folder = os.environ.pop(HIDDEN_FOLDER_VARIABLE, "")
    if not folder:
        return
    try:
        hide(Path(folder))
    except CannotHide as error:
        print(f"the folder {folder} is not hidden from this process: {error}", file=sys.stderr)


def cover(folder: Path) -> None:
    """Mount an empty file system over a folder, in a mount namespace of this process's own. Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(b"none", os.fsencode(folder), b"tmpfs", _MOUNT_FLAGS, b"size=4k,mode=0500") != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"the kernel refuses a file system over the folder ({errno.errorcode.get(code, code)})")
