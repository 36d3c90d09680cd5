"""Attacks on accepted connections over libp2p: the product's acceptance and upstream's handshake, over pairs of
sockets, on a fake clock. An attacker is a dialler of which only the first bytes arrive."""

import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import trio
import trio.testing

from echo2._libp2p.io.abc import ReadWriteCloser
from echo2._libp2p.io.trio import TrioTCPStream
from echo2._libp2p.multiaddr import Multiaddr
from echo2._libp2p.network.connection.raw_connection import RawConnection
from echo2._libp2p.peer.id import ID
from echo2.p2p.identity import generate_key
from echo2.p2p.libp2p.connection_gater import Connections
from echo2.p2p.libp2p.patches import set_source
from echo2.p2p.libp2p.transport import LibP2PTransport
from echo2.p2p.limits import subnets
from echo2.p2p.limits.connection_places import ConnectionAdmission, ConnectionRefused
from echo2.p2p.limits.party import Parties
from echo2.p2p.limits.subnets import PeerLimits
from echo2.p2p.peer.peer import Peer
from tests.support.doors import PROVEN, echo
from tests.support.limit_attacks.attack import SLACK, Taken, lacking
from tests.support.limit_attacks.former import limits_of_former
from tests.support.muxed_pairs import on_fake_time

PROXY = "10.0.0.7"
HANDSHAKE_STEP = 23
"""Bytes between two places at which the attackers of a handshake stop."""
Measure = Callable[[Connections], float]


class FirstBytes(ReadWriteCloser):
    """The dialler's end of a connection, of which the first `left` bytes arrive. `sent`: bytes so far."""

    def __init__(self, stream: TrioTCPStream, left: int) -> None:
        self._stream, self._left = stream, left
        self.sent = 0

    async def write(self, data: bytes) -> None:
        part = data[: max(0, self._left - self.sent)]
        self.sent += len(part)
        if part:
            await self._stream.write(part)
        if len(part) < len(data):
            await trio.sleep_forever()

    async def read(self, n: int | None = None) -> bytes:
        return await self._stream.read(n)

    async def close(self) -> None:
        await self._stream.close()

    def get_remote_address(self) -> tuple[str, int] | None:
        return "127.0.0.1", 1


class Entrance:
    """A host that accepts connections. `gate`: its limits. `dialler`: the host of all attackers."""

    def __init__(self, nursery: trio.Nursery, limits: PeerLimits) -> None:
        self.nursery, self.limits = nursery, limits
        self.transport = LibP2PTransport(generate_key(), [], limits=limits)
        self.dialler = LibP2PTransport(generate_key(), [])
        self.gate = self.transport.connections
        self._ends: list[TrioTCPStream] = []

    async def start(self) -> None:
        server = Peer(self.transport, seed=0)
        server.serve("echo", echo, limit=100)
        self.nursery.start_soon(server.run)
        await server.ready()

    def accept(self, ip: str) -> TrioTCPStream:
        """Accept a connection from `ip`; return the other end."""
        ends = [trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in socket.socketpair()]
        near, far = map(TrioTCPStream, ends)
        set_source(far, (ip, 5000))
        self._ends += near, far
        self.nursery.start_soon(self._serve, far)
        return near

    async def _serve(self, far: TrioTCPStream) -> None:
        """Serve a connection as a listener does."""
        await self.gate.serve(far, Multiaddr("/ip4/127.0.0.1/tcp/1"))
        await far.close()

    def close(self) -> None:
        """Close all that is open."""
        for end in self._ends:
            end.stream.socket.close()

    async def shake_hands(self, ip: str, left: int) -> int:
        """Begin a handshake of which the first `left` bytes arrive; return how many did, once it is complete."""
        ends = FirstBytes(self.accept(ip), left)
        network = self.dialler.host.get_network()
        with suppress(Exception):  # it is given up
            peer = ID.from_string(self.transport.peer_id)
            secured = await network.upgrader.upgrade_security(RawConnection(ends, True), True, peer)
            await network.upgrader.upgrade_connection(secured, peer)
            await ends.close()
        return ends.sent

    async def is_served(self, ip: str = PROVEN, header: bytes = b"") -> bool:
        """Tell whether a new peer from `ip` connects, and is answered, within 5 s. `header`: what it sends first."""
        transport = LibP2PTransport(generate_key(), [])
        node, server = Peer(transport, seed=1), self.transport.peer_id
        with trio.move_on_after(5.0):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(node.run)
                await node.ready()
                end = self.accept(ip)
                if header:
                    await end.write(header)
                with suppress(Exception):
                    network = transport.host.get_network()
                    await network.upgrade_outbound_raw_conn(RawConnection(end, True), ID.from_string(server))
                    answered = await node.request(server, "echo", b"x", timeout=5.0) == b"x"
                    nursery.cancel_scope.cancel()
                    return answered
                nursery.cancel_scope.cancel()
        return False


