"""Attacks on relays, hole punches, dial-backs and dials: the product's handlers on stand-in streams, on fake time."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import anyio
import trio
import trio.testing

from echo2._libp2p.network.stream.exceptions import StreamEOF
from echo2._libp2p.peer.id import ID
from echo2._libp2p.relay.circuit_v2.pb import circuit_pb2 as pb
from echo2._libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch
from echo2._libp2p.utils.varint import encode_varint_prefixed
from echo2.p2p.discovery.dial_back import AT_ONCE, PORTS, DialBack
from echo2.p2p.discovery.messages import ReachableRequest
from echo2.p2p.discovery.peer_records import MOST_RECORDS, RecordBook, VerifiedRecord
from echo2.p2p.errors import Busy
from echo2.p2p.guard import guard_handler
from echo2.p2p.libp2p.hole_punch import HolePuncher
from echo2.p2p.libp2p.relay_service import RelayService
from echo2.p2p.limits.bans import MOST_BANS, Bans
from echo2.p2p.limits.dial_backoff import DIAL_BURST, FAILURES, DialBackoff, DialLimited
from echo2.p2p.limits.origin import Origin
from echo2.p2p.limits.party import Parties
from echo2.p2p.limits.relay_quota import RELAYED_RATE, RelayLimits, RelayTable
from echo2.p2p.multiaddr import pack
from echo2.p2p.peer.gossip import LEAST_HOLDERS, TopicSpread
from echo2.p2p.swarm.download import MOST_SENDERS, SenderBytes
from echo2.p2p.wire_types import encode
from tests.support.limit_attacks.attack import SLACK, Taken, lacking
from tests.support.muxed_pairs import on_fake_time

PROVEN = "9.9.9.9"


def peer(number: int) -> ID:
    return ID(b"\x00$\x08\x01\x12 " + number.to_bytes(32, "big"))


NODE, TARGET = peer(1_000_000), peer(2_000_000)


def parties() -> Parties:
    known = Parties()
    known.keep(["9.9.9.0/24"])
    return known


class HalfStream:
    """A stream from `peer` at `ip` of which `data` arrives, and then nothing. `out`: bytes that were written to it.
    `idle`: set once all of `data` was read, and the reader waits."""

    def __init__(self, sender: ID, ip: str, data: bytes) -> None:
        addresses = [f"/ip4/{ip}/tcp/4001/p2p/{sender}"]
        self.muxed_conn = SimpleNamespace(peer_id=sender, get_transport_addresses=lambda: addresses)
        self.data, self.out, self.ended = data, b"", trio.Event()

    async def read(self, n: int | None = None) -> bytes:
        if self.data:
            part, self.data = self.data[:n], self.data[n or len(self.data) :]
            return part
        await self.ended.wait()
        raise StreamEOF("reset")

    async def write(self, data: bytes) -> None:
        self.out += data

    async def reset(self) -> None:
        self.ended.set()

    close = reset


Serve = Callable[[Any], Awaitable[object]]


def on_streams(
    seconds: float,
    measure: Callable[[], float],
    serve: Serve,
    attackers: list[HalfStream],
    need: Callable[[trio.Nursery], Awaitable[list[str]]],
) -> Taken:
    """Serve the attackers' streams, and return what they take while a proven party needs `need`."""
    taken: list[Taken] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            before = measure()
            for one in attackers:
                nursery.start_soon(guard_handler(serve), one)
            await trio.testing.wait_all_tasks_blocked()
            during, stopped = measure(), trio.current_time()
            refused = await need(nursery)
            await trio.sleep_until(stopped + seconds + SLACK)
            taken.append(Taken(before, during, measure(), refused))
            nursery.cancel_scope.cancel()

    on_fake_time(main)
    return taken[0]


def message(of: Any) -> bytes:
    return encode_varint_prefixed(of.SerializeToString())


def relay(limits: RelayLimits | None = None) -> tuple[RelayService, list[HalfStream]]:
    """Return a relay, and the streams that it opens to a target that accepts each circuit and is silent."""
    asked: list[HalfStream] = []

    async def new_stream(target: ID, protocols: list[str]) -> HalfStream:
        stop = HalfStream(target, "7.7.7.7", message(pb.StopMessage(type=pb.StopMessage.STATUS, status=pb.OK)))
        asked.append(stop)
        return stop

    host: Any = SimpleNamespace(
        set_stream_handler=lambda protocol, handler: None,
        get_connected_peers=lambda: [peer(number) for number in range(200)] + [NODE, TARGET],
        get_addrs=list,
        new_stream=new_stream,
    )
    return RelayService(host, limits or RelayLimits(), parties()), asked


