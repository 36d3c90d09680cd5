"""Other volunteers that this node connects to: whom, and who is remembered.

What a stranger gains by surrounding a node is only delay, as every document is signed and every chunk proven; so that
it is not even that:

1. The coordinator comes first, see node/link.py. Addresses of others come from it alone, which has them from each
   node's signed greeting.
2. At most `PER_SUBNET` of those dialled are of one subnet (p2p/limits.py; a private network counts as none).
3. `ANCHORS` neighbours that were reached before are dialled again first, also after a restart: who floods the list of
   newcomers does not replace them.
4. A public IP address is dialled for one peer a round, so that a list of made-up peers at one victim's address
   costs the victim one connection a node. A relay that this node is connected to anyway is no victim.
5. A peer is dialled at one address a round: as often as not the one that it named first, which it found the best.
6. `peers.json` holds at most `REMEMBERED` addresses, anchors first.
"""

import json
import random
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

import structlog

from p2p.errors import P2PError
from p2p.limits import subnet_of
from p2p.network import Network
from weights.durable import writing

NEIGHBOURS: Final = 8
"""Dialled after a greeting."""
ANCHORS: Final = 3
PER_SUBNET: Final = 2
REMEMBERED: Final = 64

_log = structlog.get_logger("node")


class Neighbours:
    """`seed`: of the choice."""

    def __init__(self, network: Network, path: Path, seed: int) -> None:
        self._network, self._path = network, path
        self._random = random.Random(seed)
        self._anchors: list[str] = []

    async def meet(self, addresses: Sequence[str]) -> None:
        """Dial some of them."""
        connected = await self._network.peers()
        avoid = {*connected, self._network.peer_id}
        for address in chosen([*self._anchors, *self._one_each(addresses)], avoid, relays=connected):
            try:
                await self._network.dial([address])
            except P2PError as error:
                _log.debug("peer not reached", address=address, reason=str(error))
            else:
                self._anchors = list(dict.fromkeys([*self._anchors, address]))[:ANCHORS]

    def _one_each(self, addresses: Sequence[str]) -> list[str]:
        """An address of each peer (rule 5), in an order of chance."""
        by_peer: dict[str, list[str]] = {}
        for address in addresses:
            by_peer.setdefault(address.rpartition("/p2p/")[2], []).append(address)
        several = self._random.sample(list(by_peer.values()), len(by_peer))
        return [self._random.choice([one[0], self._random.choice(one)]) for one in several]

    def remember(self, addresses: Sequence[str]) -> None:
        """`addresses`: the newest. Anchors go before them, those known before after them."""
        known = list(dict.fromkeys([*self._anchors, *addresses, *self.remembered()]))[:REMEMBERED]
        with writing(self._path) as file:
            file.write(json.dumps(known).encode())

    def remembered(self) -> list[str]:
        """Anchors first."""
        try:
            known = json.loads(self._path.read_bytes())
        except (FileNotFoundError, ValueError):
            return []
        return [address for address in known if isinstance(address, str)][:REMEMBERED]

    async def search(self) -> None:
        """While the coordinator is away: dial those of before."""
        known = self.remembered()
        self._anchors = self._anchors or known[:ANCHORS]
        await self.meet(known)


def chosen(
    addresses: Sequence[str], avoid: Collection[str], most: int = NEIGHBOURS, relays: Collection[str] = ()
) -> list[str]:
    """Up to `most` of `addresses`, in their order, by rules 2 and 4. `avoid`: peer ids. `relays`: those connected."""
    found: list[str] = []
    peers, hosts, subnets = set(avoid), set[str](), Counter[str]()
    for address in addresses:
        peer, host = address.rpartition("/p2p/")[2], _host(address)
        subnet = None if _relay(address) in relays else subnet_of(host)
        if peer in peers or host in hosts or (subnet and subnets[subnet] >= PER_SUBNET):
            continue
        found.append(address)
        peers.add(peer)
        if subnet is not None:
            hosts.add(host)
            subnets[subnet] += 1
        if len(found) == most:
            break
    return found


def _relay(address: str) -> str | None:
    """The relay's peer id in a relayed address."""
    relay, relayed, _ = address.partition("/p2p-circuit")
    return relay.rpartition("/p2p/")[2] if relayed else None


def _host(address: str) -> str:
    parts = address.split("/")
    return parts[2] if len(parts) > 2 and parts[1] in ("ip4", "ip6") else ""
