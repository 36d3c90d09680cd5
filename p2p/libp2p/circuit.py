"""The two ends of circuit relay v2: reserve at a relay, dial through one, be dialled through one.

The wire is the specification's (/libp2p/circuit/relay/0.2.0/hop and /stop), with upstream's protobuf types. Upstream's
client is not used: it retries, discovers relays and keeps state of its own. A relayed connection is secured
and multiplexed from end to end like any other: the relay sees only encrypted bytes, and the handshake authenticates the
other end.

1. A connection is accepted only through a relay at which this peer holds a reservation.
2. A message has at most `MOST_CIRCUIT_MESSAGE_BYTES` bytes and must arrive within `ANSWER_TIMEOUT` seconds.
3. Addresses through a relay are announced by IP addresses: those of its names are looked up, since peer records have no
   names. At most `MOST_ADDRESSES` of a relay are announced, and dialled again when the connection is lost.
4. The relay is dialled from the port that this peer listens on, where the system permits it. Then the relay observes an
   address for which a hole can be punched (p2p/libp2p/hole_punch.py).
"""

import contextlib
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import trio
from google.protobuf.message import Message

from echo2._libp2p.abc import IHost, IMuxedConn, INetStream
from echo2._libp2p.connection_types import ConnectionType
from echo2._libp2p.custom_types import TProtocol
from echo2._libp2p.io.abc import ReadWriteCloser
from echo2._libp2p.io.exceptions import ConnectionClosedError
from echo2._libp2p.multiaddr import Multiaddr
from echo2._libp2p.network.connection.raw_connection import RawConnection
from echo2._libp2p.network.stream.exceptions import StreamEOF, StreamError
from echo2._libp2p.peer.id import ID
from echo2._libp2p.peer.peerinfo import info_from_p2p_addr
from echo2._libp2p.relay.circuit_v2.pb import circuit_pb2 as pb
from echo2._libp2p.utils.varint import encode_varint_prefixed, read_varint_prefixed_bytes_limited
from echo2.p2p.errors import Malformed, Unreachable
from echo2.p2p.guard import log
from echo2.p2p.multiaddr import address_of, tcp, through
from echo2.runtime.backoff import Backoff

HOP_PROTOCOL = TProtocol("/libp2p/circuit/relay/0.2.0/hop")
STOP_PROTOCOL = TProtocol("/libp2p/circuit/relay/0.2.0/stop")
MOST_CIRCUIT_MESSAGE_BYTES = 4096
ANSWER_TIMEOUT = 10.0
"""Seconds for one message or one stream."""
DIAL_TIMEOUT = 15.0
"""Seconds for a dial of a relay and its reservation together."""
RELAY_BACKOFF = Backoff(1.0, 60.0)
"""Seconds between two attempts at a relay that does not answer: at first, and at most."""
SKEWED_RESERVATION_SECONDS = 60.0
"""Assumed life, in seconds, of a reservation that has already ended by this machine's clock."""
MOST_ADDRESSES = 4
MOST_OF_FAMILY = 2
"""Most addresses of a name of one kind: whoever answers for the name may give thousands."""

M = TypeVar("M", bound=Message)


async def send(stream: INetStream, message: Message) -> None:
    """Write one length-prefixed message. Raises `Unreachable`."""
    try:
        await stream.write(encode_varint_prefixed(message.SerializeToString()))
    except StreamError as error:
        raise Unreachable(f"the stream ended: {error!r}") from None


async def receive(stream: INetStream, type_: type[M]) -> M:
    """Read one length-prefixed message. Raises `Malformed`, `Unreachable`."""
    message = type_()
    try:
        with trio.fail_after(ANSWER_TIMEOUT):
            message.ParseFromString(await read_varint_prefixed_bytes_limited(stream, MOST_CIRCUIT_MESSAGE_BYTES))
    except trio.TooSlowError:
        raise Unreachable(f"no message within {ANSWER_TIMEOUT:g} s") from None
    except (StreamEOF, StreamError) as error:
        raise Unreachable(f"the stream ended: {error!r}") from None
    except Exception as error:
        raise Malformed(f"not a message of the relay protocol: {error!r}") from None
    return message