def status_of(stream: HalfStream) -> int | None:
    """Return the status that a relay answered; None: none yet."""
    if not stream.out:
        return None
    answer = pb.HopMessage()
    answer.ParseFromString(stream.out[1:] if stream.out[0] < 128 else stream.out[2:])
    return int(answer.status)


def reserve() -> bytes:
    return message(pb.HopMessage(type=pb.HopMessage.RESERVE))


def connect() -> bytes:
    return message(pb.HopMessage(type=pb.HopMessage.CONNECT, peer=pb.PeerId(id=TARGET.to_bytes())))


def reservations(folder: Path, seconds: float) -> Taken:
    """Reserve from four subnets as much as a relay has, or stop after each byte of a request."""
    service, _ = relay()
    whole = [HalfStream(peer(number), f"8.8.{number % 4}.1", reserve()) for number in range(64)]
    halves = [HalfStream(peer(100 + at), "8.8.9.1", connect()[:at]) for at in range(len(connect()))]

    async def need(nursery: trio.Nursery) -> list[str]:
        node = HalfStream(NODE, PROVEN, reserve())
        nursery.start_soon(service._hop, node)
        await trio.sleep(1.0)
        refused = lacking(status_of(node) == pb.OK, "a reservation")
        service.table.keep({str(NODE)})  # the attackers have left
        return refused

    def measure() -> float:
        return service._requests.total() + len(service.table._reservations.keys() - {str(NODE)})

    return on_streams(seconds, measure, service._hop, [*whole, *halves], need)


def circuits(folder: Path, seconds: float) -> Taken:
    """Open all circuits of a relay to one target, of eight keys of one subnet, and let them stand idle."""
    service, _ = relay(RelayLimits(per_target=64))
    idle = [HalfStream(peer(number % 9), "8.8.0.1", connect()) for number in range(72)]

    async def need(nursery: trio.Nursery) -> list[str]:
        nodes = [HalfStream(NODE, PROVEN, connect()) for _ in range(8)]
        for node in nodes:
            nursery.start_soon(service._hop, node)
        await trio.sleep(1.0)
        answered = all(status_of(node) == pb.OK and not node.ended.is_set() for node in nodes)
        for node in nodes:
            node.ended.set()
        return lacking(answered, "eight circuits")

    async def reserved(stream: Any) -> None:
        service.table.reserve(str(TARGET), "7.7.7.7", trio.current_time())
        await service._hop(stream)

    return on_streams(seconds, lambda: service.table.circuits, reserved, idle, need)


def relayed_bytes(folder: Path, seconds: float) -> Taken:
    """Send over all circuits that strangers may have as much as one piece each, at once."""
    table = RelayTable(RelayLimits(per_target=64), parties())
    table.reserve("target", "7.7.7.7", 0.0)
    eve = [table.open(f"eve {number % 6}", "target", 0.0, "8.8.0.1") for number in range(48)]
    node = table.open("node", "target", 0.0, PROVEN)
    for circuit in eve:
        circuit.consume(16 << 10, 0.0)
    during = table.bucket.delay(0, 0.0)
    wait = node.consume(16 << 10, 0.0)
    refused = lacking(wait is not None and wait < 2 * 48 * (16 << 10) / RELAYED_RATE, "a turn after one piece of each")
    return Taken(0, during, table.bucket.delay(0, seconds), refused)


