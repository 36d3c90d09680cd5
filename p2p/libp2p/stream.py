"""A libp2p stream as a `p2p.transport.Stream`: frames and a watchdog (rules 2 and 3 of p2p/libp2p/transport.py)."""

from collections.abc import Awaitable, Callable, Sequence

import trio

from echo2._libp2p.abc import INetStream
from echo2.p2p.errors import LocalNetworkFault, Malformed, TooLong, Unreachable
from echo2.p2p.guard import log
from echo2.p2p.libp2p.mux import Bytes
from echo2.p2p.libp2p.muxed_connection import MuxStream
from echo2.p2p.libp2p.proposal import confirm, proposal
from echo2.p2p.libp2p.yamux import YamuxStream
from echo2.p2p.limits.least_rate import LEAST_RATE, RATE_SECONDS, Flow, LeastRate

ByteStream = MuxStream | YamuxStream
LENGTH = 4
"""Bytes of a frame's length."""
RESET_TIMEOUT = 5.0
"""Seconds for a reset to leave before the connection is closed."""


class LibP2PStream:
    """The `p2p.transport.Stream` over libp2p: frames over a muxed stream."""

    def __init__(
        self,
        stream: INetStream,
        peer: str,
        nursery: trio.Nursery,
        patience: float,
        drop: Callable[[str], Awaitable[None]],
        *,
        proposed: str | None = None,
    ) -> None:
        """`patience`: seconds without progress before a reset. `drop`: closes the connection with a peer. `proposed`:
        the protocol of a stream that this side opens; None: it is agreed upon. Raises `MuxedStreamError`."""
        muxed = getattr(stream, "muxed_stream", None)
        self._byte_stream: ByteStream = muxed if isinstance(muxed, MuxStream) else YamuxStream(stream, nursery)
        self._stream = stream
        self.peer = peer
        self._nursery = nursery
        self._patience = patience
        self._drop = drop
        self._finished = False
        self._broken: str | None = None
        self._receiving: LeastRate | None = None
        self._sending: LeastRate | None = None
        self._proposed = proposed
        if proposed is not None:  # it leaves with the first frame
            self._byte_stream.put(proposal(proposed))

    def hurry(self) -> None:
        now = trio.current_time()
        self._receiving = LeastRate(self._byte_stream.flows.received_flow, now)
        self._sending = LeastRate(self._byte_stream.flows.sent_flow, now)

    async def send(self, *pieces: Bytes) -> None:
        """See `Stream`. If the caller is cancelled, the frame is still sent whole."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._broken is not None:
            raise Unreachable(self._reason())
        if self._finished:
            raise LocalNetworkFault("a frame was sent after the stream's finish")
        try:
            self._byte_stream.put(sum(map(len, pieces)).to_bytes(LENGTH, "big"))
            for piece in pieces:
                self._byte_stream.put(piece)
        except Exception as error:
            self._break(f"{error!r}")
        await self._flush()

    async def receive(self, limit: int) -> bytes | None:
        if self._proposed is not None:
            await self._confirm(self._proposed)
        head = await self._exactly(LENGTH)
        if not head:
            return None
        length = int.from_bytes(head, "big") if len(head) == LENGTH else 1
        if length > limit:
            raise TooLong(f"{self.peer} announces a frame of {length} bytes, the limit is {limit}")
        frame = await self._exactly(length)
        if len(frame) < length:
            raise Malformed(f"{self.peer} ended in the middle of a frame")
        return frame

    async def finish(self) -> None:
        if not self._finished and self._broken is None:
            self._finished = True
            await self._byte_stream.close()
            await self._flush()

    async def reset(self) -> None:
        self._break("this side reset the stream")

    async def linger(self) -> None:
        """Finish, and discard incoming data until the other side finishes or makes no progress; then reset."""
        try:
            await self.finish()
            while await self._pieces(1 << 20):
                pass
        except Unreachable as error:
            log.debug("%s", error)
        finally:
            self._break("the handler is done")

    async def _confirm(self, protocol: str) -> None:
        self._proposed = None
        try:
            await confirm(protocol, self._exactly)
        except Unreachable as error:  # a peer that does not serve it often resets the stream, its answer unread
            self._break(str(error))
            raise Unreachable(f"{error}; it did not agree to {protocol}") from None

    async def _exactly(self, count: int) -> bytes:
        """Return `count` bytes; fewer only if the other side finished."""
        pieces: list[Bytes] = []
        left = count
        while left:
            arrived = await self._pieces(left, least=left)
            if not arrived:
                break
            pieces += arrived
            left -= sum(map(len, arrived))
            if left or len(pieces) > len(arrived):
                self._byte_stream.keep(count - left if left else 0)
        return b"".join(pieces)

    async def _pieces(self, limit: int, least: int = 1) -> Sequence[Bytes]:
        """Return pieces as `MuxStream.pieces`, waiting as long as there is progress. Raises `Unreachable`."""
        while self._broken is None:
            unread = self._byte_stream.unread
            try:
                if unread >= least:  # the data has arrived: a deadline would cost more than the call
                    return await self._byte_stream.pieces(limit, least)
                with trio.fail_at(self._deadline(self._receiving)):
                    return await self._byte_stream.pieces(limit, least)
            except trio.TooSlowError:
                if self._receiving is not None:
                    self._check_rate(self._receiving, self._byte_stream.flows.received_flow)
                elif self._byte_stream.unread == unread:
                    self._break(f"no byte for {self._patience:g} s")
            except Exception as error:
                self._break(f"{error!r}")
        raise Unreachable(self._reason())

    async def _flush(self) -> None:
        """Wait for room, as long as there is progress. Raises `Unreachable`."""
        while self._broken is None:
            sent = self._byte_stream.sent
            try:
                if self._byte_stream.room:
                    return await self._byte_stream.flush()
                with trio.fail_at(self._deadline(self._sending)):
                    return await self._byte_stream.flush()
            except trio.TooSlowError:
                if self._sending is not None:
                    self._check_rate(self._sending, self._byte_stream.flows.sent_flow)
                elif self._byte_stream.sent == sent:
                    self._break(f"nothing could be sent for {self._patience:g} s")
            except Exception as error:
                self._break(f"{error!r}")
        raise Unreachable(self._reason())

    def _deadline(self, rate: LeastRate | None) -> float:
        return trio.current_time() + self._patience if rate is None else rate.deadline

    def _check_rate(self, rate: LeastRate, flow: Flow) -> None:
        if not rate.extend(flow, trio.current_time()):
            self._break(f"fewer than {LEAST_RATE:g} bytes a second for {RATE_SECONDS:g} s")

    def _reason(self) -> str:
        return f"stream with {self.peer}: {self._broken}"

    def _break(self, why: str) -> None:
        if self._broken is None:
            self._broken = why
            self._nursery.start_soon(self._reset)

    async def _reset(self) -> None:
        with trio.move_on_after(RESET_TIMEOUT) as scope:
            try:
                await self._byte_stream.reset()
                await self._stream.reset()
            except Exception as error:
                log.debug("reset: %r", error)
        if scope.cancelled_caught:  # the reset cannot leave either: the connection is stuck
            await self._drop(self.peer)
