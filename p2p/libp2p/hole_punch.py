"""Hole punching (DCUtR): two peers that met through a relay try to connect directly.

The wire is the specification's (/libp2p/dcutr). The peer that was dialled through the relay leads:

1. Both exchange the addresses at which they may be reached (CONNECT): those that relays observed, and their own, at
   most `ADDRESSES`.
2. The leader dials the other's addresses. That suffices where the other can be dialled and only the leader cannot.
3. Otherwise both dial at the same moment, from the port that they listen on: each NAT has then seen an outgoing packet
   when the other side's arrives. The leader sends SYNC and waits half a round trip. The two attempts may become
   one connection (TCP simultaneous open). For that case the leader takes the server's role in the handshake.
4. An upgrade has succeeded once there is a direct connection. The relayed one is closed after `RELAY_GRACE_SECONDS`
   seconds, so that streams on it may end. Without a direct one after `ROUNDS` rounds, the relayed one stays.
5. A CONNECT cannot be used to amplify dials. Only IP and TCP addresses that a peer record may contain
   (p2p/discovery/peer_records.py) are dialled, at most `PER_SUBNET` per public subnet.
6. One upgrade runs at a time per peer. Rounds are limited to `PUNCH_BURST` per peer and `BURST` in all, then one per
   `PUNCH_EACH` and per `EACH` seconds. `PUNCHES` peers are dialled at a time: a place is taken once all messages of a
   round have come, which they must within `RATE_SECONDS`. A quarter of the places is for parties with accepted work,
   and the limit on all rounds is one of its own for these.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import trio

from echo2._libp2p.abc import IHost, INetConn, INetStream
from echo2._libp2p.connection_types import ConnectionType
from echo2._libp2p.custom_types import TProtocol
from echo2._libp2p.multiaddr import Multiaddr
from echo2._libp2p.peer.id import ID
from echo2._libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch
from echo2.p2p.discovery.peer_records import is_dialable
from echo2.p2p.errors import Malformed, Unreachable
from echo2.p2p.guard import log
from echo2.p2p.libp2p.circuit import RelayClient, receive, send
from echo2.p2p.limits.least_rate import RATE_SECONDS
from echo2.p2p.limits.origin import Origin
from echo2.p2p.limits.party import subnet_of
from echo2.p2p.limits.relay_quota import PUNCH_BURST, PUNCH_EACH, PUNCHES
from echo2.p2p.limits.token_bucket import TokenBucket, TokenBuckets
from echo2.p2p.local_addresses import dialable
from echo2.p2p.multiaddr import address_of, pack, unpack

PROTOCOL = TProtocol("/libp2p/dcutr")
ADDRESSES = 8
ROUNDS = 3
DIAL_TIMEOUT = 4.0
"""Seconds for one dial of one address."""
RELAY_GRACE_SECONDS = 10.0
PER_SUBNET = 2
BURST, EACH = 30.0, 5.0
"""Rounds with all peers at once; then seconds per further round."""
DIAL_SETTLE_SECONDS = 1.0
"""Seconds for the other end's dial to become a connection on this end."""


