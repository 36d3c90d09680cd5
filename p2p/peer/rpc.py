"""Requests and answers: the protocol `/echo2/rpc/1`.

1. Requester -> server: two frames, the method's name and the request. Then the requester finishes its side.
2. Server -> requester: any number of empty frames, meaning "still working", at most `RPC_HEARTBEAT_SECONDS` seconds
   apart; then one frame, a status byte with the answer or a sentence. The stream's watchdog thus detects a frozen
   server, while a slow line or a slow handler may take as long as the requester's timeout.
3. A request is checked against its method's limit before it is read. Once it is whole it needs a slot
   (p2p/limits/request_slots.py); without a free one, the answer is BUSY. Requests beyond the rate are delayed first
   (p2p/limits/subnets.py, rule 1), and occupy no slot meanwhile.
4. While the server waits for the method's name and the request, and while it sends the answer, the connection moves at
   the least rate (p2p/limits/least_rate.py), or the stream is reset.
5. A handler's exception resets the stream: the requester sees `Unreachable`, and learns nothing about this machine.
   Only `Busy` is answered, as BUSY, and noted in the last table.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeVar

import anyio

from echo2.p2p.errors import Busy, Declined, Malformed, TooLong, Unreachable
from echo2.p2p.guard import one_error
from echo2.p2p.handlers import METHOD_LIMIT, Handlers
from echo2.p2p.limits.origin import Origin
from echo2.p2p.limits.request_slots import SMALL_ANSWER_BYTES, RequestSlots
from echo2.p2p.limits.subnets import ASKS_BURST, ASKS_RATE, PARTY
from echo2.p2p.limits.token_bucket import TokenBuckets
from echo2.p2p.transport import Stream

PROTOCOL = "/echo2/rpc/1"
ANSWER_LIMIT = 64 << 20
"""Bytes of the largest answer that is read."""
RPC_HEARTBEAT_SECONDS = 4.0
SMALL_RPC_BYTES = 16 << 10
"""Bytes of a request that is sent before its answer is awaited: no transport makes its sender wait for so few."""

T = TypeVar("T")
_OK, _TOO_LONG, _UNKNOWN, _BUSY = b"\x00", b"\x01", b"\x02", b"\x03"


@dataclass
class Server:
    """The answering side of the protocol; `answer` is its stream handler. `_origin`: returns a peer's origin.
    `_tables`: the tables of methods, searched in order."""

    _origin: Callable[[str], Origin]
    _tables: Sequence[Handlers]
    _slots: RequestSlots = field(default_factory=RequestSlots)
    _rate_of_connection: TokenBuckets = field(default_factory=lambda: TokenBuckets(ASKS_RATE, ASKS_BURST))
    _rate_of_party: TokenBuckets = field(default_factory=lambda: TokenBuckets(PARTY * ASKS_RATE, PARTY * ASKS_BURST))

    async def answer(self, stream: Stream) -> None:
        """Serve one stream."""
        with ExitStack() as slot:
            status, answer = await _with_heartbeats(stream, self._answer(stream, self._origin(stream.peer), slot))
            if len(answer) <= SMALL_ANSWER_BYTES:
                slot.close()
            stream.hurry()
            await stream.send(status, answer)
            await stream.finish()

    async def _answer(self, stream: Stream, origin: Origin, slot: ExitStack) -> tuple[bytes, bytes]:
        """Receive a request, and return the status and the rest of its answer. `slot`: keeps its slot."""
        now = anyio.current_time()
        wait_of_connection = self._rate_of_connection.consume(origin.connection, now)
        wait_of_party = self._rate_of_party.consume(origin.party, now)
        await anyio.sleep(max(wait_of_connection, wait_of_party))
        stream.hurry()
        method = (await stream.receive(METHOD_LIMIT) or b"").decode(errors="replace")
        table = next((table for table in self._tables if method in table.methods), None)
        if table is None:
            return _UNKNOWN, b"no such method"
        limit = table.methods[method].limit
        try:
            request = await stream.receive(limit)
        except TooLong:
            return _TOO_LONG, f"a request may have at most {limit} bytes".encode()
        if request is None:
            raise Malformed(f"{stream.peer} sent no request")
        try:
            slot.enter_context(self._slots.at_work(method, origin))
            return _OK, await table.answer(method, stream.peer, request)
        except Busy as busy:
            self._tables[-1].note_busy(stream.peer)
            return _BUSY, str(busy).encode()


async def ask(stream: Stream, method: str, payload: bytes) -> bytes:
    """Send a request over a fresh stream, and return its answer; the stream serves no other request. Raises
    `Unreachable`, and its kinds `Busy` and `Declined`. Raises `Malformed` for a payload that is too long for the other
    side, or an answer that breaks the protocol."""
    try:
        if len(payload) <= SMALL_RPC_BYTES:
            await _send(stream, method, payload)
            answer = await _receive_frame(stream, method)
        else:
            with one_error():
                async with anyio.create_task_group() as tasks:
                    # The request may be refused before it is read: await the answer while sending.
                    tasks.start_soon(_send, stream, method, payload)
                    answer = await _receive_frame(stream, method)
                    tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await stream.reset()
    return _decode_answer(answer, stream.peer, method)


async def _receive_frame(stream: Stream, method: str) -> bytes:
    """Return the first frame that is not empty (rule 2)."""
    while True:
        frame = await stream.receive(ANSWER_LIMIT + 1)
        if frame is None:
            raise Unreachable(f"{stream.peer} gave no answer to {method}")
        if frame:
            return frame


def _decode_answer(answer: bytes, peer: str, method: str) -> bytes:
    status, body = answer[:1], answer[1:]
    if status == _OK:
        return body
    sentence = body[:200].decode(errors="replace")
    if status == _TOO_LONG:
        raise Malformed(f"{peer} refused {method}: {sentence}")
    if status == _BUSY:
        raise Busy(f"{peer} does not answer {method} now: {sentence}")
    if status == _UNKNOWN:
        raise Declined(f"{peer} does not answer {method}: {sentence}")
    raise Malformed(f"{peer} answered {method} with status {status.hex()}")


async def _send(stream: Stream, method: str, payload: bytes) -> None:
    await stream.send(method.encode())
    await stream.send(payload)
    await stream.finish()


async def _with_heartbeats(stream: Stream, answering: Awaitable[T]) -> T:
    """Wait for the answer while sending keep-alive frames. If the requester disconnects, the handler is cancelled."""

    async def beat() -> None:
        while True:
            await anyio.sleep(RPC_HEARTBEAT_SECONDS)
            with anyio.CancelScope(shield=True):  # a write is never cancelled
                await stream.send(b"")

    with one_error():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(beat)
            answer = await answering
            tasks.cancel_scope.cancel()
    return answer
