"""The coordinator's plain HTTPS server, for nodes behind firewalls that admit only HTTPS.

Rules
1. A request is answered by the same handler as over libp2p, from the same bytes, under the same limits. A document
   gains no authority from the connection. p2p/https/combined_network.py publishes and shares over both.
2. A handler receives only "https/ADDRESS" as the name of the client, followed by "/PORT" for a private address, which
   tells apart the machines behind one proxy. The signature inside a request identifies the node. Once such a request
   of a key with accepted work came over a connection from a private address, that connection is the key's
   (p2p/limits/party.py, rule 3).
3. A request that does not decode is the client's fault (400). Any other error of a handler is our fault (500): the
   error is logged, and its text is not sent.
4. Only payloads that are currently shared are served, by the hash of their content. A file is read and checked at its
   first request. A request's path is never a path on disk.
5. Payloads share the machine's one uplink limit and queue with libp2p (p2p/limits/bandwidth.py). Frames leave in
   pieces, so that a waiting client keeps receiving bytes.
"""

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import anyio.to_thread
from aiohttp import web

from echo2.p2p.envelope import decode_unverified, open_signed
from echo2.p2p.errors import Busy, Malformed, PeerFault
from echo2.p2p.guard import log
from echo2.p2p.handlers import Handlers
from echo2.p2p.https import routes
from echo2.p2p.https.client_limits import HttpsLimits
from echo2.p2p.https.listener import HttpError, HttpsListener
from echo2.p2p.identity import peer_id
from echo2.p2p.limits.origin import Origin
from echo2.p2p.limits.request_slots import SMALL_ANSWER_BYTES, RequestSlots
from echo2.p2p.multiaddr import OVER_HTTPS
from echo2.p2p.network import Uplink
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.swarm import messages
from echo2.p2p.swarm.open_files import retry_while_exhausted
from echo2.p2p.swarm.payload_file import PayloadFile


