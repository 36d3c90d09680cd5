"""The relay of circuit relay v2: forwards encrypted bytes between two peers within the quotas of
p2p/limits/relay_quota.py.

1. A stream carries one request. At most `REQUESTS` requests per peer are handled at once; further streams are reset.
2. Requests over a connection that is itself relayed are refused.
3. A target is asked only over its existing connection to this relay: a relay never dials.
4. Any failure ends its own circuit only. Every handler is guarded (p2p/guard.py), since upstream would end the host.
5. Bytes are forwarded in pieces of at most `FORWARDED_PIECE_BYTES` bytes, and all circuits share one token bucket.
   While a piece waits, the circuit reads no more: the sender is slowed down, and no data accumulates here.
"""

import time
from collections import Counter
from typing import Any

import trio

from echo2._libp2p.abc import IHost, INetStream
from echo2._libp2p.network.stream.exceptions import StreamEOF
from echo2._libp2p.peer.id import ID
from echo2._libp2p.relay.circuit_v2.pb import circuit_pb2 as pb
from echo2.p2p.discovery.dial_back import ip_of
from echo2.p2p.errors import Unreachable
from echo2.p2p.guard import log
from echo2.p2p.libp2p.circuit import ANSWER_TIMEOUT, HOP_PROTOCOL, STOP_PROTOCOL, receive, remote_address, send
from echo2.p2p.libp2p.muxed_connection import MuxStream
from echo2.p2p.limits.counts import take_one
from echo2.p2p.limits.party import Parties
from echo2.p2p.limits.relay_quota import Circuit, RelayLimits, RelayRefused, RelayTable
from echo2.p2p.multiaddr import route_of

REQUESTS = 4
CIRCUIT_WINDOW = 256 << 10
"""Bytes that one end of a circuit may be ahead of its quota, which keeps bytes that wait here few."""
FORWARDED_PIECE_BYTES = 16 << 10


class RelayService:
    """Serves HOP requests on one host, from its construction."""

    def __init__(self, host: IHost, limits: RelayLimits, parties: Parties | None = None) -> None:
        self._host = host
        self.table = RelayTable(limits, parties)
        self._limit = pb.Limit(duration=int(limits.duration), data=limits.data)
        self._requests: Counter[ID] = Counter()
        self.bytes_relayed = 0
        host.set_stream_handler(HOP_PROTOCOL, self._hop)

    async def _hop(self, stream: INetStream) -> None:
        peer = stream.muxed_conn.peer_id
        if self._requests[peer] >= REQUESTS:
            await stream.reset()
            return
        self._requests[peer] += 1
        try:
            asked = await receive(stream, pb.HopMessage)
            circuit = await self._grant(stream, peer, asked)
        finally:
            take_one(self._requests, peer)
        if circuit is not None:
            await self._carry(stream, circuit, ID(asked.peer.id), peer)

    async def _grant(self, stream: INetStream, peer: ID, asked: pb.HopMessage) -> Circuit | None:
        """Grant or refuse a request. Return the circuit that it opened, for `_carry`; None otherwise."""
        address = remote_address(stream.muxed_conn)
        self.table.keep({str(connected) for connected in self._host.get_connected_peers()})
        try:
            if route_of(address or "") == "relay":
                await self._answer(stream, pb.PERMISSION_DENIED)
            elif asked.type == pb.HopMessage.RESERVE:
                self.table.reserve(str(peer), ip_of(address), trio.current_time())
                own = [address.to_bytes() for address in self._host.get_addrs()]
                reservation = pb.Reservation(expire=int(time.time() + self.table.limits.life), addrs=own)
                await self._answer(stream, pb.OK, reservation=reservation, limit=self._limit)
            elif asked.type == pb.HopMessage.CONNECT:
                return self.table.open(str(peer), str(ID(asked.peer.id)), trio.current_time(), ip_of(address))
            else:
                await self._answer(stream, pb.UNEXPECTED_MESSAGE)
        except RelayRefused as refused:
            log.info("relay request refused: %s: %s", peer, refused)
            await self._answer(stream, pb.Status.Value(refused.status))
        return None

    async def _answer(self, stream: INetStream, status: "pb.Status.ValueType", **granted: Any) -> None:
        await send(stream, pb.HopMessage(type=pb.HopMessage.STATUS, status=status, **granted))
        await stream.close()

    async def _carry(self, source: INetStream, circuit: Circuit, target: ID, peer: ID) -> None:
        """Ask the target, then forward bytes until either side ends, or the circuit gives way to another one."""
        try:
            with trio.move_on_at(circuit.deadline) as life:
                circuit.on_close = life.cancel
                await self._join(source, circuit, target, peer)
            if life.cancelled_caught:
                await self._end(source)
        finally:
            circuit.close()

    async def _join(self, source: INetStream, circuit: Circuit, target: ID, peer: ID) -> None:
        try:
            stream = await self._ask_target(target, peer)
        except Unreachable as error:
            log.info("relay circuit refused by its target: %s does not accept %s: %s", target, peer, error)
            await self._answer(source, pb.CONNECTION_FAILED)
            return
        try:
            for muxed in (getattr(side, "muxed_stream", None) for side in (source, stream)):
                if isinstance(muxed, MuxStream):
                    muxed.narrow(CIRCUIT_WINDOW)
            await send(source, pb.HopMessage(type=pb.HopMessage.STATUS, status=pb.OK, limit=self._limit))
            async with trio.open_nursery() as nursery:
                for one, other in ((source, stream), (stream, source)):
                    nursery.start_soon(self._forward, one, other, circuit, nursery.cancel_scope)
        finally:
            await self._end(source, stream)

    async def _end(self, *streams: INetStream) -> None:
        with trio.CancelScope(shield=True), trio.move_on_after(ANSWER_TIMEOUT):
            for stream in streams:
                await stream.reset()

    async def _ask_target(self, target: ID, source: ID) -> INetStream:
        stream: INetStream | None = None
        try:
            with trio.fail_after(ANSWER_TIMEOUT):
                stream = await self._host.new_stream(target, [STOP_PROTOCOL])
                asked = pb.StopMessage(type=pb.StopMessage.CONNECT, peer=pb.PeerId(id=source.to_bytes()))
                await send(stream, asked)
                answer = await receive(stream, pb.StopMessage)
            if answer.status != pb.OK:
                raise Unreachable(f"status {answer.status}")
        except BaseException as error:
            if stream is not None:
                await self._end(stream)
            if not isinstance(error, Exception):
                raise
            raise Unreachable(f"{error!r}") from None
        return stream

    async def _forward(self, one: INetStream, other: INetStream, circuit: Circuit, end: trio.CancelScope) -> None:
        """Forward from one side to the other until it ends or the quota is used up; then end the circuit."""
        try:
            while data := await one.read(FORWARDED_PIECE_BYTES):
                wait = circuit.consume(len(data), trio.current_time())
                if wait is None:
                    log.info("relay circuit ended: its quota is used up")
                    break
                await trio.sleep(wait)
                await other.write(data)
                self.bytes_relayed += len(data)
        except StreamEOF:
            pass
        except Exception as error:
            log.debug("relay circuit ended: %r", error)
        end.cancel()
