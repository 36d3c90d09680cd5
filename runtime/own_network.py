"""A network of a process's own, with a loopback interface and nothing else: a Linux namespace.

Without privileges the process gets a user namespace too (runtime/namespaces.py), which some systems forbid: `enter`
then says so.

Source: netdevice(7).
"""

import fcntl
import socket
import struct
import sys
from typing import Final

from echo2.runtime import namespaces

_GET_FLAGS, _SET_FLAGS = 0x8913, 0x8914
_INTERFACE_UP_FLAG: Final = 1
_REQUEST: Final = struct.Struct("16sh22x")
"""An interface's name and its flags: struct ifreq, 40 bytes."""
_LOOPBACK: Final = "lo"


def enter() -> bool:
    """Leave the system's network for one of this process's own, before it starts threads. Its children are in it too.
    Return whether that gave the process privileges, in a user namespace. Raises `NamespaceRefused`."""
    as_user = namespaces.leave(namespaces.NETWORK)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(
            any_socket,
            _SET_FLAGS,
            _REQUEST.pack(_LOOPBACK.encode(), _flags(any_socket, _LOOPBACK) | _INTERFACE_UP_FLAG),
        )
    return as_user


def is_alone() -> bool:
    """Tell whether this process's network has no interface at work but loopback."""
    if not sys.platform.startswith("linux"):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as any_socket:
        return all(
            name == _LOOPBACK or not _flags(any_socket, name) & _INTERFACE_UP_FLAG for _, name in socket.if_nameindex()
        )


def _flags(any_socket: socket.socket, name: str) -> int:
    asked = fcntl.ioctl(any_socket, _GET_FLAGS, _REQUEST.pack(name.encode(), 0))
    flags: int = _REQUEST.unpack(asked)[1]
    return flags
