"""A network of a process's own, with a loopback interface and nothing else: a Linux namespace.

Without privileges the process gets a user namespace too, which some systems forbid: `enter` then says so. There its
user and group are what they were.

Source: unshare(2), netdevice(7), user_namespaces(7).
"""

import ctypes
import errno
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Final

_NEW_USER: Final = 0x10000000
_NEW_NETWORK: Final = 0x40000000
_GET_FLAGS, _SET_FLAGS = 0x8913, 0x8914
_INTERFACE_UP_FLAG: Final = 1
_REQUEST: Final = struct.Struct("16sh22x")
"""An interface's name and its flags: struct ifreq, 40 bytes."""
_LOOPBACK: Final = "lo"


class OwnNetworkUnavailable(Exception):
    """This system gives a process no network of its own; the message says why."""


def enter() -> bool:
    """Leave the system's network for one of this process's own, before it starts threads. Its children are in it too.
    Return whether that gave the process privileges, in a user namespace. Raises `OwnNetworkUnavailable`."""
    if not sys.platform.startswith("linux"):
        raise OwnNetworkUnavailable(f"{sys.platform} has no network namespaces")
    user, group = os.geteuid(), os.getegid()
    code = _unshare(_NEW_NETWORK)
    if as_user := code == errno.EPERM:
        code = _unshare(_NEW_NETWORK | _NEW_USER)
    if code != 0:
        raise OwnNetworkUnavailable(f"the kernel refuses a namespace ({errno.errorcode.get(code, code)})")
    if as_user:
        maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
        try:
            for name, text in maps.items():
                Path("/proc/self", name).write_text(text)
        except OSError as error:
            raise OwnNetworkUnavailable(f"the kernel refuses the map of users ({error.strerror})") from error
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


def _unshare(flags: int) -> int:
    """Return 0, or the error's number."""
    library = ctypes.CDLL(None, use_errno=True)
    return 0 if library.unshare(flags) == 0 else ctypes.get_errno()


def _flags(any_socket: socket.socket, name: str) -> int:
    asked = fcntl.ioctl(any_socket, _GET_FLAGS, _REQUEST.pack(name.encode(), 0))
    flags: int = _REQUEST.unpack(asked)[1]
    return flags
