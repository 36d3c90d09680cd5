"""Hosts in network namespaces that are linked in pairs, so that some have no route to each other.

A host forwards no packets, and has routes only to the ends of its own links. No host can be reached from outside, and
all hosts are removed at the end.
"""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.harness.lab import ip


class Hosts:
    """The hosts by name. Link number n of the list is the network 10.78.n.0/24; its first host has the address .1, the
    other .2. `alone`: hosts without a link. `ip6`: the network is fd78:n::/64 in its place, and no host has an IPv4
    address, not even 127.0.0.1."""

    def __init__(self, links: Sequence[tuple[str, str]], alone: Sequence[str] = (), *, ip6: bool = False) -> None:
        self._links, self._ip6 = links, ip6
        self._names = [*dict.fromkeys(host for link in links for host in link), *alone]

    def within(self, host: str) -> list[str]:
        """Return the beginning of a command that runs on a host."""
        return ["ip", "netns", "exec", self._namespace(host)]

    def reaches(self, host: str, address: str) -> bool:
        """Tell whether a host has a route to an address."""
        asked = ["ip", "-n", self._namespace(host), "route", "get", address]
        return subprocess.run(asked, capture_output=True, check=False).returncode == 0

    def cut(self, host: str, link: int, *, back: bool = False) -> None:
        """Disconnect a host, or connect it again."""
        ip("-n", self._namespace(host), "link", "set", f"link{link}", "up" if back else "down")

    def move(self, host: str, link: int, old: str, new: str) -> None:
        """Give a host another address, as a router does to a laptop that wakes up in another network."""
        device = f"link{link}"
        ip("-n", self._namespace(host), "addr", "del", f"{old}/24", "dev", device)
        ip("-n", self._namespace(host), "addr", "add", f"{new}/24", "dev", device)

    @contextmanager
    def up(self) -> Iterator["Hosts"]:
        """Create the namespaces and links. Raises `NotPermitted`."""
        try:
            for name in self._names:
                ip("netns", "add", self._namespace(name))
                ip("-n", self._namespace(name), "link", "set", "lo", "up")
                if self._ip6:
                    ip("-n", self._namespace(name), "addr", "del", "127.0.0.1/8", "dev", "lo")
            for number, (one, other) in enumerate(self._links):
                device, far = f"link{number}", self._namespace(other)
                near = ["-n", self._namespace(one)]
                ip(*near, "link", "add", device, "type", "veth", "peer", "name", device, "netns", far)
                for last, host in ((1, one), (2, other)):
                    # Without nodad an address of IPv6 cannot be used for its first second.
                    address = [f"fd78:{number}::{last}/64", "nodad"] if self._ip6 else [f"10.78.{number}.{last}/24"]
                    ip("-n", self._namespace(host), "addr", "add", *address, "dev", device)
                    ip("-n", self._namespace(host), "link", "set", device, "up")
            yield self
        finally:
            for name in self._names:
                subprocess.run(["ip", "netns", "del", self._namespace(name)], capture_output=True, check=False)

    def _namespace(self, host: str) -> str:
        return f"e2-{os.getpid()}-{host}"
