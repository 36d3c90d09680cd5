"""The web site of one run: routes, headers, and response bodies cached for all visitors.

1. The state is built at most once per second, for at most `REFRESH_TIME_SHARE` of the time. Each body is rendered and
   compressed once per state, so 1,000 visitors cost as much as one. Threads do this beside the event loop, one task at
   a time for each state. Meanwhile visitors get the state before, for at most `GRACE_SECONDS` after a new one was due;
   the new one is shown with the bodies that were asked for of the one before. Where that fails the old one stays for as
   long, and the first failure in a row is logged; it is not tried again within the second.
2. The page loads nothing from other hosts and has no inline script or style; the content security policy enforces it.
3. The site is read-only: no cookie, no form, no session. It answers only under the page's own names, and other web
   sites may read it only at a public address (host_names.py).
4. A state has the first nodes of the ranking; the complete ranking is served in pages (node_ranking.py).
5. Connections and requests are limited (page_listener.py), and reads per party (rationed_reads.py).
6. `/ledger/proof/SIZE/ENTRY` has the proof of an entry under the signed head of SIZE entries, an encoded EntryProof: it
   never changes, so caches may keep it. Tree and entries as static files: tile_routes.py.
   A lease's proof as a page: proof_page.py.
"""

import asyncio
import gzip
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

import anyio.to_thread
import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from echo2.coordinator.metrics.views import RunState
from echo2.coordinator.web import csv_export, host_names, openapi, page, prometheus, proof_page, step_rows, task_rows
from echo2.coordinator.web.node_ranking import Ranking, Source
from echo2.coordinator.web.page_listener import Listener, WebLimits, party_of
from echo2.coordinator.web.pages.node_page import NodePages, NodeSource
from echo2.coordinator.web.proof_page import LeaseProof
from echo2.coordinator.web.rationed_reads import RationedReads
from echo2.coordinator.web.tile_routes import FOR_EVER, TileRoutes, TileSource, etag_of, headers_unless_known
from echo2.p2p.wire_types import encode
from echo2.protocol.ledger_heads import EntryProof

SECURITY: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
STATIC: Final = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "proof.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_HTML, _JSON = "text/html; charset=utf-8", "application/json"
LEAST_REFRESH_SECONDS: Final = 1.0
"""Seconds from one refresh of the state to the next (rule 1)."""
REFRESH_TIME_SHARE: Final = 0.2
GRACE_SECONDS: Final = 1.0
_WORTH_PACKING = 1000  # bytes

log = structlog.get_logger("coordinator")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Render = Callable[[RunState], bytes]

Bodies = Mapping[str, tuple[str, Render]]

BODIES: Final[Bodies] = {
    "/": (_HTML, lambda state: page.page(state).encode()),
    "/invite": ("text/plain; charset=utf-8", lambda state: state.invite.encode()),
    "/live": (_HTML, lambda state: page.live(state).encode()),
    "/api/v1/run": (_JSON, msgspec.json.encode),
    "/api/v1/teams": (_JSON, lambda state: msgspec.json.encode(state.teams)),
    "/api/v1/steps.csv": (csv_export.CONTENT_TYPE, lambda state: step_rows.as_csv(state.steps).encode()),
    "/api/v1/tasks.csv": (csv_export.CONTENT_TYPE, lambda state: task_rows.as_csv(state.tasks).encode()),
    "/api/v1/market.csv": (csv_export.CONTENT_TYPE, lambda state: csv_export.of_supply(state.market).encode()),
    "/api/v1/openapi.json": (_JSON, lambda state: openapi.document()),
    "/ledger/head": ("text/plain; charset=utf-8", lambda state: state.ledger.note.encode()),
    "/metrics": (prometheus.CONTENT_TYPE, prometheus.exposition),
}
"""Path -> (content type, renderer of the body from a state)."""


class Shown(Source, NodeSource, TileSource, Protocol):
    """The source of a site's data: coordinator/web/run_view_builder.py."""

    async def current_state(self) -> RunState:
        """Return the current state of the run. Awaited on the event loop."""

    def lease_proof(self, lease: str) -> LeaseProof | None:
        """Return the proof of a lease's own entry, by 32 hexadecimal digits; None: there is none. Called in a
        thread."""

    def ledger_proof(self, entry: int, size: int) -> EntryProof | None:
        """Return the proof of a ledger entry under a signed head; None: there is none. Called in a thread."""


class RenderedBody(NamedTuple):
    """A body and its ETag."""

    content: bytes
    etag: str


