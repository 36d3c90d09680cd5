"""The coordinator over plain HTTPS, beside the network that it has: for nodes behind what lets nothing else out.

Rules
1. Whatever is served, shared or published goes over both; the rest is the other network's. An answer is made by the
   same handler, from the same bytes, under the same limits: no document is believed for the connection it came over.
2. A handler hears of the other side only "https/ADDRESS", of a private address with its port (p2p/limits/origin.py).
   The signature inside the request names the asker.
3. A request that does not decode is the asker's fault (400); any other error of a handler is ours (500), is logged, and
   nothing of it goes out.
4. Only what is shared now is given out, by the hash of its content. A file is read and checked when it is first asked
   for. No path of a request is ever a path of the disk.
5. What a visitor may cost is p2p/https_listener.py's concern.
6. Payloads leave under the machine's one limit, in the one line with those of the other network (p2p/pace.py): a piece
   at a time, so that who waits sees bytes come.
"""

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path

import anyio.to_thread
import msgspec
from aiohttp import web

from p2p import https_wire, wire
from p2p.errors import Busy, Malformed
from p2p.guard import one_error
from p2p.https_door import Limits
from p2p.https_listener import HttpsListener, Refused
from p2p.limits.origin import Origin, origin_over_https, over_https
from p2p.limits.slots import Slots
from p2p.multiaddr import OVER_HTTPS
from p2p.network import Fetched, GossipHandler, Manifest, Network, RequestHandler, Traffic
from p2p.openpayloads import patiently
from p2p.payload import Payload

log = logging.getLogger("p2p")

Turn = Callable[[str, int], Awaitable[None]]
"""(who is sent something, bytes): waits until they may leave."""


