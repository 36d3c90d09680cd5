"""Requests and answers: the protocol `/echo2/rpc/1`.

1. Requester -> server: two frames, the method's name and the request. Then the requester finishes its side.
2. Server -> requester: any number of empty frames, meaning "still working", at most `RPC_HEARTBEAT_SECONDS` seconds
   apart; then one frame, a status byte with the answer or a sentence. The stream's watchdog thus detects a frozen
   server, while a slow handler may take as long as the requester's timeout.
3. A request is checked against its method's limit before it is read. It needs a slot (p2p/limits/request_slots.py);
   without a free one, the answer is BUSY. Requests beyond the rate are delayed first (p2p/limits/subnets.py, rule 3),
   and occupy no slot meanwhile.
4. A slow peer cannot occupy a slot for long. A method's name must arrive within `NAME_TIMEOUT` seconds, a request or an
   answer within `TRANSFER_GRACE` seconds plus one per `TRANSFER_RATE` bytes.
5. A handler's exception resets the stream: the requester sees `Unreachable`, and learns nothing about this machine.
   Only `Busy` is answered, as BUSY, and noted in the last table.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio

from echo2.p2p.errors import Busy, Declined, Malformed, TooLong, Unreachable
from echo2.p2p.guard import one_error
from echo2.p2p.handlers import METHOD_LIMIT, Handlers
from echo2.p2p.limits.origin import Origin
from echo2.p2p.limits.request_slots import RequestSlots
from echo2.p2p.limits.subnets import ASKS_BURST, ASKS_RATE, PARTY
from echo2.p2p.limits.token_bucket import TokenBuckets
from echo2.p2p.transport import Stream

PROTOCOL = "/echo2/rpc/1"
ANSWER_LIMIT = 64 << 20
"""Bytes of the largest answer that is read."""
RPC_HEARTBEAT_SECONDS = 4.0
"""Seconds between two keep-alive frames while a handler works."""
NAME_TIMEOUT, TRANSFER_GRACE = 30.0, 30.0
"""Seconds; longer than a stream's watchdog waits for a frozen or disconnected peer."""
TRANSFER_RATE = 4096.0
"""Bytes per second."""
SMALL_RPC_BYTES = 16 << 10
"""Bytes of a request that is sent before its answer is awaited: no transport makes its sender wait for so few."""

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
        origin = self._origin(stream.peer)
        try:
            with self._slots.stream(origin):
                now = anyio.current_time()
                wait_of_connection = self._rate_of_connection.consume(origin.connection, now)
                wait_of_party = self._rate_of_party.consume(origin.party, now)
                await anyio.sleep(max(wait_of_connection, wait_of_party))
                await self._answer(stream, origin)
        except Busy as busy:
            self._tables[-1].note_busy(stream.peer)
            await _refuse(stream, _BUSY, str(busy))

    async def _answer(self, stream: Stream, origin: Origin) -> None:
        with _time_limit(NAME_TIMEOUT, "a method's name"):
            method = (await stream.receive(METHOD_LIMIT) or b"").decode(errors="replace")
        table = next((table for table in self._tables if method in table.methods), None)
        if table is None:
            await _refuse(stream, _UNKNOWN, "no such method")
            return
        limit = table.methods[method].limit
        with self._slots.at_work(method, origin):
            try:
                with _time_limit(TRANSFER_GRACE + limit / TRANSFER_RATE, "a request"):
                    request = await stream.receive(limit)
            except TooLong:
                await _refuse(stream, _TOO_LONG, f"a request may have at most {limit} bytes")
                return
            if request is None:
                raise Malformed(f"{stream.peer} sent no request")
            answer = _OK + await _with_heartbeats(stream, table.answer(method, stream.peer, request))
            with _time_limit(TRANSFER_GRACE + len(answer) / TRANSFER_RATE, "an answer"):
                await stream.send(answer)
                await stream.finish()


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


@contextmanager
def _time_limit(seconds: float, what: str) -> Iterator[None]:
    """Raise `Unreachable` after `seconds`."""
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError:
        raise Unreachable(f"{what} took longer than {seconds:g} s") from None


async def _refuse(stream: Stream, status: bytes, sentence: str) -> None:
    await stream.send(status + sentence.encode())
    await stream.finish()


async def _with_heartbeats(stream: Stream, answering: Awaitable[bytes]) -> bytes:
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