class StateBodies:
    """A state and its bodies, each rendered once, in a thread. `bodies`: paths and renderers, as `BODIES`. `asked`:
    paths that were asked for, and whether packed. `due`: when a new state is due, seconds."""

    def __init__(self, state: RunState, bodies: Bodies, due: float) -> None:
        self.state = state
        self.due = due
        self.asked = set[tuple[str, bool]]()
        self._renderers = bodies
        self._rendered: dict[tuple[str, bool], RenderedBody] = {}
        self._working = asyncio.Lock()

    async def body(self, path: str, packed: bool) -> RenderedBody:
        """Return a body, gzipped if `packed`."""
        self.asked.add((path, packed))
        await self.render([(path, packed)])
        return self._rendered[path, packed]

    async def render(self, wanted: Iterable[tuple[str, bool]]) -> None:
        """Render the bodies that are not rendered yet."""
        for path, packed in wanted:
            if (path, packed) not in self._rendered:
                async with self._working:
                    if (path, packed) not in self._rendered:
                        await anyio.to_thread.run_sync(self._render, path, packed)

    def _render(self, path: str, packed: bool) -> None:
        if (path, False) not in self._rendered:
            content = self._renderers[path][1](self.state)
            self._rendered[path, False] = RenderedBody(content, etag_of(content))
        if packed:
            content = gzip.compress(self._rendered[path, False].content, 6, mtime=0)
            self._rendered[path, True] = RenderedBody(content, etag_of(content))


class ResponseCache:
    """A cache of the state and its bodies, refreshed by rule 1. `clock`: monotonic seconds. `bodies`: paths and
    renderers, as `BODIES`."""

    def __init__(
        self, build: Callable[[], Awaitable[RunState]], clock: Callable[[], float], bodies: Bodies = BODIES
    ) -> None:
        self._build = build
        self._clock = clock
        self._renderers = bodies
        self._shown: StateBodies | None = None
        self._refreshing: asyncio.Task[StateBodies] | None = None
        """The refresh that goes on, or one that failed."""
        self._failing, self._failed_at = False, 0.0

    def add_to(self, app: web.Application, prefix: str = "") -> None:
        """Add a route for each body, and end a refresh with the application. `prefix`: begin of all paths."""
        for path, (kind, _) in self._renderers.items():
            app.router.add_get(prefix + path, self._handler(path, kind))
        app.on_cleanup.append(self._stop)

    def _handler(self, path: str, kind: str) -> Handler:
        async def show(request: web.Request) -> web.StreamResponse:
            packed = "gzip" in request.headers.get("Accept-Encoding", "")
            body = await (await self._present()).body(path, packed)
            headers = {"Content-Type": kind, "Cache-Control": "no-cache", "Vary": "Accept-Encoding", "ETag": body.etag}
            if packed:
                headers["Content-Encoding"] = "gzip"
            return web.Response(body=body.content, headers=headers_unless_known(request, headers))

        return show

    async def current_state(self) -> RunState:
        """Return the current state, at most as old as rule 1 allows."""
        return (await self._present()).state

    async def _present(self) -> StateBodies:
        """Return what is shown now. Raises what the builder of the state does, where none may be shown."""
        now, shown = self._clock(), self._shown
        if shown is not None and now < shown.due + GRACE_SECONDS:
            if now >= shown.due and self._refreshing is None:
                self._begin_refresh()
            return shown
        failed = self._refreshing is not None and self._refreshing.done()
        if self._refreshing is None or (failed and now >= self._failed_at + LEAST_REFRESH_SECONDS):
            self._begin_refresh()
        assert self._refreshing is not None
        return await asyncio.shield(self._refreshing)

    def _begin_refresh(self) -> None:
        self._refreshing = asyncio.create_task(self._refresh(), name="page's refresh")
        self._refreshing.add_done_callback(self._note_end)

    def _note_end(self, refresh: asyncio.Task[StateBodies]) -> None:
        """Log that a refresh failed, unless the one before did too: perhaps nobody waits for it."""
        if refresh.cancelled():
            return
        error = refresh.exception()
        if error is not None and not self._failing:
            log.error("page not refreshed", kind=type(error).__name__, reason=str(error))
        self._failing, self._failed_at = error is not None, self._clock()

    async def _refresh(self) -> StateBodies:
        """Build a state, render what was asked for of the one before, and show it."""
        began = self._clock()
        state = await self._build()
        ended = self._clock()
        due = ended + max(LEAST_REFRESH_SECONDS, (ended - began) / REFRESH_TIME_SHARE)
        fresh = StateBodies(state, self._renderers, due)
        try:
            if self._shown is not None:
                await fresh.render(sorted(self._shown.asked))
        finally:  # a body that cannot be rendered keeps no other back
            self._shown, self._refreshing = fresh, None
        return fresh

    async def _stop(self, app: web.Application) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)