class HttpsServer:
    """The HTTPS server of handlers, the newest message of each topic, and shared payloads. `sent`: payload bytes per
    client, named "https/ADDRESS". One `run` per instance."""

    def __init__(
        self,
        peer_id: str,
        handlers: Handlers,
        listen: Sequence[str],
        context: ssl.SSLContext,
        limits: HttpsLimits | None = None,
        *,
        uplink: Uplink | None = None,
        run: bytes = b"",
    ) -> None:
        """`peer_id`: the coordinator's. `listen`: multiaddresses /ip4/HOST/tcp/PORT. `context`:
        p2p.https.certificate.server_context. `uplink`: None for no limit. `run`: id of the run whose requests show
        their signer (rule 2); empty: of none."""
        self._peer_id = peer_id
        self._handlers = handlers
        self._uplink = uplink
        limits = limits or HttpsLimits()
        self._parties = limits.parties
        self._run = run
        self.listener = HttpsListener(listen, context, self._respond, limits)
        self._slots = RequestSlots()
        self._topics: dict[str, tuple[str, bytes]] = {}
        self._published = asyncio.Event()
        self._shared: dict[bytes, PayloadFile] = {}
        self._listening = asyncio.Event()
        self._failure: Exception | None = None
        self.sent = 0
        self.addresses = self.listener.addresses

    async def run(self) -> None:
        try:
            await self.listener.run(self._listening.set)
        except Exception as failure:
            self._failure = failure
            raise
        finally:
            self._listening.set()
            for shared in self._shared.values():
                shared.close()

    async def ready(self) -> None:
        await self._listening.wait()
        if self._failure is not None:
            raise self._failure

    def origin(self, client: str) -> Origin:
        """See `Inbound`. `client`: its name as handlers receive it (rule 2)."""
        host, _, port = client.removeprefix(OVER_HTTPS).partition("/")
        key = self.listener.keys.get((host, int(port or 0)), client)
        party = self._parties.name(self._parties.subnet_of(host), key)
        return Origin(client, party, party in self._parties.known)

    def publish(self, topic: str, data: bytes) -> None:
        """Publish the newest message of a topic; it answers the open long polls for that topic at once."""
        self._topics[topic] = (routes.etag(data), data)
        self._published.set()
        self._published = asyncio.Event()

    async def share(self, manifest: Manifest, path: Path) -> None:
        known = self._shared.get(manifest.hash)
        if known is None or not await anyio.to_thread.run_sync(known.is_current, path):
            self._shared[manifest.hash] = PayloadFile.offer_file(manifest, path)

    def unshare(self, payload_hash: bytes) -> None:
        shared = self._shared.pop(payload_hash, None)
        if shared is not None:
            shared.close()

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        if request.method == "POST" and path.startswith(routes.RPC):
            return await self._answer_method(request, path.removeprefix(routes.RPC))
        if request.method == "GET" and path.startswith(routes.TOPIC):
            return await self._answer_topic(request, path.removeprefix(routes.TOPIC))
        if request.method == "GET" and path.startswith(routes.CHUNKS):
            return await self._answer_chunks(request)
        if request.method == "GET" and path == routes.PEER:
            return await self.listener.send(request, self._peer_id.encode())
        raise HttpError(404, "not found")

    async def _answer_method(self, request: web.BaseRequest, method: str) -> web.StreamResponse:
        if method not in self._handlers.methods:
            raise HttpError(404, "no such method")
        client = self._client_name(request)
        body = await self.listener.read(request, self._handlers.methods[method].limit, self.origin(client))
        self._recognise(request, body)
        try:
            with self._slots.at_work(method, self.origin(client)):
                answer = await self._call_handler(method, client, body)
                if len(answer) > SMALL_ANSWER_BYTES:
                    return await self.listener.send(request, answer)
        except Busy as busy:
            self._handlers.note_busy(client)
            raise HttpError(429, str(busy), retry_after=1.0) from None
        return await self.listener.send(request, answer)

    async def _call_handler(self, method: str, client: str, body: bytes) -> bytes:
        try:
            return await self._handlers.answer(method, client, body)
        except Busy:
            raise
        except Malformed as fault:
            raise HttpError(400, str(fault)) from None
        except Exception as fault:  # rule 3: the server goes on
            log.error("https request failed: %s", method, exc_info=fault)
            raise HttpError(500, "the request failed") from None

    def _client_name(self, request: web.BaseRequest) -> str:
        """Return the client's name for handlers (rule 2)."""
        host, port = self.listener.source(request)
        return f"{OVER_HTTPS}{host}" + (f"/{port}" if self._parties.subnet_of(host) is None else "")

    def _recognise(self, request: web.BaseRequest, body: bytes) -> None:
        """Note whose connection it is, if a request shows it (rule 2). Only a signature of a key with accepted work is
        checked, and only for the first request of a connection."""
        source = self.listener.source(request)
        if source in self.listener.keys or self._parties.subnet_of(source[0]) is not None or not self._parties.known:
            return
        with suppress(PeerFault):
            claimed = [peer_id(one.key) for one in decode_unverified(body).signatures[:1]]
            if not self._parties.known.isdisjoint(claimed):
                open_signed(body, "request", self._run)
                self.listener.recognise(request, claimed[0])

    async def _answer_topic(self, request: web.BaseRequest, topic: str) -> web.StreamResponse:
        """Answer with the topic's message. If the client has it already, wait for the next one: 304 after `routes.WAIT`
        s."""
        known = request.headers.get("If-None-Match")
        until = asyncio.get_running_loop().time() + routes.LONG_POLL_SECONDS
        while topic in self._topics and self._topics[topic][0] == known:
            try:
                async with asyncio.timeout_at(until):
                    await self._published.wait()
            except TimeoutError:
                return await self.listener.send(request, b"", status=304, headers={"ETag": known})
        if topic not in self._topics:
            raise HttpError(404, "no message was published under this topic")
        tag, data = self._topics[topic]
        return await self.listener.send(request, data, headers={"ETag": tag})

    async def _answer_chunks(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer with chunks of a shared payload, one frame each (rules 4 and 5)."""
        try:
            payload_hash, first, last = routes.read_chunks_path(request.path)
        except Malformed as fault:
            raise HttpError(400, str(fault)) from None
        payload = self._shared.get(payload_hash)
        if payload is not None and last >= payload.chunks:
            raise HttpError(416, f"the payload has {payload.chunks} chunks")
        first_chunk = None if payload is None else await retry_while_exhausted(payload.read, first)
        if payload is None or payload.lost:
            raise HttpError(404, "that payload is not shared")
        answer = web.StreamResponse()
        await answer.prepare(request)
        for index in range(first, last + 1):
            chunk = first_chunk if index == first else await retry_while_exhausted(payload.read, index)
            message = (
                messages.NotAvailable(index)
                if chunk is None
                else messages.Chunk(index, tuple(chunk[1]), memoryview(chunk[0]))
            )
            await self._send(answer, f"{OVER_HTTPS}{self.listener.source(request)[0]}", routes.frame_message(message))
            self.sent += len(chunk[0]) if chunk else 0
        return await self.listener.finish(answer)

    async def _send(self, answer: web.StreamResponse, name: str, frame: bytes) -> None:
        """Send a frame, in pieces within the uplink limit (rule 5)."""
        if self._uplink is None:
            await self.listener.write(answer, frame)
            return
        for start in range(0, len(frame), routes.WRITE_BYTES):
            piece = frame[start : start + routes.WRITE_BYTES]
            await self._uplink.await_uplink(name, len(piece))
            await self.listener.write(answer, piece)
