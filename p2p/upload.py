"""The holder's side of one chunk stream (rules: p2p/broadcast.py)."""

from collections import Counter, deque
from collections.abc import Awaitable, Callable

import anyio
import anyio.to_thread

from p2p import wire
from p2p.errors import Malformed
from p2p.pace import Pace
from p2p.payload import Payload
from p2p.transport import Stream

BEAT = 5.0
"""Seconds between two signs of life on an idle stream."""
QUEUE = 256
"""Chunks that a downloader may have asked for and not yet got."""


class Held:
    """A payload on offer, and who waits for news of it."""

    def __init__(self, payload: Payload) -> None:
        self.payload = payload
        self.withdrawn = False
        self.news: list[int] = []
        """Chunks in the order in which they came; a stream remembers how far it has told."""
        self.listeners: dict[Upload, None] = {}

    def add(self, index: int) -> None:
        """A chunk is verified and stored."""
        self.news.append(index)
        self._wake()

    def withdraw(self) -> None:
        """No longer on offer; the file is given back."""
        self.withdrawn = True
        self.payload.close()
        self._wake()

    def _wake(self) -> None:
        for upload in self.listeners:
            upload.wake()


class Upload:
    """One stream's state: what is wanted, and how far the news is told."""

    def __init__(self, stream: Stream, pace: Pace, sent: Counter[str]) -> None:
        self._stream = stream
        self._pace = pace
        self._sent = sent
        self._wanted: deque[int] = deque()
        self._turn: float | None = None
        self._awake = anyio.Event()

    def wake(self) -> None:
        """There is news."""
        self._awake.set()

    async def run(self, wait_for: Callable[[bytes], Awaitable[Held]]) -> None:
        """Serve until the downloader finishes, or the payload is withdrawn."""
        first = await self._stream.receive(wire.DOWNLOADER_LIMIT)
        if first is None:
            return
        ask = wire.decode_from_downloader(first)
        if not isinstance(ask, wire.Ask):
            raise Malformed("a chunk stream begins with Ask")
        async with anyio.create_task_group() as tasks:

            async def write() -> None:
                await self._write(await self._patiently(wait_for, ask.payload))
                tasks.cancel_scope.cancel()

            tasks.start_soon(write)
            await self._read()
            tasks.cancel_scope.cancel()

    async def _read(self) -> None:
        while (frame := await self._stream.receive(wire.DOWNLOADER_LIMIT)) is not None:
            message = wire.decode_from_downloader(frame)
            if not isinstance(message, wire.Want) or len(self._wanted) + len(message.indices) > QUEUE:
                raise Malformed(f"{self._stream.peer} asks for too much, or twice")
            self._wanted.extend(message.indices)
            self.wake()

    async def _patiently(self, wait_for: Callable[[bytes], Awaitable[Held]], payload: bytes) -> Held:
        """The payload, as soon as it is here; until then New with nothing in it, the first at once."""
        patience = 0.0
        while True:
            with anyio.move_on_after(patience):
                return await wait_for(payload)
            await self._send(wire.New())
            patience = BEAT

    async def _write(self, held: Held) -> None:
        held.listeners[self] = None
        try:
            await self._tell_and_send(held)
        finally:
            del held.listeners[self]

    async def _tell_and_send(self, held: Held) -> None:
        payload, told = held.payload, len(held.news)
        await self._send(wire.Have(wire.pack_bitmap(payload.have, payload.chunks)))
        while not held.withdrawn:
            self._awake = anyio.Event()
            if told < len(held.news):  # news first: it is what lets others forward
                news = tuple(held.news[told : told + wire.INDICES_MAX])
                told += len(news)
                await self._send(wire.New(news))
            elif (wait := self._until_turn(payload)) is None or wait > 0:
                await self._idle(wait)
            else:
                self._turn = None
                await self._send_chunk(payload, self._wanted.popleft())

    def _until_turn(self, payload: Payload) -> float | None:
        """Seconds until the next wanted chunk may leave; None when none is wanted."""
        if not self._wanted:
            return None
        now = anyio.current_time()
        if self._turn is None:
            self._turn = now + self._pace.book(payload.size(self._wanted[0]), now)
        return self._turn - now

    async def _send_chunk(self, payload: Payload, index: int) -> None:
        found = await anyio.to_thread.run_sync(payload.read, index)
        if found is None:
            await self._send(wire.Gone(index))
            return
        data, proof = found
        await self._send(wire.Chunk(index, tuple(proof), data))
        self._sent[self._stream.peer] += len(data)

    async def _idle(self, wait: float | None) -> None:
        """Until there is something to tell or to send; after `BEAT` seconds a sign of life."""
        with anyio.move_on_after(BEAT if wait is None else min(wait, BEAT)):
            await self._awake.wait()
            return
        if wait is None or wait > BEAT:
            await self._send(wire.New())

    async def _send(self, message: wire.FromHolder) -> None:
        with anyio.CancelScope(shield=True):  # a write is never cancelled; the stream's watchdog bounds it
            await self._stream.send(wire.encode(message))
