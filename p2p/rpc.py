"""One question, one answer: the protocol `/echo2/rpc/1`.

1. Asker -> server: two frames, the method's name and the request. The asker then finishes its side.
2. Server -> asker: any number of empty frames, meaning "still working", at most `BEAT` seconds apart; then one frame,
   a status byte and the answer or a sentence. So the watchdog of the stream finds a frozen server while a slow
   handler may take as long as the asker's timeout.
3. A request is measured against its method's limit before it is read. A peer may have `PER_PEER` requests at work;
   beyond that, and beyond `IN_ALL`, the answer is BUSY. One that asks often waits its turn
   (p2p/limits/subnets.py, rule 3).
4. A handler's exception resets the stream: the asker sees `Unreachable`, and nothing about this machine.
"""

from collections import Counter
from dataclasses import dataclass, field

import anyio

from p2p.errors import Declined, Malformed, TooLong, Unreachable
from p2p.groups import one_error
from p2p.limits.rates import Buckets
from p2p.limits.subnets import ASKS_BURST, ASKS_RATE
from p2p.network import RequestHandler
from p2p.transport import Stream

PROTOCOL = "/echo2/rpc/1"
ANSWER_LIMIT = 64 << 20
"""Bytes of the largest answer that is read."""
METHOD_LIMIT = 64
"""Bytes of a method's name."""
BEAT = 4.0
"""Seconds between two signs of life while a handler works."""
PER_PEER = 32
IN_ALL = 512

_OK, _TOO_LONG, _UNKNOWN, _BUSY = b"\x00", b"\x01", b"\x02", b"\x03"


@dataclass
class Server:
    """Answers requests by method; `answer` is the protocol's stream handler."""

    _methods: dict[str, tuple[RequestHandler, int]] = field(default_factory=dict)
    _at_work: Counter[str] = field(default_factory=Counter)
    _turns: Buckets = field(default_factory=lambda: Buckets(ASKS_RATE, ASKS_BURST))

    def serve(self, method: str, handler: RequestHandler, *, limit: int) -> None:
        """See `Network.serve`."""
        if len(method.encode()) > METHOD_LIMIT:
            raise ValueError(f"method name {method!r} exceeds {METHOD_LIMIT} bytes")
        self._methods[method] = (handler, limit)

    async def answer(self, stream: Stream) -> None:
        """Serve one stream."""
        if self._at_work[stream.peer] >= PER_PEER or self._at_work.total() >= IN_ALL:
            await _refuse(stream, _BUSY, "too many requests at work")
            return
        self._at_work[stream.peer] += 1
        try:
            await anyio.sleep(self._turns.take(stream.peer, anyio.current_time()))
            await self._answer(stream)
        finally:
            self._at_work[stream.peer] -= 1
            if not self._at_work[stream.peer]:
                del self._at_work[stream.peer]

    async def _answer(self, stream: Stream) -> None:
        name = await stream.receive(METHOD_LIMIT) or b""
        if name.decode(errors="replace") not in self._methods:
            await _refuse(stream, _UNKNOWN, "no such method")
            return
        handler, limit = self._methods[name.decode()]
        try:
            request = await stream.receive(limit)
        except TooLong:
            await _refuse(stream, _TOO_LONG, f"a request may have {limit} bytes")
            return
        if request is None:
            raise Malformed(f"{stream.peer} sent no request")
        await stream.send(_OK + await _beating(stream, handler, request))
        await stream.finish()


async def ask(stream: Stream, method: str, payload: bytes) -> bytes:
    """Ask over a fresh stream, which is used up. Raises `Unreachable`, or `Malformed` where the payload is too long
    for the other side or its answer breaks the protocol."""
    answer = b""
    try:
        with one_error():
            async with anyio.create_task_group() as tasks:
                # The request may be refused before it is read, so the answer is awaited while it is sent.
                tasks.start_soon(_send, stream, method, payload)
                while not answer:
                    frame = await stream.receive(ANSWER_LIMIT + 1)
                    if frame is None:
                        raise Unreachable(f"{stream.peer} gave no answer to {method}")
                    answer = frame
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await stream.reset()
    return _read(answer, stream.peer, method)


def _read(answer: bytes, peer: str, method: str) -> bytes:
    status, body = answer[:1], answer[1:]
    if status == _OK:
        return body
    sentence = body[:200].decode(errors="replace")
    if status == _TOO_LONG:
        raise Malformed(f"{peer} refused {method}: {sentence}")
    if status in (_UNKNOWN, _BUSY):
        raise Declined(f"{peer} does not answer {method}: {sentence}")
    raise Malformed(f"{peer} answered {method} with status {status.hex()}")


async def _send(stream: Stream, method: str, payload: bytes) -> None:
    await stream.send(method.encode())
    await stream.send(payload)
    await stream.finish()


async def _refuse(stream: Stream, status: bytes, sentence: str) -> None:
    await stream.send(status + sentence.encode())
    await stream.finish()


async def _beating(stream: Stream, handler: RequestHandler, request: bytes) -> bytes:
    """Run the handler, with signs of life for the asker. An asker that went away cancels it."""

    async def beat() -> None:
        while True:
            await anyio.sleep(BEAT)
            with anyio.CancelScope(shield=True):  # a write is never cancelled
                await stream.send(b"")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beat)
        answer = await handler(stream.peer, request)
        tasks.cancel_scope.cancel()
    return answer