def dial_backs(folder: Path, seconds: float) -> Taken:
    """Ask from many subnets to be dialled at ports that never answer."""
    addresses = {f"eve {number}": f"/ip4/8.8.{number}.1/tcp/4001" for number in range(2 * AT_ONCE // PORTS)}
    addresses["node"] = f"/ip4/{PROVEN}/tcp/4001"
    transport: Any = SimpleNamespace(
        remote=addresses.__getitem__,
        origin=lambda name: Origin(name, name, name == "node"),
    )
    back, taken = DialBack(transport), list[Taken]()
    request = encode(ReachableRequest(ports=[4001, 4002, 4003, 4004]))

    async def never(ip: str, port: int) -> Any:
        await anyio.sleep_forever()

    async def ask(name: str) -> bool:
        with suppress(Busy):
            await back.answer(name, request)
            return True
        return False

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for name in addresses:
                if name != "node":
                    nursery.start_soon(ask, name)
            await trio.testing.wait_all_tasks_blocked()
            during, stopped = back._attempts, trio.current_time()
            refused = lacking(await ask("node"), "a dial back")
            await trio.sleep_until(stopped + seconds + SLACK)
            taken.append(Taken(0, during, back._attempts, refused))

    with mock.patch("anyio.connect_tcp", never):
        on_fake_time(main)
    return taken[0]


def hole_punches(folder: Path, seconds: float) -> Taken:
    """Begin upgrades and stop after each byte, or name addresses that never answer."""
    dialled = list[ID]()

    async def never(address: object, target: ID, own: object) -> None:
        dialled.append(target)
        await trio.sleep_forever()

    host: Any = SimpleNamespace(
        set_stream_handler=lambda protocol, handler: None,
        get_id=lambda: TARGET,
        get_addrs=list,
        get_network=lambda: SimpleNamespace(
            _dial_addr_single_attempt=never, dial_addr_as_responder=never, get_connections=lambda target: []
        ),
    )
    client: Any = SimpleNamespace(source=lambda address: None)
    puncher = HolePuncher(host, client, lambda name: Origin(name, name, name == str(NODE)))
    asked = message(HolePunch(type=HolePunch.CONNECT, ObsAddrs=[pack("/ip4/8.8.8.8/tcp/4001")]))
    whole = asked + message(HolePunch(type=HolePunch.SYNC))
    halves = [HalfStream(peer(at), "8.8.0.1", whole[:at]) for at in range(len(whole))][-22:]
    full = [HalfStream(peer(100 + number), "8.8.0.1", whole) for number in range(8)]

    async def need(nursery: trio.Nursery) -> list[str]:
        nursery.start_soon(puncher._follow, HalfStream(NODE, PROVEN, whole))
        await trio.sleep(1.0)
        return lacking(NODE in dialled, "a hole punch") + lacking(
            not any(peer(at) in dialled for at in range(100)), "the place that half a round has"
        )

    def measure() -> float:
        return puncher._dialled.total() + len(puncher._busy)

    return on_streams(seconds, measure, puncher._follow, [*halves, *full], need)


def dials(folder: Path, seconds: float) -> Taken:
    """Tell a node of hosts of one subnet at which nobody answers, more than it dials."""
    others, operator = DialBackoff(), DialBackoff(of_operator=True)
    others.on_success("/ip4/8.8.0.9/tcp/4001/p2p/node")

    def wait(now: float) -> float:
        try:
            others.admit("/ip4/8.8.0.200/tcp/4001", now)
        except DialLimited as limited:
            return limited.seconds
        return 0.0

    for number in range(3 * int(FAILURES)):
        address = f"/ip4/8.8.0.{number}/tcp/4001"
        with suppress(DialLimited):
            others.admit(address, 0.0)
            others.on_failure(address, 0.0)
    during, refused = wait(0.0), list[str]()
    for address, backoff in (("/ip4/8.8.0.9/tcp/4001/p2p/node", others), ("/ip4/8.8.0.1/tcp/4001", operator)):
        try:
            backoff.admit(address, 0.0)
        except DialLimited:
            refused.append(f"a dial of {address}")
    return Taken(0, during, wait(seconds), refused + lacking(DIAL_BURST > FAILURES, "dials of other subnets"))


def records(folder: Path, seconds: float) -> Taken:
    """Have a node told of new keys by each answer to a hello, beside those of nodes with accepted work."""
    book, now = RecordBook(bytes(32)), 0

    def tell(name: str) -> None:
        nonlocal now
        now += 1
        book.hold(VerifiedRecord(name, (), now, b""))

    for number in range(100):
        for one in range(32):
            tell(f"stranger {number}/{one}")
            tell(f"node {one}")
    kept = [f"node {one}" for one in range(32) if book.of(f"node {one}") is None]
    return Taken(MOST_RECORDS, now, len(book._known), kept)


def holders(folder: Path, seconds: float) -> Taken:
    """Push a copy of the newest message with each of many keys, and leave."""
    connected = [f"node {one}" for one in range(32)]
    spread = TopicSpread(b"a Head", set(connected))
    for number in range(100 * LEAST_HOLDERS):
        spread.add(f"eve {number}", lambda: connected)
    lost = sorted(set(connected) - spread.holders)
    return Taken(LEAST_HOLDERS + 2 * len(connected), 100 * LEAST_HOLDERS, len(spread.holders), lost)


def senders(folder: Path, seconds: float) -> Taken:
    """Send a chunk with each of many keys, beside a node that sends all the time."""
    received, number = SenderBytes(), 0
    for number in range(1, 4 * MOST_SENDERS + 1):
        received.add(f"eve {number}", 1)
        received.add("node", 1)
    refused = lacking(received.total == 2 * number and received.by_sender["node"] > 0, "being counted")
    return Taken(MOST_SENDERS, number, len(received.by_sender), refused)


def bans(folder: Path, seconds: float) -> Taken:
    """Have more keys banned than are remembered."""
    table = Bans()
    for number in range(2 * MOST_BANS):
        table.ban(f"eve {number}", 0.0)
    return Taken(MOST_BANS, 2 * MOST_BANS, len(table._bans), lacking(not table.is_banned("node", 0.0), "being heard"))
