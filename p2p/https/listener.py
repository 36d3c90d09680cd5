"""The sockets of the HTTPS server: TLS, connections, and bounds on slow or hostile clients.

Rules
1. A connection is counted before its handshake, and closed at once if it exceeds a limit (p2p/https/client_limits.py).
   Each refusal is counted and logged. A trusted proxy's header is read before all else (p2p/limits/proxy_header.py).
2. Every wait is bounded: the handshake, the time between two requests, and each write. The headers of a request have
   `RATE_SECONDS` from their first byte, those of the first one from the handshake on. A body must arrive at the least
   rate (p2p/limits/least_rate.py). A slower client's connection is closed.
3. A body's length must be declared and within the method's limit before its first byte is read. Compressed bodies are
   not decompressed. Bytes of bodies that are not whole are shared among parties (p2p/limits/shares.py): the connection
   that gives way is closed.
"""

import asyncio
import logging
import math
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import anyio
from aiohttp import web
from aiohttp.web_protocol import RequestHandler
from anyio.abc import TaskGroup

from echo2.p2p.errors import LocalNetworkFault, Malformed, Unreachable
from echo2.p2p.guard import guard_handler, log
from echo2.p2p.https.client_limits import ClientConnections, HttpsLimits
from echo2.p2p.https.routes import WRITE_BYTES
from echo2.p2p.limits import least_rate
from echo2.p2p.limits.least_rate import Flow, LeastRate
from echo2.p2p.limits.origin import Origin
from echo2.p2p.limits.proxy_header import PEEKED_BYTES, Source, begins_header, read_source, unnamed_proxy
from echo2.p2p.limits.shares import KNOWN_FACTOR, STRANGERS_UNFINISHED_HTTPS, Shares
from echo2.p2p.limits.subnets import RefusalCounter
from echo2.p2p.multiaddr import address_of, tcp
from echo2.runtime.descriptors import SHORTAGES, is_shortage

Respond = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
_VISITORS_LOG = logging.getLogger("p2p.visitors")
_VISITORS_LOG.setLevel(logging.CRITICAL + 1)
_SWEEP_SECONDS = 1.0  # seconds between two searches for idle connections
_CLOSE_SECONDS = 1.0  # seconds for open requests, and for closing TLS, when the server stops
_BACKLOG = 128


