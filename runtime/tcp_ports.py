"""The TCP ports that a process may connect to and listen on: Landlock's rules, set without privileges on Linux.

Rules
1. A connection to another port, and a listener on another, fails with EACCES. Port 0 stands for any free one.
2. The rules bind the calling thread, the threads and processes that it starts from then on, and nothing else; no new
   privileges can be had. They tell ports apart, not addresses.
3. Kernels from 6.7 have such rules, if Landlock is switched on; elsewhere `limit` says so. Other kinds of sockets they
   do not see: runtime/system_call_filter.py, rule 6.

Source: landlock(7), linux/landlock.h.
"""

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION: Final = 1
_PORT_RULE: Final = 2
_BIND, _CONNECT = 1, 2
_PORTS_SINCE: Final = 4
"""The version of Landlock that began to know ports."""
_NO_NEW_PRIVILEGES: Final = 38
_RULESET: Final = struct.Struct("@QQ")
"""The rights of files and of ports that the rules govern."""
_PORT: Final = struct.Struct("@QQ")
"""The rights that a rule gives, and its port."""


class PortsUnavailable(Exception):
    """This system has no such rules; the message says why."""


def check() -> None:
    """Check that this system has such rules. Raises `PortsUnavailable`."""
    if not sys.platform.startswith("linux"):
        raise PortsUnavailable(f"{sys.platform} has no Landlock")
    version = ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)
    if version < 0:
        code = ctypes.get_errno()
        raise PortsUnavailable(f"the kernel has no Landlock ({errno.errorcode.get(code, code)})")
    if version < _PORTS_SINCE:
        raise PortsUnavailable(f"Landlock of this kernel is of version {version}, and ports need {_PORTS_SINCE}")


def limit(*, connect: Iterable[int], listen: Iterable[int]) -> None:
    """Let this thread, and what it starts, connect to the ports of `connect` and listen on those of `listen` alone.
    Raises `PortsUnavailable`."""
    check()
    library = ctypes.CDLL(None, use_errno=True)
    rules = _check_call(library.syscall(_CREATE_RULESET, _RULESET.pack(0, _BIND | _CONNECT), _RULESET.size, 0))
    try:
        for right, ports in ((_CONNECT, connect), (_BIND, listen)):
            for port in ports:
                _check_call(library.syscall(_ADD_RULE, rules, _PORT_RULE, _PORT.pack(right, port), 0))
        _check_call(library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
        _check_call(library.syscall(_RESTRICT_SELF, rules, 0))
    finally:
        os.close(rules)


def free_ports() -> range:
    """Return the range from which this system takes a port for who asks for any."""
    first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return range(int(first), int(last) + 1)


def _check_call(returned: int) -> int:
    if returned < 0:
        code = ctypes.get_errno()
        raise PortsUnavailable(f"the kernel refuses a rule of Landlock ({errno.errorcode.get(code, code)})")
    return returned