def application(
    run: Shown,
    clock: Callable[[], float] = time.monotonic,
    *,
    host: str = "",
    names: Collection[str] = (),
    cache: ResponseCache | None = None,
) -> web.Application:
    """Return the web application of a run. `host`: the listening host. `names`: the public names of the page. `cache`:
    cache of the run's state, where others use it too."""
    page.compile_templates()
    response_cache = cache or ResponseCache(run.current_state, clock)
    public = {name.lower() for name in names}
    app = web.Application(middlewares=[check_host(public | {host.lower()})])
    app.on_response_prepare.append(_add_headers(public))
    response_cache.add_to(app)
    for name, kind in STATIC.items():
        app.router.add_get(f"/static/{name}", answer_static(page.asset(name), kind))
    Ranking(run, response_cache.current_state, clock).add_to(app)
    NodePages(run, response_cache.current_state, clock).add_to(app)
    app.router.add_get("/ledger/proof/{lease:[0-9a-f]{32}}", _lease_proof(app, run, clock))
    app.router.add_get("/ledger/proof/{size:[0-9]{1,15}}/{entry:[0-9]{1,15}}", _proof(app, run, clock))
    TileRoutes(run, clock).add_to(app)
    app.router.add_get("/healthz", _healthy)
    return app


class Site:
    """A site being served. `port`: the actual listening port."""

    def __init__(self, listener: Listener, host: str, port: int) -> None:
        self._listener = listener
        self.host = host
        self.port = port

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}/" if ":" in host else f"http://{host}:{self.port}/"

    def count_refusals(self) -> dict[str, int]:
        """Return the number of connections refused since the start, by limit."""
        return self._listener.refusals.counts()

    async def stop(self) -> None:
        """Close the port and every connection."""
        await self._listener.stop()


async def serve_web(
    app: web.Application, host: str, port: int, limits: WebLimits | None = None, setting: str = "web.port"
) -> Site:
    """Serve an application; `port` 0 chooses a free port. `setting`: setting of the port. Raises `LocalFault` if
    listening fails."""
    listener = Listener(app, limits or WebLimits(), time.monotonic)
    return Site(listener, host, await listener.start(host, port, setting))


def answer_static(body: bytes, kind: str) -> Handler:
    packed = gzip.compress(body, 9, mtime=0)

    async def show(request: web.Request) -> web.StreamResponse:
        headers = {"Content-Type": kind, "Vary": "Accept-Encoding", **FOR_EVER}
        if len(body) < _WORTH_PACKING or "gzip" not in request.headers.get("Accept-Encoding", ""):
            return web.Response(body=body, headers=headers)
        return web.Response(body=packed, headers=headers | {"Content-Encoding": "gzip"})

    return show


def _proof(app: web.Application, run: Shown, clock: Callable[[], float]) -> Handler:
    """Return the handler of proofs of ledger entries (rule 6)."""
    reads = RationedReads("proofs of entries", clock)
    reads.end_with(app)

    async def show(request: web.Request) -> web.StreamResponse:
        entry, size = int(request.match_info["entry"]), int(request.match_info["size"])
        proof = await reads.read(party_of(request), lambda: run.ledger_proof(entry, size))
        if proof is None:
            raise web.HTTPNotFound(text=f"no signed head has {size} entries, or entry {entry} is not among them")
        return web.Response(body=encode(proof), content_type="application/msgpack", headers=FOR_EVER)

    return show


def _lease_proof(app: web.Application, run: Shown, clock: Callable[[], float]) -> Handler:
    """Return the handler of the pages of proof_page.py."""
    reads = RationedReads("proofs of leases", clock)
    reads.end_with(app)

    async def show(request: web.Request) -> web.StreamResponse:
        lease = request.match_info["lease"]
        proof = await reads.read(party_of(request), lambda: run.lease_proof(lease))
        if proof is None:
            raise web.HTTPNotFound(
                text=f"no signed head covers an entry of lease {lease} yet, or it has none of its own: "
                "`echo2-node receipts fetch` brings the proof of such a receipt"
            )
        return web.Response(
            body=proof_page.render_page(proof), headers={"Content-Type": _HTML, "Cache-Control": "no-store"}
        )

    return show


async def _healthy(request: web.Request) -> web.StreamResponse:
    return web.json_response({"ok": True}, headers={"Cache-Control": "no-store"})


def _add_headers(public: Collection[str]) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Return a hook that adds the headers of rules 2 and 3 to every answer, errors included."""

    async def head(request: web.Request, answer: web.StreamResponse) -> None:
        answer.headers.update(SECURITY)
        if request.path.startswith("/api/") and host_names.readable(request.headers.get("Host"), public):
            answer.headers["Access-Control-Allow-Origin"] = "*"

    return head


def check_host(names: Collection[str]) -> Middleware:
    """Return a middleware that refuses requests with an unknown Host (rule 3)."""

    @web.middleware
    async def named(request: web.Request, handler: Handler) -> web.StreamResponse:
        asked = request.headers.get("Host")
        if not host_names.is_known_host(asked, names):
            raise web.HTTPMisdirectedRequest(text=host_names.refusal(asked or ""))
        return await handler(request)

    return named
