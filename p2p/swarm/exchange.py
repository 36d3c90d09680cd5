"""Payloads between peers: the anyio shell around picker.py (choice of requests) and payload_file.py (verification).

1. Store and forward: a payload is served from its first verified chunk on, while it is still being fetched. Each new
   chunk is announced to listening peers at once; they never poll.
2. A holder that does not have the payload yet keeps the stream open and answers once it has. Peers that start together
   thus find each other with one request.
3. One task reads and one writes per stream. Both sides send a keep-alive every `UPLOAD_HEARTBEAT_SECONDS` seconds, so
   that the transport's watchdog detects a frozen peer.
4. A holder is banned and disconnected for an unrequested chunk, for bytes that do not decode, or for two bad chunks.
   Until the ban ends (p2p/limits/bans.py), nothing is requested from that peer and nothing is served to it. A
   downloader's bytes that do not decode reset its stream alone.
5. A payload whose file is missing or changed is no longer offered. Sharing or fetching it again starts afresh.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.to_thread

from echo2.p2p.errors import LocalNetworkFault
from echo2.p2p.guard import log
from echo2.p2p.limits.bandwidth import FairQueue, Rate, bandwidth, change_bandwidth
from echo2.p2p.limits.counts import take_one
from echo2.p2p.network import FetchReport, Traffic
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.swarm.download import Download, DownloadContext
from echo2.p2p.swarm.open_files import retry_opening, retry_while_exhausted
from echo2.p2p.swarm.payload_file import PartialPayload, PayloadFile
from echo2.p2p.swarm.transfer_log import TransferLog
from echo2.p2p.swarm.upload import Sender, SharedPayload, UplinkSlot, Upload
from echo2.p2p.transport import Stream, Transport
from echo2.runtime.stand_ins import or_stand_in

PROTOCOL = "/echo2/chunks/1"
STREAMS_PER_PEER = 16
"""Chunk streams that one peer may have open to this one."""
TRANSFER_LOGS_MAX = 64
"""Unfinished fetches whose transfer log is kept."""


class ChunkExchange:
    """The payloads that this peer shares, serves and fetches (`p2p.network.PayloadExchange`)."""

    def __init__(self, transport: Transport, *, seed: int, uplink: Rate = None, downlink: Rate = None) -> None:
        """`uplink`, `downlink`: rate of chunks, for all peers together."""
        self._context = DownloadContext(transport, seed, bandwidth(downlink))
        self._uplink_queue = FairQueue[Sender](bandwidth(uplink))
        self._parents: tuple[str, ...] = ()
        self._downloads: dict[Download, None] = {}
        self._whole, self._partial = or_stand_in("payload", PayloadFile), or_stand_in("partial", PartialPayload)
        self._shared: dict[bytes, SharedPayload] = {}
        self._arrivals = anyio.Event()
        self._serving: Counter[str] = Counter()
        self._sent = 0
        self._transfers: dict[bytes, TransferLog] = {}

    async def share(self, manifest: Manifest, path: Path) -> None:
        shared = self._shared.get(manifest.hash)
        if shared is None or not await anyio.to_thread.run_sync(shared.payload.is_current, path):
            payload = await retry_while_exhausted(self._whole.open, manifest, path)
            await self.unshare(manifest.hash)
            self._register(SharedPayload(payload))

    async def unshare(self, payload_hash: bytes) -> None:
        shared = self._shared.pop(payload_hash, None)
        if shared is not None:
            shared.withdraw()

    async def fetch(self, manifest: Manifest, path: Path, *, fallback: str | None = None) -> FetchReport:
        """See `PayloadExchange.fetch`. Raises `LocalNetworkFault` (the disk), `Malformed` (the manifest exceeds a
        bound)."""
        shared = self._shared.get(manifest.hash)
        payload = None if shared is None or shared.payload.lost else shared.payload
        if payload is not None and (payload.path != path or not payload.complete):
            raise LocalNetworkFault(f"payload {manifest.hash.hex()[:16]} is already at {payload.path}")
        if await anyio.Path(path).exists():
            try:
                await self.share(manifest, path)
                return FetchReport()
            except LocalNetworkFault as fault:
                log.warning("fetching %s again: %s", path, fault)
        if shared is not None:
            await self.unshare(manifest.hash)
        partial = await retry_opening(self._partial, manifest, path)
        shared = SharedPayload(partial)
        self._register(shared)
        transfers = self._transfer_log(manifest.hash)
        download = Download(self._context, shared, transfers, fallback=fallback, parents=self._parents)
        self._downloads[download] = None
        try:
            await download.run(PROTOCOL)
            await retry_while_exhausted(partial.finish)
        except BaseException:
            self._shared.pop(manifest.hash, None)
            shared.withdraw()
            raise
        finally:
            del self._downloads[download]
        self._transfers.pop(manifest.hash, None)
        return transfers.report(anyio.current_time())

    async def follow(self, parents: Sequence[str], children: Sequence[str] = ()) -> None:
        self._parents = tuple(parents)
        self._uplink_queue.prioritise(children)
        for download in self._downloads:
            download.follow(self._parents)

    async def limit(self, uplink: float | None, downlink: float | None) -> None:
        change_bandwidth(self._context.downlink, downlink)
        for stream in self._uplink_queue.limit(uplink):
            stream.wake()

    async def serve_chunks(self, stream: Stream) -> None:
        """Serve one downloader until it leaves: the stream handler of `PROTOCOL`."""
        banned = self._context.bans.is_banned(stream.peer, anyio.current_time())
        if banned or self._serving[stream.peer] >= STREAMS_PER_PEER:
            await stream.reset()
            return
        self._serving[stream.peer] += 1
        try:
            await Upload(stream, self._uplink_queue, self._count_sent).run(self._wait_for)
        finally:
            take_one(self._serving, stream.peer)

    def _count_sent(self, nbytes: int) -> None:
        self._sent += nbytes

    async def await_uplink(self, peer: str, nbytes: int) -> None:
        """See `Uplink`. The limit and the queue are those of the chunk streams."""
        await UplinkSlot(self._uplink_queue).acquire(peer, nbytes)

    def traffic(self) -> Traffic:
        """See `PayloadExchange.traffic`; counts payloads alone."""
        received = self._context.received
        return Traffic(received=received.total, sent=self._sent, received_by_peer=dict(received.by_sender))

    def close(self) -> None:
        for shared in self._shared.values():
            shared.withdraw()
        self._shared.clear()

    def _register(self, shared: SharedPayload) -> None:
        self._shared[shared.payload.manifest.hash] = shared
        self._arrivals.set()
        self._arrivals = anyio.Event()

    def _transfer_log(self, payload_hash: bytes) -> TransferLog:
        """Return the log of this payload's fetch. It outlives a cancelled call: the next call resumes the fetch."""
        transfers = self._transfers.setdefault(payload_hash, TransferLog(anyio.current_time()))
        for forgotten in list(self._transfers)[:-TRANSFER_LOGS_MAX]:
            del self._transfers[forgotten]
        return transfers

    async def _wait_for(self, payload_hash: bytes) -> SharedPayload:
        while (shared := self._shared.get(payload_hash)) is None:
            await self._arrivals.wait()
        return shared
