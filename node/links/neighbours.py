"""Other volunteers that this node connects to: whom, and who is remembered.

What a stranger gains by surrounding a node is only delay, as every document is signed and every chunk proven; so that
it is not even that:

1. The coordinator comes first, see node/links/coordinator_client.py. It passes on the records of others, each signed by
   the one of whom it speaks (p2p/discovery/peer_records.py); only addresses out of these are dialled, and no more than
   p2p/limits/dial_backoff.py admits.
2. At most `PER_SUBNET` of those dialled are of one subnet (p2p/limits/subnets.py; a private network counts as none).
3. `ANCHORS` neighbours that were reached before are dialled again first, also after a restart: who floods the list of
   newcomers does not replace them.
4. A public IP address is dialled for one peer a round, so that a list of made-up peers at one victim's address
   costs the victim one connection a node. A relay that this node is connected to anyway is no victim.
5. A peer is dialled at one address a round: as often as not the one that it named first, which it found the best.
6. `peers` holds the anchors and at most `REMEMBERED` records, those heard of last first. They may be tried after their
   life, too: they were good when they came.
"""

import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog

from p2p.discovery.dialer import PeerDialer
from p2p.discovery.peer_records import VerifiedRecord, decode_own, is_dialable
from p2p.errors import P2PError
from p2p.limits.subnets import subnet_of
from p2p.multiaddr import address_of, peer_of
from p2p.network import Links
from runtime.files import writing

NEIGHBOURS: Final = 8
"""Dialled after a greeting."""
ANCHORS: Final = 3
PER_SUBNET: Final = 2
REMEMBERED: Final = 64

_log = structlog.get_logger("node")


class _Remembered(msgspec.Struct, frozen=True):
    anchors: list[str]
    records: list[bytes]


class Neighbours:
    """`seed`: of the choice."""

    def __init__(self, links: Links, dialer: PeerDialer, path: Path, seed: int) -> None:
        self._links, self._dialer, self._path = links, dialer, path
        self._random = random.Random(seed)
        self._anchors: list[str] = []
        self._read()

    async def welcomed(self, records: Sequence[bytes]) -> None:
        """The coordinator told of these peers: remember them, and dial some."""
        known = self._dialer.take(records)
        self._write()
        await self._meet(known)
        self._write()

    async def search(self) -> None:
        """While the coordinator is away: dial those of before."""
        await self._meet(self._dialer.records.newest(REMEMBERED))

    def addresses(self) -> list[str]:
        """Of everybody remembered, anchors first."""
        known = self._dialer.records.newest(REMEMBERED)
        return list(dict.fromkeys([*self._anchors, *(address for one in known for address in one.addresses)]))

    async def _meet(self, known: Iterable[VerifiedRecord]) -> None:
        connected = await self._links.peers()
        avoid = {*connected, self._links.peer_id}
        for address in chosen([*self._anchors, *self._one_each(known)], avoid, relays=connected):
            try:
                await self._dialer.dial(address)
            except P2PError as error:
                _log.debug("peer not reached", address=address, reason=str(error))
            else:
                self._anchors = list(dict.fromkeys([*self._anchors, address]))[:ANCHORS]

    def _one_each(self, known: Iterable[VerifiedRecord]) -> list[str]:
        """An address of each peer (rule 5), in an order of chance."""
        several = [one.addresses for one in known if one.addresses]
        self._random.shuffle(several)
        return [self._random.choice([one[0], self._random.choice(one)]) for one in several]

    def _write(self) -> None:
        records = [known.sealed for known in self._dialer.records.newest(REMEMBERED)]
        with writing(self._path) as file:
            file.write(msgspec.msgpack.encode(_Remembered(self._anchors, records)))

    def _read(self) -> None:
        """A file that is missing or spoilt is the same as an empty one."""
        try:
            remembered = msgspec.msgpack.decode(self._path.read_bytes(), type=_Remembered)
            for known in reversed([decode_own(sealed) for sealed in remembered.records]):
                self._dialer.records.hold(known)
        except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError, P2PError):
            return
        self._anchors = [one for one in remembered.anchors if is_dialable(one, peer_of(one))][:ANCHORS]


def chosen(
    addresses: Sequence[str], avoid: Collection[str], most: int = NEIGHBOURS, relays: Collection[str] = ()
) -> list[str]:
    """Up to `most` of `addresses`, in their order, by rules 2 and 4. `avoid`: peer ids. `relays`: those connected."""
    picked: list[str] = []
    peers, hosts, subnets = set(avoid), set[str](), Counter[str]()
    for address in addresses:
        found_there = address_of(address)
        peer, host = found_there.peer, found_there.host
        subnet = None if found_there.relay in relays else subnet_of(host)
        if peer in peers or host in hosts or (subnet and subnets[subnet] >= PER_SUBNET):
            continue
        picked.append(address)
        peers.add(peer)
        if subnet is not None:
            hosts.add(host)
            subnets[subnet] += 1
        if len(picked) == most:
            break
    return picked
