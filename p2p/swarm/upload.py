"""The holder's side of a chunk stream, and its place in the queue at the uplink.

Rules: p2p/swarm/exchange.py (streams), p2p/swarm/request_queue.py (order), p2p/limits/bandwidth.py (uplink).
"""

import math
from collections.abc import Awaitable, Callable

import anyio

from echo2.p2p.errors import Malformed
from echo2.p2p.limits.bandwidth import FairQueue
from echo2.p2p.swarm import messages
from echo2.p2p.swarm.open_files import retry_while_exhausted
from echo2.p2p.swarm.payload_file import PayloadFile
from echo2.p2p.swarm.request_queue import RequestQueue
from echo2.p2p.transport import Stream

UPLOAD_HEARTBEAT_SECONDS = 5.0
"""Seconds between two keep-alive messages on an idle stream."""


class SharedPayload:
    """A payload on offer, and the streams that listen for its new chunks."""

    def __init__(self, payload: PayloadFile) -> None:
        self.payload = payload
        self.withdrawn = False
        self.listeners: dict[Upload, None] = {}

    def announce(self, index: int) -> None:
        """Report a chunk that was verified and stored to every listening stream."""
        now = anyio.current_time()
        for upload in self.listeners:
            upload.on_chunk(index, now)

    def withdraw(self) -> None:
        """End the offer and close the file."""
        self.withdrawn = True
        self.payload.close()
        for upload in self.listeners:
            upload.wake()


class Sender:
    """One that waits in the queue at the uplink."""

    def __init__(self, queue: "FairQueue[Sender]") -> None:
        self._queue = queue
        self._awake = anyio.Event()

    def wake(self) -> None:
        """Let it check again for something to send: it may be at the head of the queue."""
        self._awake.set()

    def _dequeue(self) -> None:
        if self._queue.dequeue(self) and (front := self._queue.head()) is not None:
            front.wake()  # it has just become the head, and may be asleep


class UplinkSlot(Sender):
    """A slot in the uplink queue for data sent outside a chunk stream (HTTPS)."""

    async def acquire(self, peer: str, nbytes: int) -> None:
        """Wait until `nbytes` may leave to `peer`, and consume them."""
        self._queue.enqueue(self, peer, nbytes)
        try:
            while (wait := self._queue.delay(self, anyio.current_time())) != 0:
                self._awake = anyio.Event()
                with anyio.move_on_after(math.inf if wait is None else wait):
                    await self._awake.wait()
            for other in self._queue.consume(self, anyio.current_time()):
                other.wake()
        finally:
            self._dequeue()


class Upload(Sender):
    """One chunk stream at the holder: its open requests, its announcements, and its place in the uplink queue."""

    def __init__(self, stream: Stream, queue: FairQueue[Sender], on_sent: Callable[[int], None]) -> None:
        """`on_sent`: called with the bytes of each chunk that was sent."""
        super().__init__(queue)
        self._stream = stream
        self._on_sent = on_sent
        self._requests = RequestQueue()
        self._shared: SharedPayload | None = None

    def on_chunk(self, index: int, now: float) -> None:
        """Note that the payload has one more chunk."""
        self._requests.on_chunk(index, now)
        self.wake()

    async def run(self, wait_for: Callable[[bytes], Awaitable[SharedPayload]]) -> None:
        """Serve until the downloader finishes, or the payload is withdrawn. `wait_for`: returns the payload with a
        hash, once this peer has it or begins to fetch it."""
        first = await self._stream.receive(messages.DOWNLOADER_LIMIT)
        if first is None:
            return
        first_message = messages.decode_from_downloader(first)
        if not isinstance(first_message, messages.PayloadRequest):
            raise Malformed("a chunk stream must begin with a PayloadRequest")
        async with anyio.create_task_group() as tasks:

            async def write() -> None:
                await self._write(await self._await_payload(wait_for, first_message.payload))
                tasks.cancel_scope.cancel()

            tasks.start_soon(write)
            await self._read()
            tasks.cancel_scope.cancel()

    async def _read(self) -> None:
        while (frame := await self._stream.receive(messages.DOWNLOADER_LIMIT)) is not None:
            match messages.decode_from_downloader(frame):
                case messages.ChunkRequest(indices):
                    self._requests.request(indices, self._shared.payload.have if self._shared else 0)
                case messages.Cancel(indices):
                    self._requests.cancel(indices)
                case messages.PayloadRequest():
                    raise Malformed(f"{self._stream.peer} sent a second PayloadRequest on one stream")
            self.wake()

    async def _await_payload(
        self, wait_for: Callable[[bytes], Awaitable[SharedPayload]], payload: bytes
    ) -> SharedPayload:
        """Return the payload once this peer has it or begins to fetch it. Until then, send an empty
        `HaveMore`: at once, then every `UPLOAD_HEARTBEAT_SECONDS` seconds."""
        patience = 0.0
        while True:
            with anyio.move_on_after(patience):
                return await wait_for(payload)
            await self._send(messages.HaveMore())
            patience = UPLOAD_HEARTBEAT_SECONDS

    async def _write(self, shared: SharedPayload) -> None:
        payload, self._shared = shared.payload, shared
        shared.listeners[self] = None
        self._requests.start(payload.have, payload.chunks)
        try:
            await self._send(messages.Have(messages.pack_bitmap(payload.have, payload.chunks)))
            while not shared.withdrawn:
                await self._step(payload)
        finally:
            del shared.listeners[self]
            self._dequeue()

    async def _step(self, payload: PayloadFile) -> None:
        """Announce, send, or wait for something to do."""
        self._awake = anyio.Event()
        now = anyio.current_time()
        if news := self._requests.take_announcements(now):
            await self._send(messages.HaveMore(news))
            return
        index = self._requests.next_chunk()
        quiet = self._requests.announce_delay(now) or None
        if index is None:
            self._dequeue()
            await self._idle(quiet)
            return
        self._queue.enqueue(self, self._stream.peer, payload.size(index))
        wait = self._queue.delay(self, now)
        if wait is None or wait > 0:
            await self._idle(min(filter(None, (wait, quiet)), default=None))
        else:
            await self._send_chunk(payload, index, now)

    async def _send_chunk(self, payload: PayloadFile, index: int, now: float) -> None:
        self._requests.mark_sent(index)
        for other in self._queue.consume(self, now):
            other.wake()
        try:
            chunk = payload.read(index, block=False)
        except BlockingIOError:
            chunk = await retry_while_exhausted(payload.read, index)
        if chunk is None:
            await self._send(messages.NotAvailable(index))
            return
        data, proof = chunk
        await self._send_frame(*messages.encode_chunk(index, proof, data))
        self._on_sent(len(data))

    async def _idle(self, wait: float | None) -> None:
        """Wait until there is something to announce or to send; after `UPLOAD_HEARTBEAT_SECONDS` seconds send a
        keep-alive."""
        with anyio.move_on_after(UPLOAD_HEARTBEAT_SECONDS if wait is None else min(wait, UPLOAD_HEARTBEAT_SECONDS)):
            await self._awake.wait()
            return
        if wait is None or wait > UPLOAD_HEARTBEAT_SECONDS:
            await self._send(messages.HaveMore())

    async def _send(self, message: messages.FromHolder) -> None:
        await self._send_frame(messages.encode(message))

    async def _send_frame(self, *pieces: bytes | memoryview) -> None:
        with anyio.CancelScope(shield=True):  # a write is never cancelled; the stream's watchdog bounds it
            await self._stream.send(*pieces)
