"""The page's listening sockets, under the limits of coordinator/web/connection_limits.py.

Rules
1. The limits are checked before a connection costs more than its descriptor. A refused connection is closed at once and
   counted; the log names it at a limited rate.
2. A shortage of descriptors stops nothing: accepting is tried again after `_ACCEPT_RETRY_SECONDS` seconds.
"""

import asyncio
import errno
import math
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from echo2.coordinator.web.connection_limits import MOST_HEADERS, ClientConnections, WebLimits
from echo2.p2p.limits.subnets import RefusalCounter
from echo2.runtime.descriptors import SHORTAGES, is_shortage
from echo2.runtime.errors import LocalFault

_BACKLOG = 1024  # a queued connection costs no descriptor; a dropped one costs its client a 1 s retry
_SWEEP_SECONDS = 1.0  # seconds between two closings of idle connections
_ACCEPT_RETRY_SECONDS = 0.1  # seconds
_SHUTDOWN_SECONDS = 1.0  # seconds for open requests at shutdown

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PageConnection(asyncio.Protocol):
    """One connection: aiohttp's protocol behind a limit of `most` bytes since the last request. `lost`: called when the
    connection has ended."""

    def __init__(self, inner: RequestHandler, ip: str, most: int, lost: Callable[["PageConnection"], None]) -> None:
        self._inner = inner
        self._most = most
        self._lost = lost
        self.ip = ip
        self.unread = 0
        self._aborted = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._inner.connection_made(transport)
        if self._aborted:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self.unread += len(data)
        if self.unread > self._most:
            self.cut()
        else:
            self._inner.data_received(data)

    def eof_received(self) -> None:
        self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)
        self._lost(self)

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
            shutdown_timeout=_SHUTDOWN_SECONDS,
            lingering_time=0.0,
            max_headers=MOST_HEADERS,
            max_line_size=limits.head // 4,
            max_field_size=limits.head // 2,
        )
        self._sockets: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, host: str, port: int) -> int:
        """Listen and return the port; `port` 0 chooses a free one. Raises `LocalFault`."""
        await self._runner.setup()
        try:
            self._listen(host, port)
        except OSError as error:
            await self.stop()
            why = error.strerror or str(error)
            raise LocalFault(
                f"the page cannot be served at {host} port {port} ({why}): set another web.port (0: any free one)"
            ) from error
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
                self._sockets.append(_listening(family, (address[0], port or self._port(), *address[2:])))
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                lacking = error
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
        client = PageConnection(server(), ip, self._limits.head, self.connections.remove)
        evicted = self.connections.add(client, ip, self._clock())
        if isinstance(evicted, PageConnection):
            evicted.cut()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: client, connection)
        except OSError:
            self.connections.remove(client)
            connection.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            for client in self.connections.overdue(self._clock()):
                if isinstance(client, PageConnection):
                    client.cut()

    @web.middleware
    async def _limit_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse requests above the rate limit, and GET and HEAD requests with a body. Close the connection after any
        request with a body."""
        client = None if request.transport is None else request.transport.get_protocol()
        if not isinstance(client, PageConnection):
            return await handler(request)
        client.unread = 0
        wait = self.connections.admit(client, client.ip, self._clock())
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
        finally:
            self.connections.on_answer(client, self._clock())
        if request.body_exists:
            answer.force_close()
        return answer


def _error(kind: type[web.HTTPException], text: str, headers: Mapping[str, str] | None = None) -> web.HTTPException:
    return kind(text=text, headers=headers)


def _listening(family: int, place: tuple[Any, ...]) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setblocking(False)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            with suppress(AttributeError, OSError):
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind(place)
        opened.listen(_BACKLOG)
    except BaseException:
        opened.close()
        raise
    return opened