def at_entrance(
    measure: Measure,
    begin: Callable[[Entrance], Awaitable[list[str]]],
    seconds: float,
    limits: PeerLimits,
    header: bytes = b"",
    ip: str = PROVEN,
) -> Taken:
    """Attack an entrance by `begin`, while a party with accepted work connects from `ip`, behind `header`."""
    taken: list[Taken] = []

    async def main() -> None:
        limits.parties.keep(["9.9.9.0/24"])
        async with trio.open_nursery() as nursery:
            entrance = Entrance(nursery, limits)
            await entrance.start()
            before, refused = measure(entrance.gate), await begin(entrance)
            await trio.testing.wait_all_tasks_blocked()
            during, stopped = measure(entrance.gate), trio.current_time()
            refused += lacking(await entrance.is_served(ip, header), "a connection")
            await trio.sleep_until(stopped + seconds + SLACK)
            taken.append(Taken(before, during, measure(entrance.gate), refused))
            nursery.cancel_scope.cancel()
        entrance.close()

    on_fake_time(main)
    return taken[0]


def strangers(gate: Connections) -> float:
    """Return the places of strangers."""
    places = (*gate.places._handshaking.values(), *gate.places._open.values())
    return sum(not place.known for place in places)


def handshakes(gate: Connections) -> float:
    return len(gate.places._handshaking)


def of_one_subnet(gate: Connections) -> float:
    return gate.places._of_subnet["8.8.0.0/24"]


def half_handshakes(measure: Measure, ip: str) -> Callable[[Path, float], Taken]:
    """Return an attack by handshakes that stop after each so many bytes. `ip`: of attacker number {}."""

    async def begin(entrance: Entrance) -> list[str]:
        whole = await entrance.shake_hands("7.7.7.7", 1 << 20)
        cuts = range(0, whole, HANDSHAKE_STEP)
        for number, at in enumerate(cuts):
            entrance.nursery.start_soon(entrance.shake_hands, ip.format(number), at)
        return lacking(len(cuts) > 10, "a handshake of more bytes")

    return lambda folder, seconds: at_entrance(measure, begin, seconds, PeerLimits(connections=64))


def new_connections(folder: Path, seconds: float) -> Taken:
    """Connect from one subnet without end, and leave each time."""
    parties = Parties()
    parties.keep(["9.9.9.0/24"])
    places, refused = ConnectionAdmission(PeerLimits(parties=parties)), 0

    def wait(now: float) -> float:
        household = places._dials_of_household.delay("8.8.0.1", now)
        return max(household, places._dials.delay("8.8.0.0/24", now))

    for number in range(2 * int(subnets.DIALS_BURST)):
        try:
            places.admit(number, f"8.8.0.{1 + number % 2}", 0, 0.0)
        except ConnectionRefused:
            refused += 1
        places.on_connection_end(number)
    during = wait(0.0)
    places.admit("node", PROVEN, 0, 0.0)  # raises where it is refused
    return Taken(0, during, wait(seconds), lacking(refused > 0, "a bound"))


def proxy_headers(folder: Path, seconds: float) -> Taken:
    """Come through a trusted proxy with each part of a PROXY header."""
    header = b"\r\n\r\n\0\r\nQUIT\n" + struct.pack("!BBH", 0x21, 0x11, 12)
    whole = header + socket.inet_aton(PROVEN) + socket.inet_aton("10.0.0.1") + struct.pack("!HH", 5000, 4001)

    async def begin(entrance: Entrance) -> list[str]:
        for at in range(len(whole)):
            end = entrance.accept(PROXY)
            if at:
                await end.write(whole[:at])
        return lacking(await entrance.is_served(), "a connection beside the proxy")

    limits = PeerLimits(parties=Parties(proxies=[PROXY]))
    return at_entrance(lambda gate: gate._headers, begin, seconds, limits, whole, PROXY)


def former_identity(folder: Path, seconds: float) -> Taken:
    """Occupy the places of a former identity by connections that stand idle, as many as its limits admit."""
    parties = Parties()
    parties.keep(["9.9.9.0/24"])
    places, taken = ConnectionAdmission(limits_of_former(folder, parties)), list[str]()
    for number in range(200):
        with suppress(ConnectionRefused):
            places.admit(name := f"idle {number}", f"8.8.{number % 8}.{number}", len(taken), number / 8)
            places.handshake_done(name, name, len(taken) + 1)
            taken.append(name)
    refused = list[str]()
    try:
        places.admit("node", PROVEN, len(taken), 30.0)
    except ConnectionRefused as error:
        refused.append(error.why)
    during = len(places._open)
    for name in taken:
        places.on_connection_end(name)
    return Taken(0, during, len(places._open), refused)
