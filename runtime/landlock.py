"""Landlock: rules that a process sets on itself without privileges (Linux).

Rules
1. What an order governs and no rule of it allows fails with EACCES.
2. An order binds the calling thread, the threads and processes that it starts from then on, and nothing else. No new
   privileges can be had. A later order can only narrow it.
3. A thread under an order can trace, and read the memory of, those alone that are under it too.

Source: landlock(7), linux/landlock.h.
"""

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterable
from typing import Final, NamedTuple

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION: Final = 1
_NO_NEW_PRIVILEGES: Final = 38
_RULESET: Final = struct.Struct("@QQQ")
"""The rights of files and of ports that the rules govern, and the kinds of other processes that are out of reach."""
PATH_RULE, PORT_RULE = 1, 2


class LandlockUnavailable(Exception):
    """This system has no such rules; the message says why."""


class LandlockOrder(NamedTuple):
    """What an order governs. `files`, `ports`: rights. `scopes`: kinds of reach into processes that are not under it.
    `rules`: (kind, structure of the kernel) of each exception."""

    rules: Iterable[tuple[int, bytes]]
    files: int = 0
    ports: int = 0
    scopes: int = 0


def version() -> int:
    """Return the version of this system's Landlock. Raises `LandlockUnavailable`."""
    if not sys.platform.startswith("linux"):
        raise LandlockUnavailable(f"{sys.platform} has no Landlock")
    known: int = ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)
    if known < 0:
        code = ctypes.get_errno()
        raise LandlockUnavailable(f"the kernel has no Landlock ({errno.errorcode.get(code, code)})")
    return known


def bind(order: LandlockOrder) -> None:
    """Bind this thread, and what it starts (rule 2). Raises `LandlockUnavailable`."""
    library = ctypes.CDLL(None, use_errno=True)
    governed = _RULESET.pack(order.files, order.ports, order.scopes)
    ruleset = _check_call(library.syscall(_CREATE_RULESET, governed, _RULESET.size, 0))
    try:
        for kind, rule in order.rules:
            _check_call(library.syscall(_ADD_RULE, ruleset, kind, rule, 0))
        _check_call(library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
        _check_call(library.syscall(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)


def _check_call(returned: int) -> int:
    if returned < 0:
        code = ctypes.get_errno()
        raise LandlockUnavailable(f"the kernel refuses a rule of Landlock ({errno.errorcode.get(code, code)})")
    return returned