class HttpError(Exception):
    """An error answer: a status and a sentence. `retry_after`: seconds."""

    def __init__(self, status: int, sentence: str, *, retry_after: float | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.retry_after = retry_after


class _Accepted(NamedTuple):
    """An accepted connection. `source`: its client's address, also behind a trusted proxy."""

    source: Source
    connection: socket.socket


class HttpsListener:
    """The listening side: accepts HTTPS connections within the limits, and passes their requests to `respond`.
    `listen`: multiaddresses /ip4/HOST/tcp/PORT or /ip6/...; port 0 is any free one."""

    def __init__(self, listen: Sequence[str], context: ssl.SSLContext, respond: Respond, limits: HttpsLimits) -> None:
        self._listen = list(listen)
        self._context = context
        self._respond = respond
        self._limits = limits
        self.clients = ClientConnections(limits)
        self.refusals = RefusalCounter(time.monotonic)
        self._unfinished = Shares[RequestHandler](KNOWN_FACTOR * STRANGERS_UNFINISHED_HTTPS, STRANGERS_UNFINISHED_HTTPS)
        self._accepted: dict[RequestHandler, _Accepted] = {}
        self.keys: dict[Source, str] = {}
        """Address of a connection -> peer id of the key with accepted work that it showed."""
        self._headers = 0
        """Connections of trusted proxies whose header has not come."""
        self._sockets: list[socket.socket] = []
        self._server: _Server | None = None

    def addresses(self) -> list[str]:
        """Return the addresses it listens on, as /ip4/HOST/tcp/PORT/https."""
        return [f"{tcp(*opened.getsockname()[:2])}/https" for opened in self._sockets]

    async def run(self, listening: Callable[[], None]) -> None:
        """Serve until cancelled; `listening` is called once the ports are open. Raises `LocalNetworkFault`."""
        self._server = _Server(self._handle, self._disconnected)
        try:
            for address in self._listen:
                self._sockets.append(_listening(address))
            listening()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._sweep)
                for opened in self._sockets:
                    tasks.start_soon(self._accept, opened, tasks)
        finally:
            for opened in self._sockets:
                opened.close()
            self._sockets.clear()
            await self._server.shutdown(_CLOSE_SECONDS)

    async def _accept(self, opened: socket.socket, tasks: TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(opened)
            except OSError as error:  # out of descriptors, or closed by the client before it was accepted
                if is_shortage(error):
                    SHORTAGES.count_failure("accepting a connection over HTTPS")
                await asyncio.sleep(0.1)
                continue
            if address[0] not in self._limits.parties.proxies:
                self._enter(connection, address[:2], tasks)
            elif self._headers < self._limits.connections // 4:
                tasks.start_soon(guard_handler(self._take_source), connection, address[:2], tasks)
            else:
                self._refuse(connection, "proxy", "too many connections of proxies have sent no header yet")

    async def _take_source(self, connection: socket.socket, proxy: Source, tasks: TaskGroup) -> None:
        """Let a connection from a trusted proxy count as its client's."""
        self._headers += 1
        try:
            source = await read_source(partial(_receive, connection))
            self._enter(connection, source or proxy, tasks)
        except (Malformed, OSError) as error:
            self._refuse(connection, "proxy", f"{proxy[0]}, a trusted proxy: {error}")
        except BaseException:
            connection.close()
            raise
        finally:
            self._headers -= 1

    def _enter(self, connection: socket.socket, source: Source, tasks: TaskGroup) -> None:
        """Count a connection, and begin its handshake, unless a limit refuses it."""
        if (why := self.clients.refusal(source[0])) is not None:
            self._refuse(connection, *why)
            return
        assert self._server is not None
        self._limits.parties.accept(source[0])
        protocol = self._server()
        evicted = self.clients.add(protocol, source[0], asyncio.get_running_loop().time())
        if isinstance(evicted, RequestHandler) and (gone := self._forget(evicted)) is not None:
            with suppress(OSError):
                gone.shutdown(socket.SHUT_RDWR)  # also during its handshake
        self._accepted[protocol] = _Accepted(source, connection)
        tasks.start_soon(guard_handler(self._shake_hands), connection, protocol)

    def _refuse(self, connection: socket.socket, limit: str, why: str) -> None:
        self.refusals.count(limit, why)
        connection.close()

    async def _shake_hands(self, connection: socket.socket, protocol: RequestHandler) -> None:
        host = self._accepted[protocol].source[0]
        try:
            async with asyncio.timeout(self._limits.handshake):
                if begins_header(await _receive(connection, PEEKED_BYTES, socket.MSG_PEEK)):
                    self.refusals.count("proxy", unnamed_proxy(host))
                    raise ConnectionRefusedError("a PROXY header")
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._limits.handshake,
                ssl_shutdown_timeout=_CLOSE_SECONDS,
            )
        except BaseException as error:
            self._disconnected(protocol)
            connection.close()
            if isinstance(error, OSError):  # ssl.SSLError and TimeoutError among them
                raise Unreachable(f"https: no handshake with {host}: {error}") from None
            raise

    def _disconnected(self, protocol: RequestHandler) -> None:
        self._forget(protocol)
        self.clients.remove(protocol)

    def _forget(self, protocol: RequestHandler) -> socket.socket | None:
        """Forget a connection's client; return its socket, None if it was forgotten before."""
        known = self._accepted.pop(protocol, None)
        if known is None:
            return None
        self.keys.pop(known.source, None)
        return known.connection

    def recognise(self, request: web.BaseRequest, key: str) -> None:
        """Note that a request proved a key with accepted work, named by its peer id."""
        if request.protocol in self._accepted:
            self.keys[self.source(request)] = key
            self.clients.recognise(request.protocol, key)

    def source(self, request: web.BaseRequest) -> Source:
        """Return the client's address, also behind a trusted proxy."""
        known = self._accepted.get(request.protocol)
        return ("", 0) if known is None else known.source

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        try:
            return await self._answer_request(request, loop.time())
        except TimeoutError:
            log.info("https connection closed: %s is too slow", self.source(request)[0])
        except ConnectionError as error:
            log.debug("https connection lost: %s: %s", self.source(request)[0], error)
        except Exception as fault:
            log.error("https answer failed", exc_info=fault)
        finally:
            self.clients.on_answer(request.protocol, loop.time())
            assert isinstance(request.protocol, _Connection)
            request.protocol.began = None
        _abort(request.protocol)
        return web.Response(status=408)  # never sent: the connection is closed

    async def _answer_request(self, request: web.BaseRequest, now: float) -> web.StreamResponse:
        wait = self.clients.admit(request.protocol, now)
        try:
            if wait:
                raise HttpError(429, "too many requests", retry_after=wait)
            return await self._respond(request)
        except HttpError as refused:
            headers = {} if refused.retry_after is None else {"Retry-After": str(math.ceil(refused.retry_after))}
            return await self.send(request, str(refused).encode(), status=refused.status, headers=headers)

    async def read(self, request: web.BaseRequest, limit: int, origin: Origin) -> bytes:
        """Read a body under rules 2 and 3. Raises `HttpError`, and `TimeoutError`, which closes the connection."""
        length = request.content_length
        if length is None:
            raise HttpError(411, "Content-Length is required")
        if length > limit:
            raise HttpError(413, f"a request may have at most {limit} bytes")
        loop = asyncio.get_running_loop()
        body, rate = bytearray(), LeastRate(Flow(0, loop.time()), loop.time())
        try:
            while len(body) < length:
                self.clients.on_part(request.protocol, len(body), loop.time())
                async with asyncio.timeout_at(rate.deadline):
                    piece = await request.content.readany()
                if not piece:
                    raise HttpError(400, "the body ended early")
                body += piece
                rate.extend(Flow(len(body), loop.time()), loop.time())
                for crowded in self._unfinished.occupy(request.protocol, origin, len(body)):
                    self._unfinished.leave(crowded)
                    _abort(crowded)
        finally:
            self.clients.on_whole(request.protocol)
            self._unfinished.leave(request.protocol)
        return bytes(body)

    async def send(
        self, request: web.BaseRequest, body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> web.StreamResponse:
        """Send a whole answer. Raises `TimeoutError`, which closes the connection."""
        answer = web.StreamResponse(status=status, headers=headers)
        if status != 304:
            answer.content_length = len(body)
        if status >= 400 and not request.content.is_eof():
            answer.force_close()  # the rest of the request's body is not read
        await answer.prepare(request)
        await self.write(answer, body)
        return await self.finish(answer)

    async def write(self, answer: web.StreamResponse, data: bytes) -> None:
        """Send a part of a prepared answer. Raises `TimeoutError`, which closes the connection."""
        view = memoryview(data)
        for start in range(0, len(view), WRITE_BYTES):
            async with asyncio.timeout(self._limits.patience):
                await answer.write(bytes(view[start : start + WRITE_BYTES]))

    async def finish(self, answer: web.StreamResponse) -> web.StreamResponse:
        """End a prepared answer. Raises `TimeoutError`, which closes the connection."""
        async with asyncio.timeout(self._limits.patience):
            await answer.write_eof()
        return answer

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(_SWEEP_SECONDS, self._limits.idle / 4))
            now = asyncio.get_running_loop().time()
            late = [one for one in self.clients.waiting if isinstance(one, _Connection) and one.is_late(now)]
            for protocol in (*self.clients.overdue(now), *late):
                if isinstance(protocol, RequestHandler):
                    _abort(protocol)


