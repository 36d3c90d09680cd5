"""Where the peers of an in-memory network are: an address each, which changes when one moves.

Addresses are of 100.64.0.0/10, which no machine on the Internet has. /memory/..., which names no place, leads to its
peer wherever that is.
"""

from collections import defaultdict
from itertools import count

from p2p.multiaddr import address_of, peer_of


class MemoryAddresses:
    """A peer that is asked for and has no place gets one."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._of: defaultdict[str, str] = defaultdict(self._next)

    def address(self, peer: str) -> str:
        """Multiaddress at which a peer can be dialled."""
        return f"{self._of[peer]}/p2p/{peer}"

    def move(self, peer: str) -> None:
        """To a place where nobody has been."""
        self._of[peer] = self._next()

    def is_current(self, address: str) -> bool:
        """Whether the peer that an address names is where it says."""
        return address_of(address).kind == "memory" or address == self.address(peer_of(address))

    def _next(self) -> str:
        number = next(self._numbers)
        return f"/ip4/100.{64 + (number >> 16)}.{number >> 8 & 255}.{number & 255}/tcp/4310"