class HttpsServer:
    """`p2p.network.Network`: another one, with HTTPS beside it."""

    def __init__(
        self,
        beside: Network,
        listen: Sequence[str],
        context: ssl.SSLContext,
        limits: Limits | None = None,
        *,
        turn: Turn | None = None,
    ) -> None:
        """`listen`: multiaddresses /ip4/HOST/tcp/PORT. `context`: p2p.certificate.server_context. `turn`: the uplink's,
        None for no limit."""
        self._beside, self._turn = beside, turn
        limits = limits or Limits()
        self._subnet_of = limits.subnet_of
        self._listener = HttpsListener(listen, context, self._respond, limits)
        self._methods: dict[str, tuple[RequestHandler, int]] = {}
        self._slots, self._unanswered = Slots(), Counter[str]()
        self._topics: dict[str, tuple[str, bytes]] = {}
        self._news = asyncio.Event()
        self._shared: dict[bytes, Payload] = {}
        self._sent: Counter[str] = Counter()
        self._listening = asyncio.Event()
        self._failure: Exception | None = None

    @property
    def peer_id(self) -> str:
        """See `Network`."""
        return self._beside.peer_id

    async def run(self) -> None:
        """See `Network`."""
        try:
            with one_error():
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._beside.run())
                    group.create_task(self._listener.run(self._listening.set))
        except Exception as failure:
            self._failure = failure
            raise
        finally:
            self._listening.set()
            for shared in self._shared.values():
                shared.close()

    async def ready(self) -> None:
        """See `Network`."""
        await self._listening.wait()
        if self._failure is not None:
            raise self._failure
        await self._beside.ready()

    async def addresses(self) -> list[str]:
        """See `Network`."""
        return [*await self._beside.addresses(), *self._listener.addresses()]

    async def peers(self) -> list[str]:
        """See `Network`."""
        return await self._beside.peers()

    async def way(self, peer: str) -> str | None:
        """See `Network`."""
        return await self._beside.way(peer)

    async def remote(self, peer: str) -> str | None:
        """See `Network`."""
        return await self._beside.remote(peer)

    async def reserve(self, addresses: Sequence[str]) -> None:
        """See `Network`."""
        await self._beside.reserve(addresses)

    async def release(self, relay: str) -> None:
        """See `Network`."""
        await self._beside.release(relay)

    async def dial(self, addresses: Sequence[str]) -> str:
        """See `Network`."""
        return await self._beside.dial(addresses)

    async def request(self, peer: str, method: str, payload: bytes, *, timeout: float) -> bytes:
        """See `Network`."""
        return await self._beside.request(peer, method, payload, timeout=timeout)

    def serve(self, method: str, handler: RequestHandler, *, limit: int) -> None:
        """See `Network`."""
        self._beside.serve(method, handler, limit=limit)
        self._methods[method] = (handler, limit)

    def origin(self, peer: str) -> Origin:
        """See `Network`."""
        if not peer.startswith(OVER_HTTPS):
            return self._beside.origin(peer)
        return origin_over_https(peer, self._subnet_of)

    def keep_places(self, parties: Collection[str]) -> None:
        """See `Network`."""
        self._listener.door.keep(parties)
        self._beside.keep_places(parties)

    def unanswered(self, methods: Sequence[str]) -> int:
        """See `Network`."""
        return sum(self._unanswered[method] for method in methods) + self._beside.unanswered(methods)

    async def publish(self, topic: str, data: bytes) -> None:
        """See `Network`."""
        self._topics[topic] = (https_wire.etag(data), data)
        self._news.set()
        self._news = asyncio.Event()
        await self._beside.publish(topic, data)

    def subscribe(self, topic: str, handler: GossipHandler) -> None:
        """See `Network`."""
        self._beside.subscribe(topic, handler)

    async def share(self, manifest: Manifest, path: Path) -> None:
        """See `Network`."""
        await self._beside.share(manifest, path)
        known = self._shared.get(manifest.hash)
        if known is None or not await anyio.to_thread.run_sync(known.stands, path):
            self._shared[manifest.hash] = Payload.offered(manifest, path)

    async def unshare(self, payload_hash: bytes) -> None:
        """See `Network`."""
        shared = self._shared.pop(payload_hash, None)
        if shared is not None:
            shared.close()
        await self._beside.unshare(payload_hash)

    async def fetch(self, manifest: Manifest, path: Path, *, last: str | None = None) -> Fetched:
        """See `Network`."""
        return await self._beside.fetch(manifest, path, last=last)

    async def follow(self, parents: Sequence[str], children: Sequence[str] = ()) -> None:
        """See `Network`."""
        await self._beside.follow(parents, children)

    async def traffic(self) -> Traffic:
        """See `Network`. Who came over HTTPS has the name "https/ADDRESS"."""
        other = await self._beside.traffic()
        sent_by_peer = {**other.sent_by_peer, **self._sent}
        sent, refused = other.sent + self._sent.total(), {**other.refused, **self._listener.turned_away.counts()}
        return msgspec.structs.replace(other, sent=sent, sent_by_peer=sent_by_peer, refused=refused)

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        if request.method == "POST" and path.startswith(https_wire.RPC):
            return await self._answer(request, path.removeprefix(https_wire.RPC))
        if request.method == "GET" and path.startswith(https_wire.TOPIC):
            return await self._tell(request, path.removeprefix(https_wire.TOPIC))
        if request.method == "GET" and path.startswith(https_wire.CHUNKS):
            return await self._give(request)
        if request.method == "GET" and path == https_wire.PEER:
            return await self._listener.send(request, self.peer_id.encode())
        raise Refused(404, "nothing is here")

    async def _answer(self, request: web.BaseRequest, method: str) -> web.StreamResponse:
        if method not in self._methods:
            raise Refused(404, "no such method")
        asker = self._asker(request)
        try:
            with self._slots.at_work(method, self.origin(asker)):
                return await self._listener.send(request, await self._worked(request, method, asker))
        except Busy as busy:
            raise Refused(429, str(busy), retry_after=1.0) from None

    async def _worked(self, request: web.BaseRequest, method: str, asker: str) -> bytes:
        handler, limit = self._methods[method]
        body = await self._listener.read(request, limit)
        self._unanswered[method] += 1
        try:
            return await handler(asker, body)
        except Busy:
            raise
        except Malformed as fault:
            raise Refused(400, str(fault)) from None
        except Exception as fault:  # rule 3; and nothing ends
            log.error("https: %s failed", method, exc_info=fault)
            raise Refused(500, "the request failed") from None
        finally:
            self._unanswered[method] -= 1

    def _asker(self, request: web.BaseRequest) -> str:
        """Return the name that a handler hears."""
        transport = request.transport
        port = 0 if transport is None else transport.get_extra_info("peername", ("", 0))[1]
        return over_https(str(request.remote), port, self._subnet_of)

    async def _tell(self, request: web.BaseRequest, topic: str) -> web.StreamResponse:
        """The topic's message; where that is the one the other side has, the next one, or 304 after a while."""
        known, until = request.headers.get("If-None-Match"), asyncio.get_running_loop().time() + https_wire.WAIT
        while topic in self._topics and self._topics[topic][0] == known:
            try:
                async with asyncio.timeout_at(until):
                    await self._news.wait()
            except TimeoutError:
                return await self._listener.send(request, b"", status=304, headers={"ETag": known})
        if topic not in self._topics:
            raise Refused(404, "nothing was published there")
        tag, data = self._topics[topic]
        return await self._listener.send(request, data, headers={"ETag": tag})

    async def _give(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            payload_hash, first, last = https_wire.read_chunks_path(request.path)
        except Malformed as fault:
            raise Refused(400, str(fault)) from None
        payload = self._shared.get(payload_hash)
        if payload is not None and last >= payload.chunks:
            raise Refused(416, f"the payload has {payload.chunks} chunks")
        begun = None if payload is None else await patiently(payload.read, first)
        if payload is None or payload.lost:
            raise Refused(404, "that payload is not shared")
        answer = web.StreamResponse()
        await answer.prepare(request)
        for index in range(first, last + 1):
            found = begun if index == first else await patiently(payload.read, index)
            message = wire.Gone(index) if found is None else wire.Chunk(index, tuple(found[1]), memoryview(found[0]))
            await self._send(answer, _name(request), https_wire.framed(message))
            self._sent[_name(request)] += len(found[0]) if found else 0
        return await self._listener.finish(answer)

    async def _send(self, answer: web.StreamResponse, name: str, frame: bytes) -> None:
        """Rule 6."""
        if self._turn is None:
            await self._listener.write(answer, frame)
            return
        for start in range(0, len(frame), https_wire.PIECE):
            piece = frame[start : start + https_wire.PIECE]
            await self._turn(name, len(piece))
            await self._listener.write(answer, piece)


def _name(request: web.BaseRequest) -> str:
    return f"{OVER_HTTPS}{request.remote}"
