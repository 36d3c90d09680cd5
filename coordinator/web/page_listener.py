"""The page's listening sockets, under the limits of p2p/https/client_limits.py.

Rules
1. The limits are checked before a connection costs more than its descriptor. A refused connection is closed at once and
   counted; the log names it at a limited rate.
2. A shortage of descriptors stops nothing: accepting is tried again after `_ACCEPT_RETRY_SECONDS` seconds.
3. A request has a head of at most `head` bytes and no body. A connection that sends more between two requests is
   closed, and so is one whose head is not whole `RATE_SECONDS` after its first byte; after the connection's start, the
   first head.
4. A trusted proxy says for whom it connects: by a PROXY header, or by X-Forwarded-For, which counts for the page alone.
   From any other address a PROXY header ends the connection, and X-Forwarded-For is not read.
5. A request that is no HTTP is answered 400 and not logged, nor is an answer whose visitor leaves, so that no visitor
   can fill the log.
6. A visitor who receives a long answer, part by part, keeps a place no better than one without a request: it gives way
   to new connections (`client_receives`).
"""

import asyncio
import errno
import logging
import math
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from echo2.p2p.errors import Malformed
from echo2.p2p.https.client_limits import ClientConnections, ClientLimits
from echo2.p2p.limits.connection_places import ConnectionRefused
from echo2.p2p.limits.least_rate import RATE_SECONDS
from echo2.p2p.limits.proxy_header import begins_header, may_begin_header, parse, unnamed_proxy
from echo2.p2p.limits.subnets import RefusalCounter
from echo2.runtime.descriptors import SHORTAGES, is_shortage
from echo2.runtime.errors import LocalFault

MOST_HEADERS: Final = 64
_BACKLOG = 1024  # a queued connection costs no descriptor; a dropped one costs its client a 1 s retry
_SWEEP_SECONDS = 1.0  # seconds between two closings of idle connections
_ACCEPT_RETRY_SECONDS = 0.1  # seconds
_SHUTDOWN_SECONDS = 1.0  # seconds for open requests at shutdown

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _is_own_fault(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError | ConnectionError)


SERVER_LOG: Final = logging.getLogger("page")
"""The log of aiohttp's server, without the faults of visitors (rule 5)."""
SERVER_LOG.addFilter(_is_own_fault)


@dataclass(eq=False)
class WebLimits(ClientLimits):
    """The limits of the page. `head`: bytes."""

    section: str = "web"
    connections: int = 256
    per_visitor: int = 32
    rate: float = 50.0
    burst: float = 200.0
    idle: float = 30.0
    bounds_private: bool = False
    head: int = 16 << 10


class PageConnection(asyncio.Protocol):
    """One connection: aiohttp's protocol behind a limit of `most` bytes since the last request. `begun`: handler of
    the first bytes, which returns those that are the client's, or None while it needs more. `lost`: called when the
    connection has ended. `receiving`: called with whether its client is to receive a part of an answer. `clock`:
    monotonic seconds."""

    def __init__(
        self,
        inner: RequestHandler,
        ip: str,
        most: int,
        begun: Callable[["PageConnection", bytes], bytes | None],
        lost: Callable[["PageConnection"], None],
        receiving: Callable[["PageConnection", bool], None],
        clock: Callable[[], float],
    ) -> None:
        self._inner = inner
        self._most = most
        self._begun: Callable[[PageConnection, bytes], bytes | None] | None = begun
        self._first = b""
        self._lost, self._receiving = lost, receiving
        self.ip, self.party = ip, ""
        self.unread = 0
        self._clock, self._began, self._busy = clock, clock(), False
        self._aborted = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._inner.connection_made(transport)
        if self._aborted:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._begun is not None:
            self._first += data
            if (rest := self._begun(self, self._first)) is None:
                return
            data, self._first, self._begun = rest, b"", None
        if not (self.unread or self._busy):
            self._began = min(self._began, self._clock())
        self.unread += len(data)
        if self.unread > self._most:
            self.cut()
        else:
            self._inner.data_received(data)

    def on_request(self) -> None:
        """Note that the head of a request is whole."""
        self.unread, self._began, self._busy = 0, math.inf, True

    def on_answer(self) -> None:
        """Note that a request is answered; the next one may have begun to come."""
        self._began, self._busy = self._clock() if self.unread else math.inf, False

    def is_late(self, now: float) -> bool:
        """Tell whether a head is not whole in time, by the next sweep (rule 3)."""
        return now - self._began > RATE_SECONDS - _SWEEP_SECONDS

    def eof_received(self) -> None:
        self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)
        self._lost(self)

    @contextmanager
    def receives(self) -> Iterator[None]:
        """Have it give way to others during the block (rule 6)."""
        self._receiving(self, True)
        try:
            yield
        finally:
            self._receiving(self, False)

    def cut(self) -> None:
        """Abort the connection, dropping unsent data."""
        self._aborted = True
        if self._transport is not None:
            self._transport.abort()


