"""The downloader's side: fetches one payload from the plan's parents, or from every connected peer that has some of it.

Streams are opened to the plan's parents first. The fallback and all other peers get one only while there is no plan, or
while some loose chunk is requested from no peer. (Rules: p2p/swarm/exchange.py, p2p/swarm/picker.py.)
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio

from echo2.p2p.errors import BadChunk, Malformed, Unreachable
from echo2.p2p.guard import log, one_error
from echo2.p2p.limits.bans import Bans
from echo2.p2p.limits.token_bucket import TokenBucket
from echo2.p2p.swarm import messages
from echo2.p2p.swarm.chunk_writer import ChunkWriter
from echo2.p2p.swarm.payload_file import PartialPayload
from echo2.p2p.swarm.picker import ChunkPicker, PeerRequest
from echo2.p2p.swarm.transfer_log import TransferLog
from echo2.p2p.swarm.upload import UPLOAD_HEARTBEAT_SECONDS, SharedPayload
from echo2.p2p.transport import Stream, Transport
from echo2.runtime.backoff import Backoff

POLL_INTERVAL = 0.25
"""Seconds between two checks of the connected peers."""
STREAM_BACKOFF = Backoff(0.5, 15.0)
"""Seconds before a retry after a failed stream: at first, and at most; doubled by each failure."""
MOST_SENDERS = 1024
"""Senders whose bytes are counted apart. Beyond, the one counted longest is forgotten: keys are free."""


class SenderBytes:
    """Verified bytes: `total`, and `by_sender` of the last `MOST_SENDERS` senders that came."""

    def __init__(self) -> None:
        self.total, self.by_sender = 0, Counter[str]()

    def add(self, sender: str, nbytes: int) -> None:
        """Note bytes of a sender."""
        self.total += nbytes
        self.by_sender[sender] += nbytes
        if len(self.by_sender) > MOST_SENDERS:
            del self.by_sender[next(iter(self.by_sender))]


@dataclass(frozen=True)
class DownloadContext:
    """The state that all downloads of one peer share. `downlink`: the owner's limit."""

    transport: Transport
    seed: int
    downlink: TokenBucket
    bans: Bans = field(default_factory=Bans)
    received: SenderBytes = field(default_factory=SenderBytes)