class CircuitStream(ReadWriteCloser):
    """A relayed stream with the interface of a socket, as libp2p's upgrader needs it."""

    def __init__(self, stream: INetStream) -> None:
        self._stream = stream

    async def read(self, n: int | None = None) -> bytes:
        try:
            return await self._stream.read(n)
        except StreamEOF:
            return b""
        except Exception as error:
            raise ConnectionClosedError(f"the circuit ended: {error!r}", transport="relay") from None

    async def write(self, data: bytes) -> None:
        try:
            await self._stream.write(data)
        except Exception as error:
            raise ConnectionClosedError(f"the circuit ended: {error!r}", transport="relay") from None

    async def close(self) -> None:
        await self._stream.reset()

    def get_remote_address(self) -> tuple[str, int] | None:
        return None


class RelayClient:
    """The client side of circuits on one host: reservations, and relayed connections in both directions."""

    def __init__(
        self, host: IHost, disconnected: Callable[[str], Awaitable[None]], on_relayed_peer: Callable[[str], None]
    ) -> None:
        """`disconnected`: waits until there is no connection with a peer. `on_relayed_peer`: called with the id of each
        peer that connects through a relay."""
        self._host, self._disconnected, self._on_relayed_peer = host, disconnected, on_relayed_peer
        self._network: Any = host.get_network()
        self._relay_addresses: dict[ID, list[str]] = {}
        self._renewals: dict[str, trio.CancelScope] = {}
        host.set_stream_handler(STOP_PROTOCOL, self._on_stop)

    def addresses(self) -> list[str]:
        """Return the addresses at which this peer can be dialled through relays."""
        own = str(self._host.get_id())
        return [through(address, own) for relayed in self._relay_addresses.values() for address in relayed]

    async def reserve(self, addresses: Sequence[str], nursery: trio.Nursery) -> None:
        """Reserve at the relay with these addresses; renew the reservation in `nursery` until `release`. Raises
        `Unreachable`."""
        relay, life = await self._find_and_reserve(addresses)
        if relay not in self._renewals:
            self._renewals[relay] = trio.CancelScope()
            nursery.start_soon(self._renew, relay, list(addresses)[:MOST_ADDRESSES], life)

    async def release(self, relay: str) -> None:
        """Stop renewing a reservation and announcing its addresses."""
        self._relay_addresses.pop(ID.from_string(relay), None)
        if (renewal := self._renewals.pop(relay, None)) is not None:
            renewal.cancel()

    async def _renew(self, relay: str, addresses: list[str], life: float) -> None:
        """Renew a reservation after two thirds of its life, or once the connection with the relay is lost."""
        with self._renewals[relay]:
            failures = 0
            while True:
                with trio.move_on_after(life * 2 / 3):
                    await self._disconnected(relay)
                    self._relay_addresses.pop(ID.from_string(relay), None)
                try:
                    _, life = await self._find_and_reserve(addresses)
                    failures = 0
                except Unreachable as error:
                    log.info("relay reservation not renewed: %s", error)
                    life = 0.0
                    failures += 1
                    await trio.sleep(RELAY_BACKOFF.delay(failures))

    async def _find_and_reserve(self, addresses: Sequence[str]) -> tuple[str, float]:
        """Return the relay's peer id, and the seconds until the reservation ends. Raises `Unreachable`."""
        reasons = []
        for address in addresses:
            try:
                with trio.fail_after(DIAL_TIMEOUT):
                    relay = await self.connect(address)
                    return str(relay), await self._reserve(relay, addresses)
            except Exception as error:
                reasons.append(f"{address}: {str(error) or repr(error)}")
        raise Unreachable(f"no reservation: {'; '.join(reasons) or 'no relay address was given'}")

    async def _reserve(self, relay: ID, addresses: Sequence[str]) -> float:
        """Request a reservation once; return the seconds until it ends. Raises `Unreachable`."""
        stream = await self._open(relay)
        try:
            await send(stream, pb.HopMessage(type=pb.HopMessage.RESERVE))
            answer = await receive(stream, pb.HopMessage)
        finally:
            await stream.reset()
        if answer.status != pb.OK:
            self._relay_addresses.pop(relay, None)
            raise Unreachable(f"{relay} grants no reservation: {_status(answer.status)}")
        self._relay_addresses[relay] = (await without_names(addresses))[:MOST_ADDRESSES]
        left = float(answer.reservation.expire) - time.time()
        return left if left > 0 else SKEWED_RESERVATION_SECONDS

    async def dial(self, address: str) -> str:
        """Connect to a peer through a relay, by an address with /p2p-circuit; return its id. Raises `Unreachable`."""
        place = address_of(address)
        if not place.relay or not (target := place.peer):
            raise Unreachable(f"{address} names no relay, or no peer behind it")
        peer = ID.from_string(target)
        if peer in self._host.get_connected_peers():
            return target
        relay_id = await self.connect(place.before_circuit.text)
        stream = await self._open(relay_id)
        try:
            await send(stream, pb.HopMessage(type=pb.HopMessage.CONNECT, peer=pb.PeerId(id=peer.to_bytes())))
            answer = await receive(stream, pb.HopMessage)
            if answer.status != pb.OK:
                raise Unreachable(f"relay {relay_id} does not connect to {target}: {_status(answer.status)}")
            await self._network.upgrade_outbound_raw_conn(_connection(stream, address, initiator=True), peer)
        except BaseException:
            with trio.CancelScope(shield=True), trio.move_on_after(ANSWER_TIMEOUT):
                await stream.reset()
            raise
        return target

    async def connect(self, address: str) -> ID:
        """Connect to a relay itself (rule 4); return its peer id."""
        info = info_from_p2p_addr(Multiaddr(address))
        if info.peer_id not in self._host.get_connected_peers():
            source = self.source(address)
            try:
                await self._network.dial_addr(Multiaddr(address), info.peer_id, source)
            except Exception as error:
                if source is None:
                    raise
                log.debug("relay dial from the listening port failed: %r", error)
                await self._network.dial_addr(Multiaddr(address), info.peer_id)
        return info.peer_id

    def source(self, address: str) -> tuple[str, int] | None:
        """Return the host and port that this peer listens on, of the address family of `address`; None without one."""
        family = address_of(address).kind
        for listening in self._network.listeners.values():
            for own in map(address_of, map(str, listening.get_addrs())):
                if own.kind == family and own.port is not None:
                    return own.host, own.port
        return None

    async def _open(self, relay: ID) -> INetStream:
        try:
            with trio.fail_after(ANSWER_TIMEOUT):
                return await self._host.new_stream(relay, [HOP_PROTOCOL])
        except Exception as error:
            raise Unreachable(f"{relay} is no relay: {error!r}") from None

    async def _on_stop(self, stream: INetStream) -> None:
        """Handle a relay's STOP request: accept the relayed connection that it announces (rule 1)."""
        relay = stream.muxed_conn.peer_id
        asked = await receive(stream, pb.StopMessage)
        if asked.type != pb.StopMessage.CONNECT or relay not in self._relay_addresses:
            await send(stream, pb.StopMessage(type=pb.StopMessage.STATUS, status=pb.PERMISSION_DENIED))
            await stream.close()
            return
        await send(stream, pb.StopMessage(type=pb.StopMessage.STATUS, status=pb.OK))
        source = ID(asked.peer.id)
        address = through((self._relay_addresses[relay] or [f"/p2p/{relay}"])[0], str(source))
        try:
            connection = _connection(stream, address, initiator=False)
            await self._network.upgrade_inbound_raw_conn(connection, Multiaddr(address))
        except Exception as error:
            raise Unreachable(f"the relayed connection of {source} failed: {error!r}") from None
        self._on_relayed_peer(str(source))


