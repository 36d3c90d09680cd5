"""Keep a child process to the one use of a network that its row of runtime/child_budgets.py names.

Rules
1. `local`: no socket that reaches another machine, loopback included; a filter of system calls.
2. `loopback`: the process leaves the system's network for one of its own (runtime/own_network.py), before it starts
   threads. Its children are there too. It gives up the privileges over that network where it got any by that.
3. `one_port`: TCP to one port, at any address, and no listener. Where the other end has a name and no address,
   datagrams and port 53 stay possible, by which names are looked up.
4. `meeting`: ranks meet at a port, and then talk over ports that the systems choose: TCP to these alone. Over
   datagrams, and what a GPU's network card does without the kernel, there is no rule.
5. `cluster`: a driver of Ray speaks with a control service at one port, and with workers and hosts at `RAY_PORTS`
   and at ports that the systems choose: TCP to these alone, at any address.
6. Each returns why the system does not enforce it; empty: it does. The child then works on as it is, and says so.
"""

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from echo2.runtime import capabilities, landlock, namespaces, own_network, tcp_ports
from echo2.runtime.printable import printable
from echo2.runtime.system_call_filter import FilterUnavailable, Sockets, install

LOOK_UP: Final = 53
"""The port of DNS."""
RAY_PORTS: Final = range(10002, 20000)
"""The ports of workers, where `ray start` is not told others."""
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def local() -> str:
    """Keep this process to sockets of this machine's kernel, for drivers of devices (rules 1 and 6)."""
    try:
        install(sockets="local", subprocesses=True)
    except FilterUnavailable as unavailable:
        return str(unavailable)
    return ""


def loopback() -> str:
    """Leave the system's network for one that has loopback alone (rules 2 and 6)."""
    if own_network.is_alone():
        return ""
    try:
        if own_network.enter():
            capabilities.give_up()
    except namespaces.NamespaceRefused as unavailable:
        return str(unavailable)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def one_port(address: str) -> str:
    """Keep this thread, and what it starts, to the port of an address, as http://HOST:PORT (rules 3 and 6)."""
    try:
        url = urlsplit(address)
        port = url.port or _DEFAULT_PORTS[url.scheme]
    except (ValueError, KeyError):
        return f"{printable(address)} names no port"
    named = _is_looked_up(url.hostname or "")
    return _limit_network([port, LOOK_UP] if named else [port], [], "datagrams" if named else "streams")


def meeting(port: int) -> str:
    """Keep this thread, and what it starts, to the ports of ranks that meet at a port (rules 4 and 6)."""
    if own_network.is_alone():
        return ""
    try:
        free = tcp_ports.free_ports()
    except (OSError, ValueError) as error:
        return f"the system does not tell which ports are free: {error}"
    return _limit_network([port, LOOK_UP, *free], [port, 0, *free], "all")


def cluster(address: str) -> str:
    """Keep this thread, and what it starts, to the ports of a cluster of Ray (rules 5 and 6). `address`: HOST:PORT of
    its control service."""
    host, _, port = address.rpartition(":")
    try:
        ports = [*RAY_PORTS, *tcp_ports.free_ports()]
    except (OSError, ValueError) as error:
        return f"the system does not tell which ports are free: {error}"
    if not port.isdecimal():
        return f"{printable(address)} names no port"
    named = _is_looked_up(host.strip("[]"))
    return _limit_network([int(port), LOOK_UP, *ports], [0, *ports], "datagrams" if named else "streams")


def _is_looked_up(host: str) -> bool:
    if host == "localhost":
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def _limit_network(connect: list[int], listen: list[int], sockets: Sockets) -> str:
    try:
        tcp_ports.limit(connect=connect, listen=listen)
        install(sockets=sockets, subprocesses=True)
    except (landlock.LandlockUnavailable, FilterUnavailable) as unavailable:
        return str(unavailable)
    return ""
