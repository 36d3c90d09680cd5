"""The network of a node behind a firewall that admits only HTTPS: requests go to one coordinator, none come from it.

Rules
1. The server must hold the pinned key (p2p/https/certificate.py). The key is checked before a byte of HTTP is sent,
   also through a proxy (p2p/https/environment_proxy.py). Every document is signed in any case.
2. A chunk is stored once its proof leads to the signed root (p2p/swarm/payload_file.py). Stored chunks survive a lost
   connection and a restart: a fetch continues with the missing ones. It retries until cancelled, with growing delays.
3. Gossip is received by long polling: the coordinator answers a request for a topic once there is a new message.
4. A request ends after `patience` seconds without a byte. Answers are bounded, and compressed ones are not
   decompressed.
5. On status 429, a request is retried after `Retry-After`, if that is within `PUT_OFF` seconds of its first attempt;
   the connection stays up.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Final

import aiohttp
import anyio
import anyio.to_thread

from echo2.p2p.errors import BadChunk, Busy, Declined, LocalNetworkFault, Malformed, P2PError, PeerFault, Unreachable
from echo2.p2p.guard import guard_handler, log, one_error
from echo2.p2p.https import routes
from echo2.p2p.https.certificate import KeyPin
from echo2.p2p.https.environment_proxy import proxy_to
from echo2.p2p.multiaddr import Route, address_of
from echo2.p2p.network import FetchReport, GossipHandler, Traffic
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.peer.rpc import ANSWER_LIMIT
from echo2.p2p.swarm import messages
from echo2.p2p.swarm.open_files import retry_opening, retry_while_exhausted
from echo2.p2p.swarm.payload_file import PartialPayload, PayloadFile
from echo2.p2p.swarm.transfer_log import TransferLog
from echo2.runtime.backoff import Backoff

SILENCE_SECONDS: Final = 20.0
"""Seconds without a byte before a request is given up."""
CONNECT_SECONDS: Final = 10.0
"""Seconds for a connection and its handshake."""
LANES: Final = 4
"""Requests for chunks at a time."""
REQUESTS: Final = 12
"""Requests for methods, and long polls, at a time: over a round trip of 150 ms more than 60 per second."""
RUN_BYTES: Final = 4 << 20
"""Most bytes of chunks per request."""
FETCH_BACKOFF: Final = Backoff(0.5, 15.0)
"""Seconds before a fetch or a long poll is retried: at first, and at most; doubled by each failure."""
PUT_OFF: Final = 5.0
_TOO_MANY: Final = 429
_MOST_SMALL_ANSWER_BYTES: Final = 64 << 10
"""Most bytes of an answer that is neither of a method nor of chunks."""


class HttpsClient:
    """`p2p.network.Rpc` and `Links` over HTTPS, and the receiving half of `Gossip` and `PayloadExchange`. One `run` per
    instance."""

    def __init__(self, peer_id: str, pin: bytes, *, patience: float = SILENCE_SECONDS) -> None:
        """`pin`: SHA-256 of the coordinator's HTTPS key (SPKI), from the invite."""
        self.peer_id = peer_id
        self._pin = pin
        self._patience = patience
        self._session: aiohttp.ClientSession | None = None
        self._ready = asyncio.Event()
        self._coordinator = ""
        self._origin = ""
        self._up = asyncio.Event()
        self._topics: dict[str, GossipHandler] = {}
        self._fetching: set[bytes] = set()
        self.received: Counter[str] = Counter()
        """Payload bytes since the start, by peer."""

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=self._patience)
        try:
            session = aiohttp.ClientSession(connector=self.connector(), timeout=timeout, auto_decompress=False)
            async with session as self._session:
                with one_error():
                    async with asyncio.TaskGroup() as group:
                        for topic, handler in self._topics.items():
                            group.create_task(self._follow(topic, handler))
                        self._ready.set()
                        await asyncio.get_running_loop().create_future()
        finally:
            self._session = None
            self._up.clear()

    def connector(self) -> aiohttp.TCPConnector:
        """Make the object that opens the connections."""
        return aiohttp.TCPConnector(ssl=KeyPin(self._pin), limit=LANES + REQUESTS)

    async def ready(self) -> None:
        await self._ready.wait()

    async def peers(self) -> list[str]:
        """Return the coordinator while it answers; else none."""
        return [self._coordinator] if self._up.is_set() else []

    async def routes(self) -> dict[str, Route]:
        return dict.fromkeys(await self.peers(), "https")

    async def dial(self, addresses: Sequence[str]) -> str:
        troubles = []
        for address in addresses:
            origin = address_of(address).https_url
            if origin is None:
                continue
            try:
                status, body = await self._ask("GET", f"{origin}{routes.PEER}", limit=_MOST_SMALL_ANSWER_BYTES)
                peer = body.decode(errors="replace")
                expected = address_of(address).peer or peer
                if status != 200 or peer != expected:
                    raise Malformed(f"{origin} is not the coordinator {expected} (status {status})")
            except (Unreachable, Malformed) as error:
                troubles.append(str(error))
            else:
                self._coordinator, self._origin = peer, origin
                self._up.set()
                return peer
        raise Unreachable("; ".join(troubles) or f"no HTTPS address among {list(addresses)}")

    async def disconnect(self) -> None:
        """Count as disconnected until the next dial, since there is a better route. Requests under way continue."""
        self._up.clear()

    async def request(self, peer: str, method: str, payload: bytes, *, timeout: float) -> bytes:
        if peer != self._coordinator or not self._up.is_set():
            raise Unreachable(f"{peer} is not connected over HTTPS")
        try:
            async with asyncio.timeout(timeout):
                url = f"{self._origin}{routes.RPC}{method}"
                status, body = await self._ask("POST", url, data=payload, limit=ANSWER_LIMIT)
        except TimeoutError:
            self._up.clear()
            raise Unreachable(f"{peer} did not answer {method} within {timeout:g} s") from None
        except Unreachable:
            self._up.clear()
            raise
        if status == 200:
            return body
        sentence = f"{peer} refused {method} ({status}): {body[:200].decode(errors='replace')}"
        if status in (400, 413):
            raise Malformed(sentence)
        raise Busy(sentence) if status == _TOO_MANY else Declined(sentence)

    def subscribe(self, topic: str, handler: GossipHandler) -> None:
        self._topics[topic] = guard_handler(handler)

    async def fetch(self, manifest: Manifest, path: Path, *, fallback: str | None = None) -> FetchReport:
        """See `PayloadExchange`. Raises `LocalNetworkFault` (the disk), `Malformed` (the manifest exceeds a bound)."""
        if manifest.hash in self._fetching:
            raise LocalNetworkFault(f"payload {manifest.hash.hex()[:16]} is being fetched already")
        if await retry_while_exhausted(_is_whole, manifest, path):
            return FetchReport()
        self._fetching.add(manifest.hash)
        transfers = TransferLog(anyio.current_time())
        try:
            with closing(await retry_opening(PartialPayload, manifest, path)) as payload:
                await self._fill(payload, transfers)
                await retry_while_exhausted(payload.finish)
        finally:
            self._fetching.discard(manifest.hash)
        return transfers.report(anyio.current_time())

    async def traffic(self) -> Traffic:
        return Traffic(received=self.received.total(), sent=0, received_by_peer=dict(self.received))

    async def _fill(self, payload: PartialPayload, transfers: TransferLog) -> None:
        """Fetch the missing chunks, retrying until all are stored or this task is cancelled (rule 2)."""
        failures = 0
        while not payload.complete:
            await self._up.wait()
            before, runs = payload.have, deque(_runs(payload))
            try:
                with one_error():
                    # Not asyncio.TaskGroup: in Python 3.11 it leaves this task marked as cancelled when a child fails.
                    async with anyio.create_task_group() as group:
                        for _ in range(min(LANES, len(runs))):
                            group.start_soon(self._lane, payload, runs, transfers)
            except (Unreachable, PeerFault) as error:
                failures = 1 if payload.have != before else failures + 1
                repeated = isinstance(error, Unreachable) and failures > 1
                log.log(logging.DEBUG if repeated else logging.WARNING, "fetch over HTTPS interrupted: %s", error)
                await asyncio.sleep(FETCH_BACKOFF.delay(failures))

    async def _lane(self, payload: PartialPayload, runs: deque[tuple[int, int]], transfers: TransferLog) -> None:
        while runs:
            first, last = runs.popleft()
            transfers.on_request(self._coordinator, anyio.current_time())
            path = routes.chunks_path(payload.manifest.hash, first, last)
            async with self._open("GET", f"{self._origin}{path}") as answer:
                if answer.status != 200:
                    raise Unreachable(f"chunks {first} to {last}: status {answer.status}")
                for expected in range(first, last + 1):
                    nbytes = await self._store(payload, expected, await _frame(answer.content))
                    transfers.on_verified_chunk(self._coordinator, nbytes, anyio.current_time())

    async def _store(self, payload: PartialPayload, expected: int, message: messages.FromHolder) -> int:
        """Store a chunk; return its size in bytes. Raises `Unreachable`, `BadChunk`."""
        match message:
            case messages.Chunk(index, proof, data) if index == expected:
                await anyio.to_thread.run_sync(payload.put, index, data, list(proof))
                self.received[self._coordinator] += len(data)
                return len(data)
            case messages.NotAvailable(index) if index == expected:
                raise Unreachable(f"chunk {index} is no longer available")
            case _:
                raise BadChunk(f"another message came in place of chunk {expected}")

    async def _follow(self, topic: str, handler: GossipHandler) -> None:
        """Poll a topic and call its handler, while the coordinator answers (rule 3)."""
        newest, failures = "", 0
        while True:
            await self._up.wait()
            try:
                headers = {"If-None-Match": newest} if newest else {}
                url = f"{self._origin}{routes.TOPIC}{topic}"
                status, data = await self._ask("GET", url, limit=_MOST_SMALL_ANSWER_BYTES, headers=headers)
                if status not in (200, 304):
                    raise Unreachable(f"topic {topic}: status {status}")
            except (Unreachable, PeerFault) as error:
                failures += 1
                log.debug("long poll over HTTPS failed: %s", error)
                await asyncio.sleep(FETCH_BACKOFF.delay(failures))
                continue
            failures = 0
            if status == 200:
                newest = routes.etag(data)
                await handler(self._coordinator, data)

    async def _ask(
        self, method: str, url: str, *, limit: int, data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:  # fmt: skip
        """Return (status, body). Raises `Unreachable`, `Malformed`."""
        async with self._open(method, url, data=data, headers=headers) as answer:
            body = bytearray()
            async for piece in answer.content.iter_any():
                body += piece
                if len(body) > limit:
                    raise Malformed(f"an answer longer than {limit} bytes")
            return answer.status, bytes(body)

    @asynccontextmanager
    async def _open(self, method: str, url: str, **how: object) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request, retried by rule 5, and yield its answer. aiohttp's errors become `Unreachable` here."""
        retry_until = anyio.current_time() + PUT_OFF
        while True:
            if self._session is None:
                raise Unreachable("the network is not running")
            with _errors_as_unreachable(url):
                how["proxy"] = proxy_to(url)
                async with self._session.request(method, url, allow_redirects=False, **how) as answer:  # type: ignore[arg-type]
                    again = _retry_after(answer)
                    if again is None or anyio.current_time() + again > retry_until:
                        yield answer
                        return
            await asyncio.sleep(again)


def _retry_after(answer: aiohttp.ClientResponse) -> float | None:
    """Return the seconds of a 429's `Retry-After`; None for any other answer."""
    after = answer.headers.get("Retry-After", "")
    return float(after) if answer.status == _TOO_MANY and after.isascii() and after.isdecimal() else None


@contextmanager
def _errors_as_unreachable(url: str) -> Iterator[None]:
    try:
        yield
    except (P2PError, asyncio.CancelledError):
        raise
    except (aiohttp.ClientError, asyncio.IncompleteReadError, TimeoutError, OSError) as error:
        raise Unreachable(f"{url.partition(routes.ROOT)[0]}: {str(error) or type(error).__name__}") from None


async def _frame(content: aiohttp.StreamReader) -> messages.FromHolder:
    (length,) = routes.LENGTH.unpack(await content.readexactly(routes.LENGTH.size))
    if length > messages.HOLDER_LIMIT:
        raise Malformed(f"a frame of {length} bytes")
    return messages.decode_from_holder(await content.readexactly(length))


def _runs(payload: PayloadFile) -> list[tuple[int, int]]:
    """Return the spans (first, last) of missing chunks, each for one request."""
    most = min(routes.BATCH, max(1, RUN_BYTES // payload.manifest.chunk_size))
    runs: list[tuple[int, int]] = []
    for index in range(payload.chunks):
        if payload.have >> index & 1:
            continue
        if runs and runs[-1][1] == index - 1 and index - runs[-1][0] < most:
            runs[-1] = (runs[-1][0], index)
        else:
            runs.append((index, index))
    return runs


def _is_whole(manifest: Manifest, path: Path) -> bool:
    if not path.exists():
        return False
    try:
        PayloadFile.open(manifest, path).close()
    except LocalNetworkFault as fault:
        log.warning("payload fetched again: %s is damaged: %s", path, fault)
        return False
    return True