class _Connection(RequestHandler):
    """aiohttp's side of a connection. `began`: when the first byte of the headers that are awaited came; None without
    one."""

    __slots__ = ("began",)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.began: float | None = asyncio.get_running_loop().time()

    def data_received(self, data: bytes) -> None:
        if self.began is None:
            self.began = asyncio.get_running_loop().time()
        super().data_received(data)

    def is_late(self, now: float) -> bool:
        """Tell whether headers are awaited for too long, by the next sweep (rule 2)."""
        return self.began is not None and now - self.began > least_rate.RATE_SECONDS - _SWEEP_SECONDS


class _Server(web.Server):
    """aiohttp's server, which also reports the end of each connection."""

    def __init__(self, respond: Respond, disconnected: Callable[[RequestHandler], None]) -> None:
        # Compressed bodies are not decompressed. Faults of clients are not logged, so that no client can fill the log.
        super().__init__(respond, access_log=None, logger=_VISITORS_LOG, auto_decompress=False, lingering_time=1.0)
        self._disconnected = disconnected

    def __call__(self) -> RequestHandler:
        connection = _Connection(self, loop=self._loop, **self._kwargs)
        connection.began = None
        return connection

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._disconnected(handler)


def _abort(protocol: RequestHandler) -> None:
    if protocol.transport is not None:
        protocol.transport.abort()


async def _receive(connection: socket.socket, most: int, flags: int) -> bytes:
    """Receive from a socket that no transport has yet."""
    while True:
        try:
            return connection.recv(most, flags)
        except BlockingIOError:
            await anyio.wait_readable(connection)


def _listening(address: str) -> socket.socket:
    parsed = address_of(address)
    if not parsed.is_listening:
        raise LocalNetworkFault(
            f"{address} is no address to listen on for HTTPS: write /ip4/0.0.0.0/tcp/4311 or the like"
        )
    family = socket.AF_INET if parsed.kind == "ip4" else socket.AF_INET6
    try:
        opened = socket.create_server((parsed.host, parsed.port or 0), family=family, backlog=_BACKLOG)
    except OSError as error:
        why = str(error.strerror or error).partition(" (")[0]  # the address follows
        raise LocalNetworkFault(f"cannot listen on {address} ({why}): choose another port in https.listen") from error
    opened.setblocking(False)
    return opened
