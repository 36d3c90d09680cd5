"""Give up the privileges that a process got in a user namespace of its own, and those that what it starts could get.

Source: capabilities(7), PR_CAPBSET_DROP in prctl(2).
"""

import ctypes
import errno
from typing import Final

_DROP_BOUND, _NO_NEW_PRIVILEGES, _AMBIENT, _AMBIENT_CLEAR = 24, 38, 47, 4
_CAPABILITY_VERSION: Final = 0x20080522
_MOST_CAPABILITIES: Final = 64


def give_up() -> None:
    """Give up all capabilities of this thread for good; call it before the process starts others. Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    for capability in range(_MOST_CAPABILITIES):
        if library.prctl(_DROP_BOUND, capability, 0, 0, 0) != 0 and ctypes.get_errno() != errno.EINVAL:
            raise OSError(ctypes.get_errno(), "the kernel keeps a capability")
    library.prctl(_AMBIENT, _AMBIENT_CLEAR, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    if library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0 or library.capset(header, (ctypes.c_uint32 * 6)()) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"the kernel refuses to take privileges back ({errno.errorcode.get(code, code)})")
