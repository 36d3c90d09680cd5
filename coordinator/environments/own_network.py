"""A network of a process's own, with a loopback interface and nothing else: a Linux namespace.

Without privileges the process gets a user namespace too, which some systems forbid: `enter` then says so.

Source: unshare(2), netdevice(7), user_namespaces(7).
"""

import ctypes
import errno
import fcntl
import os
import socket
import struct
import sys
from typing import Final

_NEW_USER: Final = 0x10000000
_NEW_NETWORK: Final = 0x40000000
_GET_FLAGS, _SET_FLAGS = 0x8913, 0x8914
_UP: Final = 1
_REQUEST: Final = struct.Struct("16sh22x")
"""An interface's name and its flags: struct ifreq, 40 bytes."""


class OwnNetworkUnavailable(Exception):
    """This system gives a process no network of its own; the message says why."""


def enter() -> None:
    """Leave the system's network for one of this process's own, before it starts threads. Its children are in it too.
    Raises `OwnNetworkUnavailable`."""
    if not sys.platform.startswith("linux"):
        raise OwnNetworkUnavailable(f"{sys.platform} has no network namespaces")
    library = ctypes.CDLL(None, use_errno=True)
    flags = _NEW_NETWORK if os.geteuid() == 0 else _NEW_NETWORK | _NEW_USER
    if library.unshare(flags) != 0:
        code = ctypes.get_errno()
        raise OwnNetworkUnavailable(f"the kernel refuses a namespace ({errno.errorcode.get(code, code)})")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = fcntl.ioctl(any_socket, _GET_FLAGS, _REQUEST.pack(b"lo", 0))
        fcntl.ioctl(any_socket, _SET_FLAGS, _REQUEST.pack(b"lo", _REQUEST.unpack(asked)[1] | _UP))