class HolePuncher:
    """Upgrades relayed connections of one host to direct ones."""

    def __init__(self, host: IHost, relay_client: RelayClient, origin: Callable[[str], Origin]) -> None:
        """`origin`: returns a peer's origin."""
        self._host = host
        self._relay_client = relay_client
        self._origin = origin
        self._busy: set[ID] = set()
        self._dialled = Counter[bool]()
        """Peers that are dialled now, by whether they have accepted work."""
        self._by_peer = TokenBuckets(1 / PUNCH_EACH, PUNCH_BURST)
        self._all = {known: TokenBucket(1 / EACH, BURST) for known in (True, False)}
        """Rounds with all peers, by whether these have accepted work."""
        host.set_stream_handler(PROTOCOL, self._follow)

    async def upgrade(self, peer: str) -> bool:
        """Try to replace an inbound relayed connection; return whether there is a direct one now. Never raises."""
        target = ID.from_string(peer)
        if target in self._busy:
            return False
        self._busy.add(target)
        try:
            for _ in range(ROUNDS):
                if await self._round(target):
                    log.info("relayed connection upgraded: %s is reached directly", peer)
                    await self._leave_relay(target)
                    return True
        except Exception as error:
            log.info("relayed connection not upgraded: no direct connection with %s: %r", peer, error)
        finally:
            self._busy.discard(target)
        return False

    async def _round(self, peer: ID) -> bool:
        """Lead one round (rules 1 to 3); return whether there is a direct connection now."""
        self.charge_round(peer)
        stream = await self._host.new_stream(peer, [PROTOCOL])
        try:
            began = trio.current_time()
            await send(stream, self._connect())
            addresses = usable(await receive(stream, HolePunch), str(peer))
            half = (trio.current_time() - began) / 2
            if await self._dial(peer, addresses, source=False):
                return True
            await send(stream, HolePunch(type=HolePunch.SYNC))
        finally:
            await stream.close()
        await trio.sleep(half)
        return await self._dial(peer, addresses, responder=True)

    async def _follow(self, stream: INetStream) -> None:
        """Follow one round that the other peer leads."""
        peer = stream.muxed_conn.peer_id
        if peer in self._busy:
            raise Unreachable(f"no upgrade with {peer} now: one is under way")
        self.charge_round(peer)
        self._busy.add(peer)
        try:
            with trio.fail_after(RATE_SECONDS):
                asked = await receive(stream, HolePunch)
                await send(stream, self._connect())
                while (await receive(stream, HolePunch)).type != HolePunch.SYNC:
                    pass
            await self._dial(peer, usable(asked, str(peer)))
        finally:
            self._busy.discard(peer)
            await stream.close()

    def charge_round(self, peer: ID) -> None:
        """Charge a round to the limits of rule 6. Raises `Unreachable` if one is reached."""
        now, of_all = trio.current_time(), self._all[self._origin(str(peer)).is_known]
        if max(self._by_peer.delay(str(peer), now), of_all.delay(1, now)) > 0:
            raise Unreachable(f"no upgrade with {peer} now: the limit on rounds is reached")
        self._by_peer.consume(str(peer), now)
        of_all.consume(1, now)

    @contextmanager
    def _place(self, peer: ID) -> Iterator[None]:
        """Occupy a place while a peer is dialled (rule 6). Raises `Unreachable`."""
        known = self._origin(str(peer)).is_known
        crowded = not known and self._dialled[False] >= PUNCHES - PUNCHES // 4
        if crowded or self._dialled.total() >= PUNCHES:
            raise Unreachable(f"no upgrade with {peer} now: too many are under way")
        self._dialled[known] += 1
        try:
            yield
        finally:
            self._dialled[known] -= 1

    async def _dial(self, peer: ID, addresses: Sequence[str], *, responder: bool = False, source: bool = True) -> bool:
        """Dial all addresses at once; return whether there is a direct connection, dialled by either end. `responder`:
        take the server's role in the handshake. `source`: dial from the listening port. Raises `Unreachable`."""
        with self._place(peer):
            async with trio.open_nursery() as nursery:
                for address in addresses:
                    nursery.start_soon(self._try, peer, address, responder, source, nursery.cancel_scope)
        with trio.move_on_after(DIAL_SETTLE_SECONDS):
            while not self._open(peer, ConnectionType.DIRECT):  # noqa: ASYNC110 - upstream notifies before it is usable
                await trio.sleep(0.05)
        return bool(self._open(peer, ConnectionType.DIRECT))

    async def _try(self, peer: ID, address: str, responder: bool, source: bool, attempts: trio.CancelScope) -> None:
        network: Any = self._host.get_network()
        dial = network.dial_addr_as_responder if responder else network._dial_addr_single_attempt
        own = self._relay_client.source(address) if source else None
        try:
            with trio.move_on_after(DIAL_TIMEOUT):
                await dial(Multiaddr(address), peer, own)
                attempts.cancel()
        except Exception as error:
            log.debug("punch %s: %r", address, error)

    def _open(self, peer: ID, kind: ConnectionType) -> list[INetConn]:
        connections: list[INetConn] = self._host.get_network().get_connections(peer)
        return [one for one in connections if one.get_connection_type() == kind and not one.is_closed]

    async def _leave_relay(self, peer: ID) -> None:
        await trio.sleep(RELAY_GRACE_SECONDS)
        for connection in self._open(peer, ConnectionType.RELAYED):
            if self._open(peer, ConnectionType.DIRECT):
                await connection.close()

    def _connect(self) -> HolePunch:
        own = [str(address) for address in self._host.get_addrs()]
        manager: Any = getattr(self._host, "_observed_addr_manager", None)
        seen = [str(address) for address in manager.addrs(min_observers=1)] if manager is not None else []
        spread = dialable([*seen, *own], str(self._host.get_id()))
        bare = dict.fromkeys(parsed.endpoint for parsed in map(address_of, spread) if parsed.route == "direct")
        packed = [pack(address) for address in list(bare)[:ADDRESSES]]
        return HolePunch(type=HolePunch.CONNECT, ObsAddrs=packed)


def usable(message: HolePunch, peer: str) -> list[str]:
    """Return the direct TCP addresses of a peer's CONNECT that may be dialled (rule 5). Raises `Unreachable`."""
    if message.type != HolePunch.CONNECT:
        raise Unreachable("the peer sent no CONNECT: it does not take part in the upgrade")
    addresses, subnets = [], Counter[str | None]()
    for packed in message.ObsAddrs[:ADDRESSES]:
        try:
            address = unpack(packed)
        except Malformed as error:
            log.debug("%s", error)
            continue
        subnet = subnet_of(address_of(address).host)
        subnets[subnet] += 1
        if is_dialable(f"{address}/p2p/{peer}", peer) and (subnet is None or subnets[subnet] <= PER_SUBNET):
            addresses.append(address)
    return addresses