def remote_address(connection: IMuxedConn) -> str | None:
    """Return the multiaddress of the other end; None if it is unknown."""
    addresses = connection.get_transport_addresses()
    return str(addresses[0]) if addresses else None


async def without_names(addresses: Sequence[str]) -> list[str]:
    """Return addresses with each that has a name for a host replaced by those at its IP addresses (rule 3), of which
    the first `MOST_OF_FAMILY` of IPv4 and of IPv6 count; a name that is not known, or none at all, has none."""
    announced = list[str]()
    for address in addresses:
        parsed = address_of(address)
        if not parsed.is_named:
            announced.append(address)
            continue
        family = {"dns4": socket.AF_INET, "dns6": socket.AF_INET6}.get(parsed.kind, socket.AF_UNSPEC)
        taken = Counter[int]()
        with contextlib.suppress(OSError, UnicodeError):
            known = await trio.socket.getaddrinfo(parsed.host, parsed.port, family=family, type=socket.SOCK_STREAM)
            for kind, *_, place in known:
                taken[kind] += 1
                if taken[kind] <= MOST_OF_FAMILY:
                    announced.append(tcp(str(place[0]), int(place[1]), parsed.peer))
    return list(dict.fromkeys(announced))


def _connection(stream: INetStream, address: str, *, initiator: bool) -> RawConnection:
    return RawConnection(CircuitStream(stream), initiator, ConnectionType.RELAYED, [Multiaddr(address)])


def _status(status: "pb.Status.ValueType") -> str:
    try:
        return pb.Status.Name(status).lower().replace("_", " ")
    except ValueError:
        return f"status {status}"
