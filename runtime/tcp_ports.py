"""The TCP ports that a process may connect to and listen on, by Landlock's rules.

Rules
1. A connection to another port, and a listener on another, fails with EACCES. Port 0 stands for any free one.
2. The rules tell ports apart, not addresses. Whom they bind: runtime/landlock.py, rule 2.
3. Kernels from 6.7 have such rules, if Landlock is switched on; elsewhere `limit` says so. Other kinds of sockets they
   do not see: runtime/system_call_filter.py, rule 6.
"""

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from echo2.runtime import landlock

_BIND, _CONNECT = 1, 2
_PORTS_SINCE: Final = 4
"""The version of Landlock that began to know ports."""
_PORT: Final = struct.Struct("@QQ")
"""The rights that a rule gives, and its port."""


def limit(*, connect: Iterable[int], listen: Iterable[int]) -> None:
    """Let this thread, and what it starts, connect to the ports of `connect` and listen on those of `listen` alone.
    Raises `LandlockUnavailable`."""
    known = landlock.version()
    if known < _PORTS_SINCE:
        raise landlock.LandlockUnavailable(
            f"Landlock of this kernel is of version {known}, and ports need {_PORTS_SINCE}"
        )
    ports = [(right, port) for right, named in ((_CONNECT, connect), (_BIND, listen)) for port in named]
    landlock.bind(
        landlock.LandlockOrder([(landlock.PORT_RULE, _PORT.pack(*one)) for one in ports], ports=_BIND | _CONNECT)
    )


def free_ports() -> range:
    """Return the range from which this system takes a port for who asks for any."""
    first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return range(int(first), int(last) + 1)
