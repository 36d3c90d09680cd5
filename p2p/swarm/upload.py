"""The holder's side of one chunk stream (rules: p2p/swarm/exchange.py, p2p/swarm/request_queue.py,
p2p/limits/bandwidth.py)."""

import math
from collections import Counter
from collections.abc import Awaitable, Callable

import anyio

from p2p.errors import Malformed
from p2p.limits.bandwidth import FairQueue
from p2p.swarm import messages
from p2p.swarm.open_files import patiently
from p2p.swarm.payload_file import PayloadFile
from p2p.swarm.request_queue import RequestQueue
from p2p.transport import Stream

BEAT = 5.0
"""Seconds between two signs of life on an idle stream."""


class SharedPayload:
    """A payload on offer, and who waits for news of it."""

    def __init__(self, payload: PayloadFile) -> None:
        self.payload = payload
        self.withdrawn = False
        self.listeners: dict[Upload, None] = {}

    def add(self, index: int) -> None:
        """A chunk is verified and stored."""
        now = anyio.current_time()
        for upload in self.listeners:
            upload.on_chunk(index, now)

    def withdraw(self) -> None:
        """No longer on offer; the file is given back."""
        self.withdrawn = True
        self.payload.close()
        for upload in self.listeners:
            upload.wake()


class UplinkSlot:
    """One send that goes by no chunk stream, in the same line at the uplink."""

    def __init__(self, turns: "FairQueue[Upload | UplinkSlot]") -> None:
        self._turns = turns
        self._awake = anyio.Event()

    def wake(self) -> None:
        """It may be its turn."""
        self._awake.set()

    async def acquire(self, peer: str, nbytes: int) -> None:
        """Wait until `nbytes` may leave to `peer`, and book them."""
        self._turns.enqueue(self, peer, nbytes)
        try:
            while (wait := self._turns.delay(self, anyio.current_time())) != 0:
                self._awake = anyio.Event()
                with anyio.move_on_after(math.inf if wait is None else wait):
                    await self._awake.wait()
            for other in self._turns.consume(self, anyio.current_time()):
                other.wake()
        finally:
            if self._turns.dequeue(self) and (front := self._turns.head()) is not None:
                front.wake()


class Upload:
    """One stream: what is wanted, what is told, and its turn at the uplink."""

    def __init__(self, stream: Stream, turns: "FairQueue[Upload | UplinkSlot]", sent: Counter[str]) -> None:
        self._stream = stream
        self._turns = turns
        self._sent = sent
        self._requests = RequestQueue()
        self._shared: SharedPayload | None = None
        self._awake = anyio.Event()

    def wake(self) -> None:
        """There is something to look at."""
        self._awake.set()

    def on_chunk(self, index: int, now: float) -> None:
        """The payload has one more chunk."""
        self._requests.came(index, now)
        self.wake()

    async def run(self, wait_for: Callable[[bytes], Awaitable[SharedPayload]]) -> None:
        """Serve until the downloader finishes, or the payload is withdrawn."""
        first = await self._stream.receive(messages.DOWNLOADER_LIMIT)
        if first is None:
            return
        ask = messages.decode_from_downloader(first)
        if not isinstance(ask, messages.PayloadRequest):
            raise Malformed("a chunk stream begins with Ask")
        async with anyio.create_task_group() as tasks:

            async def write() -> None:
                await self._write(await self._patiently(wait_for, ask.payload))
                tasks.cancel_scope.cancel()

            tasks.start_soon(write)
            await self._read()
            tasks.cancel_scope.cancel()

    async def _read(self) -> None:
        while (frame := await self._stream.receive(messages.DOWNLOADER_LIMIT)) is not None:
            match messages.decode_from_downloader(frame):
                case messages.ChunkRequest(indices):
                    self._requests.want(indices, self._shared.payload.have if self._shared else 0)
                case messages.Cancel(indices):
                    self._requests.cancel(indices)
                case messages.PayloadRequest():
                    raise Malformed(f"{self._stream.peer} asks twice on one stream")
            self.wake()

    async def _patiently(self, wait_for: Callable[[bytes], Awaitable[SharedPayload]], payload: bytes) -> SharedPayload:
        """The payload, as soon as it is here; until then New with nothing in it, the first at once."""
        patience = 0.0
        while True:
            with anyio.move_on_after(patience):
                return await wait_for(payload)
            await self._send(messages.HaveMore())
            patience = BEAT

    async def _write(self, shared: SharedPayload) -> None:
        payload, self._shared = shared.payload, shared
        shared.listeners[self] = None
        self._requests.begin(payload.have, payload.chunks)
        try:
            await self._send(messages.Have(messages.pack_bitmap(payload.have, payload.chunks)))
            while not shared.withdrawn:
                await self._step(payload)
        finally:
            del shared.listeners[self]
            self._leave_line()

    async def _step(self, payload: PayloadFile) -> None:
        """Tell, send, or wait for something to do."""
        self._awake = anyio.Event()
        now = anyio.current_time()
        if news := self._requests.news(now):
            await self._send(messages.HaveMore(news))
            return
        index = self._requests.first()
        quiet = self._requests.quiet(now) or None
        if index is None:
            self._leave_line()
            await self._idle(quiet)
            return
        self._turns.enqueue(self, self._stream.peer, payload.size(index))
        wait = self._turns.delay(self, now)
        if wait is None or wait > 0:
            await self._idle(min(filter(None, (wait, quiet)), default=None))
        else:
            await self._send_chunk(payload, index, now)

    def _leave_line(self) -> None:
        if self._turns.dequeue(self) and (front := self._turns.head()) is not None:
            front.wake()  # it may not know that it is its turn now

    async def _send_chunk(self, payload: PayloadFile, index: int, now: float) -> None:
        self._requests.sent(index)
        for other in self._turns.consume(self, now):
            other.wake()
        try:
            chunk = payload.read(index, block=False)
        except BlockingIOError:
            chunk = await patiently(payload.read, index)
        if chunk is None:
            await self._send(messages.NotAvailable(index))
            return
        data, proof = chunk
        await self._send_frame(*messages.encode_chunk(index, proof, data))
        self._sent[self._stream.peer] += len(data)

    async def _idle(self, wait: float | None) -> None:
        """Until there is something to tell or to send; after `BEAT` seconds a sign of life."""
        with anyio.move_on_after(BEAT if wait is None else min(wait, BEAT)):
            await self._awake.wait()
            return
        if wait is None or wait > BEAT:
            await self._send(messages.HaveMore())

    async def _send(self, message: messages.FromHolder) -> None:
        await self._send_frame(messages.encode(message))

    async def _send_frame(self, *pieces: bytes | memoryview) -> None:
        with anyio.CancelScope(shield=True):  # a write is never cancelled; the stream's watchdog bounds it
            await self._stream.send(*pieces)
