"""Addresses of peers in an in-memory network; a peer's address changes when it moves.

Addresses are taken from 100.64.0.0/10, which no machine on the Internet has. An address /memory/... has no host, and
leads to its peer after any move.
"""

from collections import defaultdict
from itertools import count

from echo2.p2p.multiaddr import address_of, peer_of


class MemoryAddresses:
    """The current address of each peer, assigned at first use."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._of: defaultdict[str, str] = defaultdict(self._next)

    def address(self, peer: str) -> str:
        """Return the multiaddress at which a peer can be dialled."""
        return f"{self._of[peer]}/p2p/{peer}"

    def move(self, peer: str) -> None:
        """Assign a fresh address."""
        self._of[peer] = self._next()

    def is_current(self, address: str) -> bool:
        """Tell whether an address still leads to the peer that it names."""
        return address_of(address).kind == "memory" or address == self.address(peer_of(address))

    def _next(self) -> str:
        number = next(self._numbers)
        return f"/ip4/100.{64 + (number >> 16)}.{number >> 8 & 255}.{number & 255}/tcp/4310"
