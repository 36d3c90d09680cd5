"""The addresses at which a node dials the coordinator: those of the newest Head and of the invite.

A thief of the channel key, or an operator, could name a third party in a Head, to all nodes at once. So:

1. Only addresses of the permitted form are dialled (`is_dialable_of_operator`, p2p/discovery/peer_records.py), each
   within the operator's limits of p2p/limits/dial_backoff.py. One at which a peer answers that is not the coordinator
   counts as failed.
2. They are tried in the order of the owner's routes, and within a route those of the Head before those of the invite.
   One that failed, and has not worked since, comes after all others: once another one works, it is tried rarely.
3. A host that a Head names, and that was not known at the start, is dialled only `SPREAD_SECONDS` times a share after
   it was first seen. The share follows from host and node key, so that the nodes of a run come one after another. A
   peer that is connected needs no dial, and does not wait.
"""

import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import Final

import anyio

from echo2.p2p.discovery.dialer import LimitedDialer
from echo2.p2p.discovery.peer_records import is_dialable_of_operator
from echo2.p2p.errors import P2PError, Unreachable
from echo2.p2p.limits.dial_backoff import DialBackoff
from echo2.p2p.multiaddr import Route, address_of, peer_of, route_of
from echo2.p2p.network import Links

SPREAD_SECONDS: Final = 180.0


class OperatorAddresses(LimitedDialer):
    """The coordinator's addresses, and the dials to them."""

    def __init__(self, links: Links, node: bytes, routes: Sequence[Route], named: Callable[[], Sequence[str]]) -> None:
        """`node`: this node's public key. `routes`: the routes that the owner admits, the preferred one first. `named`:
        returns the addresses that Head and invite name, those of the Head first."""
        super().__init__(links, DialBackoff(of_operator=True))
        self._node, self._routes, self._named = node, routes, named
        self._from: dict[str, float] | None = None
        """Time from which each known host may be dialled, seconds of the event loop; None: before the first look."""
        self._failed: set[str] = set()

    def all(self) -> list[str]:
        """Return every address that may be dialled at some time, by the routes that the owner admits (rule 1)."""
        named = dict.fromkeys(self._named())
        return [one for one in named if route_of(one) in self._routes and is_dialable_of_operator(one)]

    def candidates(self, connected: Collection[str] = ()) -> list[str]:
        """Return the addresses to dial now, in their order (rules 2 and 3). `connected`: ids of connected peers."""
        known = self.all()
        self._failed &= set(known)
        due, now = self._due_hosts(known), anyio.current_time()
        ours = [one for one in known if peer_of(one) in connected or due[address_of(one).host] <= now]
        return sorted(ours, key=lambda one: (one in self._failed, self._routes.index(route_of(one))))

    async def dial_over(self, links: Links, route: Route) -> str:
        """Connect by other links and one route, at the first address that answers; return the peer. Raises
        `P2PError`."""
        reasons = list[str]()
        for address in self.candidates():
            if route_of(address) == route:
                try:
                    return await self.dial(address, links)
                except P2PError as error:
                    reasons.append(str(error))
        raise Unreachable("; ".join(reasons) or f"the coordinator has no address for {route}")

    def on_failure(self, address: str, connected: Collection[str] = ()) -> None:
        """Note that no coordinator answers at an address."""
        self._failed.add(address)
        super().on_failure(address, connected)

    def on_coordinator(self, address: str) -> None:
        """Note that the coordinator answered at an address."""
        self._failed.discard(address)

    def _due_hosts(self, addresses: Sequence[str]) -> dict[str, float]:
        """Return the time from which each host may be dialled (rule 3)."""
        hosts, now = {address_of(address).host for address in addresses}, anyio.current_time()
        before = dict.fromkeys(hosts, now) if self._from is None else self._from
        self._from = {host: before[host] if host in before else now + self._delay(host) for host in hosts}
        return self._from

    def _delay(self, host: str) -> float:
        digest = hashlib.sha256(b"echo2/spread" + self._node + host.encode()).digest()
        return SPREAD_SECONDS * int.from_bytes(digest[:8], "big") / (1 << 64)