class Listener:
    """The server of a web application, under limits. `clock`: monotonic seconds."""

    def __init__(self, app: web.Application, limits: WebLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self.connections = ClientConnections(limits)
        self.refusals = RefusalCounter(clock)
        app.middlewares.append(self._limit_request)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=SERVER_LOG,
            shutdown_timeout=_SHUTDOWN_SECONDS,
            lingering_time=0.0,
            max_headers=MOST_HEADERS,
            max_line_size=limits.head // 4,
            max_field_size=limits.head // 2,
        )
        self._sockets: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, host: str, port: int, setting: str = "web.port") -> int:
        """Listen and return the port; `port` 0 chooses a free one. `setting`: setting of the port. Raises
        `LocalFault`."""
        await self._runner.setup()
        try:
            self._listen(host, port)
        except OSError as error:
            await self.stop()
            why = (error.strerror or str(error)).partition(" (while")[0]  # the address is named anyway
            fix = f"{setting} (0: any free one)"
            if error.errno == errno.EADDRNOTAVAIL:
                fix = f"{setting.replace('web.port', 'web.host')}, with an address of this machine"
            raise LocalFault(f"the page cannot be served at {host} port {port} ({why}): set another {fix}") from error
        self._tasks = [asyncio.create_task(self._accept(one), name="page") for one in self._sockets]
        self._tasks.append(asyncio.create_task(self._sweep(), name="page's sweep"))
        return self._port()

    async def stop(self) -> None:
        """Close the port and every connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        for opened in self._sockets:
            opened.close()
        self._sockets.clear()
        await self._runner.cleanup()

    def _listen(self, host: str, port: int) -> None:
        """Listen on every address of `host`. An address that this machine lacks is skipped if another one opens."""
        lacking: OSError | None = None
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                place: Any = (address[0], port or self._port(), *address[2:])
                opened = socket.create_server(place, family=family, backlog=_BACKLOG)
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                lacking = error
                continue
            opened.setblocking(False)
            self._sockets.append(opened)
        if not self._sockets and lacking is not None:
            raise lacking

    def _port(self) -> int:
        return int(self._sockets[0].getsockname()[1]) if self._sockets else 0

    async def _accept(self, opened: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(opened)
            except OSError as error:  # out of descriptors, or the client closed before accept
                if is_shortage(error):
                    SHORTAGES.count_failure("accepting a connection with the page")
                await asyncio.sleep(_ACCEPT_RETRY_SECONDS)
                continue
            if (why := self.connections.refusal(address[0])) is not None:
                self.refusals.count(*why)
                connection.close()
                await asyncio.sleep(0)  # let other tasks run during a flood of refusals
                continue
            await self._admit(connection, address[0])

    async def _admit(self, connection: socket.socket, ip: str) -> None:
        server = self._runner.server
        assert server is not None
        client = PageConnection(
            server(), ip, self._limits.head, self._take_source, self.connections.remove, self._note_receiving,
            self._clock,
        )  # fmt: skip
        self._count(client)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: client, connection)
        except OSError:
            self.connections.remove(client)
            connection.close()

    def _count(self, client: PageConnection) -> None:
        evicted = self.connections.add(client, client.ip, self._clock())
        if isinstance(evicted, PageConnection):
            evicted.cut()

    def _note_receiving(self, client: PageConnection, receives: bool) -> None:
        if receives:
            self.connections.on_answer(client, self._clock())
        else:
            self.connections.on_whole(client)

    def _take_source(self, client: PageConnection, data: bytes) -> bytes | None:
        """Take the PROXY header at the start of a connection (rule 4). Return the bytes after it; None: it is not
        complete, or the connection was cut."""
        try:
            if client.ip not in self._limits.parties.proxies:
                if begins_header(data):
                    raise ConnectionRefused("proxy", unnamed_proxy(client.ip))
                return data
            if not may_begin_header(data):
                return data
            if (header := parse(data)) is None:
                return None
            if header.source is not None:
                self.connections.remove(client)
                client.ip = header.source[0]
                if (refused := self.connections.refusal(client.ip)) is not None:
                    raise ConnectionRefused(*refused)
                self._count(client)
            return data[header.size :]
        except Malformed as error:
            self.refusals.count("proxy", f"{client.ip}, a trusted proxy: {error}")
        except ConnectionRefused as refusal:
            self.refusals.count(refusal.limit, refusal.why)
        client.cut()
        return None

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = self._clock()
            late = [one for one in self.connections.waiting if isinstance(one, PageConnection) and one.is_late(now)]
            for client in (*self.connections.overdue(now), *late):
                if isinstance(client, PageConnection):
                    client.cut()

    @web.middleware
    async def _limit_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse requests above the rate limit, and GET and HEAD requests with a body. Close the connection after any
        request with a body."""
        client = _connection_of(request)
        if client is None:
            return await handler(request)
        client.on_request()
        parties = self._limits.parties
        ip = parties.proxies.client_of(client.ip, request.headers.getall("X-Forwarded-For", ()))
        party = parties.at(ip)
        client.party = party.name or party.household
        wait = self.connections.admit(client, self._clock(), ip)
        try:
            if wait:
                raise _error(web.HTTPTooManyRequests, "too many requests", {"Retry-After": str(math.ceil(wait))})
            if request.body_exists and request.method in ("GET", "HEAD"):
                raise _error(web.HTTPBadRequest, "a request may not have a body")
            answer = await handler(request)
        except web.HTTPException as error:
            if request.body_exists:
                error.force_close()
            raise
        except ConnectionError:
            client.cut()  # what it does not receive would keep it open
            raise
        finally:
            self.connections.on_answer(client, self._clock())
            client.on_answer()
        if request.body_exists:
            answer.force_close()
        return answer


def party_of(request: web.Request) -> str:
    """Return the party of the request that its connection serves now; "" without this listener."""
    client = _connection_of(request)
    return "" if client is None else client.party


@contextmanager
def client_receives(request: web.Request) -> Iterator[None]:
    """Have the client's connection give way to others while it receives a part of an answer (rule 6)."""
    client = _connection_of(request)
    if client is None:
        yield
        return
    with client.receives():
        yield


def _connection_of(request: web.Request) -> PageConnection | None:
    client = None if request.transport is None else request.transport.get_protocol()
    return client if isinstance(client, PageConnection) else None


def _error(kind: type[web.HTTPException], text: str, headers: Mapping[str, str] | None = None) -> web.HTTPException:
    return kind(text=text, headers=headers)