class Download:
    """One fetch. `run` ends when every chunk is stored."""

    def __init__(
        self,
        context: DownloadContext,
        shared: SharedPayload,
        transfers: TransferLog,
        *,
        fallback: str | None,
        parents: Sequence[str] = (),
    ) -> None:
        """`parents`: see `follow`."""
        payload = shared.payload
        assert isinstance(payload, PartialPayload)
        self._context, self._payload = context, payload
        self._transfers = transfers
        self._parents = tuple(parents)
        self._picker = ChunkPicker(
            payload.chunks, payload.manifest.chunk_size, seed=context.seed, have=payload.have, fallback=fallback
        )
        self._writer = ChunkWriter(payload, shared.announce)
        self._writers: dict[str, _Writer] = {}
        self._failures: Counter[str] = Counter()
        self._in_session: set[str] = set()
        self._recheck = anyio.Event()

    def follow(self, parents: Sequence[str]) -> None:
        """Set the plan: the parent of each stripe; an empty one means no plan."""
        self._parents = tuple(parents)
        self._picker.follow(parents, anyio.current_time())
        self._pump()
        self._recheck.set()

    async def run(self, protocol: str) -> None:
        """Fetch the missing chunks. Raises only `LocalNetworkFault`; any other failure is retried until cancelled."""
        with one_error():
            async with anyio.create_task_group() as tasks:
                self.follow(self._parents)
                tasks.start_soon(self._watch)
                tasks.start_soon(self._writer.run)
                while not self._picker.complete:
                    self._recheck, now = anyio.Event(), anyio.current_time()
                    for peer in self._context.transport.peers():
                        if self._is_useful(peer, now):
                            self._in_session.add(peer)
                            self._picker.stream_opened(peer, now)
                            tasks.start_soon(self._session, peer, protocol)
                    with anyio.move_on_after(POLL_INTERVAL):
                        await self._recheck.wait()
                await self._writer.drain()
                tasks.cancel_scope.cancel()

    def _is_useful(self, peer: str, now: float) -> bool:
        """Tell whether a stream to this peer is worth opening."""
        if peer in self._in_session or self._context.bans.is_banned(peer, now):
            return False
        return not self._parents or peer in self._parents or self._picker.needs_more_peers

    async def _session(self, peer: str, protocol: str) -> None:
        try:
            stream = await self._context.transport.open(peer, protocol)
            try:
                await self._exchange_chunks(peer, stream)
            finally:
                with anyio.CancelScope(shield=True):
                    await stream.reset()
        except Unreachable as error:
            log.debug("chunks from %s: %s", peer, error)
        except (Malformed, BadChunk) as fault:
            term = self._context.bans.ban(peer, anyio.current_time())
            log.warning("peer %s dropped for %.0f s: %s", peer, term, fault)
            await self._context.transport.drop(peer)
        finally:
            self._writers.pop(peer, None)
            self._picker.on_leave(peer)
            self._pump()
        if self._picker.complete:
            self._recheck.set()
            return
        self._failures[peer] += 1
        await anyio.sleep(STREAM_BACKOFF.delay(self._failures[peer]))
        self._in_session.discard(peer)

    async def _exchange_chunks(self, peer: str, stream: Stream) -> None:
        await stream.send(messages.encode(messages.PayloadRequest(self._payload.manifest.hash)))
        writer = self._writers[peer] = _Writer(stream)
        with one_error():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(writer.run)
                while not self._picker.complete:
                    frame = await stream.receive(messages.HOLDER_LIMIT)
                    if frame is None:
                        break
                    await self._handle(peer, messages.decode_from_holder(frame))
                tasks.cancel_scope.cancel()

    async def _handle(self, peer: str, message: messages.FromHolder) -> None:
        now = anyio.current_time()
        match message:
            case messages.Have(bitmap):
                self._picker.on_have(peer, messages.unpack_bitmap(bitmap, self._payload.chunks), now)
            case messages.HaveMore(()):
                self._picker.on_no_chunks(peer)
            case messages.HaveMore(indices):
                if any(index >= self._payload.chunks for index in indices):
                    raise Malformed("a chunk beyond the payload's end")
                self._picker.on_have(peer, sum(1 << index for index in set(indices)), now)
            case messages.NotAvailable(index):
                self._picker.chunk_lost(peer, index)
            case messages.Chunk(index, proof, data):
                if not self._picker.is_requested(peer, index):
                    raise Malformed(f"chunk {index} was not requested")
                await self._store(peer, index, data, list(proof))
        self._pump()

    async def _store(self, peer: str, index: int, data: bytes | memoryview, proof: list[bytes]) -> None:
        try:
            self._payload.prove(index, data, proof)  # in this thread: it takes less time than decryption did
        except BadChunk as fault:
            log.warning("%s sent a bad chunk: %s", peer, fault)
            if self._picker.proof_failed(peer, index):
                raise
            return
        now = anyio.current_time()
        self._context.received.add(peer, len(data))
        self._transfers.on_verified_chunk(peer, len(data), now)
        self._failures[peer] = 0
        self._picker.on_chunk(peer, index, now)
        await self._writer.put(index, data, proof)

    def _pump(self) -> None:
        """Send the requests and cancellations that are due, as far as the owner's limit on the downlink allows."""
        size, now, needy = self._payload.manifest.chunk_size, anyio.current_time(), self._picker.needs_more_peers
        if self._context.downlink.rate is None:
            requests = self._picker.next_requests(now)
        else:
            requests = []
            while self._context.downlink.delay(0, now) <= 0 and (one := self._picker.next_requests(now, 1)):
                self._context.downlink.consume(size, now)
                requests += one
        # Cancellations first: a cancelled chunk may be requested anew.
        for peer, indices in _by_peer(self._picker.take_cancellations()).items():
            self._writers[peer].put(messages.Cancel(tuple(indices)))
        for peer, indices in _by_peer(requests).items():
            self._transfers.on_request(peer, now)
            self._writers[peer].put(messages.ChunkRequest(tuple(indices)))
        if self._picker.needs_more_peers and not needy:
            self._recheck.set()

    async def _watch(self) -> None:
        """Call `_pump` when time has passed that changes its outcome: a peer stalls, or the limit allows more."""
        while True:
            now = anyio.current_time()
            deadline = self._picker.deadline()
            wait = POLL_INTERVAL if deadline is None else min(max(deadline - now, 0.05), POLL_INTERVAL)
            if (limit := self._context.downlink.delay(0, now)) > 0:
                wait = min(wait, limit)
            await anyio.sleep(wait)
            self._pump()


def _by_peer(requests: Sequence[PeerRequest]) -> dict[str, list[int]]:
    by_peer: dict[str, list[int]] = {}
    for request in requests:
        by_peer.setdefault(request.peer, []).append(request.index)
    return by_peer


class _Writer:
    """The one task that writes to a holder's stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._queue: list[messages.FromDownloader] = []
        self._wake = anyio.Event()

    def put(self, message: messages.FromDownloader) -> None:
        self._queue.append(message)
        self._wake.set()

    async def run(self) -> None:
        while True:
            with anyio.move_on_after(UPLOAD_HEARTBEAT_SECONDS):
                await self._wake.wait()
            batch, self._queue, self._wake = self._queue or [messages.ChunkRequest()], [], anyio.Event()
            with anyio.CancelScope(shield=True):  # a write is never cancelled; the stream's watchdog bounds it
                for message in batch:
                    await self._stream.send(messages.encode(message))
