"""The web site of one run: routes, headers, and the bodies that all visitors share.

1. The picture is taken at most once a second, and for at most `SHARE` of the time. Each body is rendered and packed
   once a picture: a thousand visitors cost as much as one. All of it is done in a thread beside the event loop, one
   thing at a time.
2. Nothing is loaded from elsewhere and nothing runs inline: the content security policy says so, and page and styles
   are made so that it holds.
3. Everything here is public and read-only; there is no cookie, no form, no state.
"""

import asyncio
import gzip
import time
from collections.abc import Awaitable, Callable
from typing import Final

import anyio.to_thread
import msgspec
from aiohttp import web

from coordinator.state import RunState
from coordinator.web import metrics, page, table
from p2p.errors import LocalFault

SECURITY: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
STATIC: Final = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
_HTML, _JSON = "text/html; charset=utf-8", "application/json"
SHARE: Final = 0.2
_WORTH_PACKING = 1000  # bytes
_FOR_EVER = {"Cache-Control": "public, max-age=31536000, immutable"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Render = Callable[[RunState], bytes]

BODIES: Final[dict[str, tuple[str, Render]]] = {
    "/": (_HTML, lambda state: page.page(state).encode()),
    "/live": (_HTML, lambda state: page.live(state).encode()),
    "/api/v1/run": (_JSON, msgspec.json.encode),
    "/api/v1/nodes": (_JSON, lambda state: msgspec.json.encode(state.nodes)),
    "/api/v1/nodes.csv": (table.CONTENT_TYPE, lambda state: table.of_nodes(state.nodes).encode()),
    "/metrics": (metrics.CONTENT_TYPE, metrics.exposition),
}
"""Path -> content type, and the body of a picture."""


class Gallery:
    """The picture and its bodies, kept as long as rule 1 says. `clock`: monotonic seconds."""

    def __init__(
        self, picture: Callable[[], Awaitable[RunState]], clock: Callable[[], float], *, seconds: float = 1.0
    ) -> None:
        self._picture, self._clock, self._seconds = picture, clock, seconds
        self._state: RunState | None = None
        self._due = 0.0
        self._bodies: dict[tuple[str, bool], bytes] = {}
        self._working = asyncio.Lock()

    async def body(self, path: str, packed: bool) -> bytes:
        """A body of the present picture, gzipped if `packed`."""
        async with self._working:
            state = await self._present()
            if (path, packed) not in self._bodies:
                await anyio.to_thread.run_sync(self._render, state, path, packed)
            return self._bodies[path, packed]

    async def _present(self) -> RunState:
        began = self._clock()
        if self._state is None or began >= self._due:
            self._state = await self._picture()
            ended = self._clock()
            self._due = ended + max(self._seconds, (ended - began) / SHARE)
            self._bodies.clear()
        return self._state

    def _render(self, state: RunState, path: str, packed: bool) -> None:
        if (path, False) not in self._bodies:
            self._bodies[path, False] = BODIES[path][1](state)
        if packed:
            self._bodies[path, True] = gzip.compress(self._bodies[path, False], 6, mtime=0)


def application(
    picture: Callable[[], Awaitable[RunState]], clock: Callable[[], float] = time.monotonic
) -> web.Application:
    """The site of the run that `picture` shows. `picture` is awaited on the event loop."""
    page.compile_templates()
    gallery = Gallery(picture, clock)
    app = web.Application(middlewares=[_guarded])
    for path in BODIES:
        app.router.add_get(path, _shown(gallery, path))
    for name, kind in STATIC.items():
        app.router.add_get(f"/static/{name}", _asset(page.asset(name), kind))
    app.router.add_get("/healthz", _healthy)
    return app


class Site:
    """A site that is being served. `port`: the one that is really listened on."""

    def __init__(self, runner: web.AppRunner, host: str, port: int) -> None:
        self._runner, self.host, self.port = runner, host, port

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}/" if ":" in host else f"http://{host}:{self.port}/"

    async def stop(self) -> None:
        """Close the port and every connection."""
        await self._runner.cleanup()


async def serve_web(app: web.Application, host: str, port: int) -> Site:
    """Listen; `port` 0 is any free one. Raises `LocalFault` where that cannot be."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        why = error.strerror or str(error)
        raise LocalFault(
            f"the page cannot be served at {host} port {port} ({why}): set another web.port (0: any free one)"
        ) from error
    return Site(runner, host, runner.addresses[0][1])


def _shown(gallery: Gallery, path: str) -> Handler:
    async def show(request: web.Request) -> web.StreamResponse:
        packed = "gzip" in request.headers.get("Accept-Encoding", "")
        body = await gallery.body(path, packed)
        headers = {"Content-Type": BODIES[path][0], "Cache-Control": "no-store", "Vary": "Accept-Encoding"}
        if packed:
            headers["Content-Encoding"] = "gzip"
        if path.startswith("/api/"):
            headers["Access-Control-Allow-Origin"] = "*"
        return web.Response(body=body, headers=headers)

    return show


def _asset(body: bytes, kind: str) -> Handler:
    packed = gzip.compress(body, 9, mtime=0)

    async def show(request: web.Request) -> web.StreamResponse:
        headers = {"Content-Type": kind, "Vary": "Accept-Encoding", **_FOR_EVER}
        if len(body) < _WORTH_PACKING or "gzip" not in request.headers.get("Accept-Encoding", ""):
            return web.Response(body=body, headers=headers)
        return web.Response(body=packed, headers=headers | {"Content-Encoding": "gzip"})

    return show


async def _healthy(request: web.Request) -> web.StreamResponse:
    return web.json_response({"ok": True}, headers={"Cache-Control": "no-store"})


@web.middleware
async def _guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Rule 2, on every answer, also on errors."""
    try:
        answer = await handler(request)
    except web.HTTPException as error:
        error.headers.update(SECURITY)
        raise
    answer.headers.update(SECURITY)
    return answer
