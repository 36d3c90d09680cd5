"""The other volunteers' nodes to which this node connects, and those that it remembers.

An eclipse attack gains only delay, because documents are signed and chunks proven. These rules limit even that delay.
A round of dialling follows each greeting, and each search for the coordinator.

1. The coordinator is dialled first (node/links/coordinator_client.py). It passes on records of other peers, each signed
   by its own peer (p2p/discovery/peer_records.py). Only addresses in these records are dialled, within
   p2p/limits/dial_backoff.py.
2. At most `PER_SUBNET` of the peers dialled in a round are in one subnet (p2p/limits/party.py). Private networks are
   exempt.
3. `ANCHORS` neighbours that were connected before are dialled first, also after a restart. So a flood of new records
   cannot displace them.
4. A public IP address is dialled for one peer per round. So a list of forged peers at one victim's address costs the
   victim one connection per node. Addresses through a relay to which this node is connected are exempt from rules 2
   and 4.
5. A peer is dialled at one address per round: with a probability of at least 1/2 the first in its record, which the
   peer considers best.
6. The file `peers` stores the anchors and at most `REMEMBERED_RECORDS` records, the latest first. The addresses of an
   expired record may still be dialled: it was valid when it arrived.
"""

import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog

from echo2.p2p.discovery.dialer import PeerDialer
from echo2.p2p.discovery.peer_records import VerifiedRecord, decode_own, is_dialable
from echo2.p2p.errors import P2PError
from echo2.p2p.limits.party import subnet_of
from echo2.p2p.multiaddr import address_of, peer_of
from echo2.p2p.network import Links
from echo2.runtime.files import writing

NEIGHBOURS: Final = 8
"""Most peers dialled per round."""
ANCHORS: Final = 3
PER_SUBNET: Final = 2
REMEMBERED_RECORDS: Final = 64

_log = structlog.get_logger("node")


class _Remembered(msgspec.Struct, frozen=True):
    anchors: list[str]
    records: list[bytes]


class Neighbours:
    """The neighbours of this node: chosen, dialled and remembered. `path`: the file `peers`. `seed`: seed of the
    choice."""

    def __init__(self, links: Links, dialer: PeerDialer, path: Path, seed: int) -> None:
        self._links, self._dialer, self._path = links, dialer, path
        self._random = random.Random(seed)
        self._anchors: list[str] = []
        self._read()

    async def on_welcome(self, records: Sequence[bytes]) -> None:
        """Remember the peers that the coordinator named, and dial some of them."""
        known = self._dialer.take(records)
        self._write()
        await self._meet(known)
        self._write()

    async def search(self) -> None:
        """Dial some of the remembered peers; the coordinator may be unreachable."""
        await self._meet(self._dialer.records.newest(REMEMBERED_RECORDS))

    def addresses(self) -> list[str]:
        """Return the addresses of all remembered peers, anchors first."""
        known = self._dialer.records.newest(REMEMBERED_RECORDS)
        return list(dict.fromkeys([*self._anchors, *(address for one in known for address in one.addresses)]))

    async def _meet(self, known: Iterable[VerifiedRecord]) -> None:
        """Dial anchors and some of the peers `known`: one round. A peer that answers may become an anchor."""
        connected = await self._links.peers()
        avoid = {*connected, self._links.peer_id}
        for address in choose_neighbours([*self._anchors, *self._one_each(known)], avoid, relays=connected):
            try:
                await self._dialer.dial(address)
            except P2PError as error:
                _log.debug("peer not reached", address=address, reason=str(error))
            else:
                self._anchors = list(dict.fromkeys([*self._anchors, address]))[:ANCHORS]

    def _one_each(self, known: Iterable[VerifiedRecord]) -> list[str]:
        """Return one address per peer (rule 5), in random order."""
        several = [one.addresses for one in known if one.addresses]
        self._random.shuffle(several)
        return [self._random.choice([one[0], self._random.choice(one)]) for one in several]

    def _write(self) -> None:
        records = [known.sealed for known in self._dialer.records.newest(REMEMBERED_RECORDS)]
        with writing(self._path) as file:
            file.write(msgspec.msgpack.encode(_Remembered(self._anchors, records)))

    def _read(self) -> None:
        """Read the file `peers`; a missing or damaged file counts as empty."""
        try:
            remembered = msgspec.msgpack.decode(self._path.read_bytes(), type=_Remembered)
            for known in reversed([decode_own(sealed) for sealed in remembered.records]):
                self._dialer.records.hold(known)
        except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError, P2PError):
            return
        self._anchors = [one for one in remembered.anchors if is_dialable(one, peer_of(one))][:ANCHORS]


def choose_neighbours(addresses: Sequence[str], avoid: Collection[str], relays: Collection[str] = ()) -> list[str]:
    """Choose up to `NEIGHBOURS` of `addresses`, in their order, by rules 2 and 4. `avoid`: peer ids. `relays`: peer ids
    of the connected relays."""
    picked: list[str] = []
    peers, hosts, subnets = set(avoid), set[str](), Counter[str]()
    for address in addresses:
        parsed = address_of(address)
        peer, host = parsed.peer, parsed.host
        subnet = None if parsed.relay in relays else subnet_of(host)
        if peer in peers or host in hosts or (subnet and subnets[subnet] >= PER_SUBNET):
            continue
        picked.append(address)
        peers.add(peer)
        if subnet is not None:
            hosts.add(host)
            subnets[subnet] += 1
        if len(picked) == NEIGHBOURS:
            break
    return picked
