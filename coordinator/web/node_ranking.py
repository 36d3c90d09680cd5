"""The complete ranking of nodes, in pages: as HTML, as JSON, and as one CSV stream.

Rules
1. A page has at most `PAGE_NODES` nodes, so no answer grows with the run. It links the next page by the last node shown
   (coordinator/web/node_rows.py): HTML in a link, JSON in the header Link.
2. The CSV is sent page by page while it is read, and is never in memory as a whole.
3. Pages are read one at a time, for a share of the time over all visitors (rationed_reads.py). The first page stays in
   memory for `PAGE_SECONDS`, and any cache may hold each page for as long. Then one visitor waits while it is read
   again, and others get the former one.
"""

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

import msgspec
from aiohttp import web

from echo2.coordinator.metrics.views import RunState
from echo2.coordinator.web import csv_export, page
from echo2.coordinator.web.node_rows import Cursor, Page
from echo2.coordinator.web.page_listener import client_receives, party_of
from echo2.coordinator.web.rationed_reads import RationedReads
from echo2.coordinator.web.tile_routes import etag_of, headers_unless_known
from echo2.p2p.errors import Malformed

PAGE_NODES: Final = 400
"""Nodes per page; below 1 MB even with the longest names and refusals for every reason."""
CSV_PAGE_SECONDS: Final = 30.0
"""Seconds for a client to receive a page of the CSV."""
T = TypeVar("T")
PAGE_SECONDS: Final = 10
RENEWAL_SECONDS: Final = 1.0
"""Seconds for which the first page is shown beyond that, while it is read again."""
_CACHED = {"Cache-Control": f"public, max-age={PAGE_SECONDS}", "Vary": "Accept-Encoding"}


class Source(Protocol):
    """The source of the pages: coordinator/web/run_view_builder.py."""

    def nodes(self, after: Cursor | None, most: int) -> Page:
        """Return at most `most` nodes after `after`, most accepted work first. Called in a thread."""


class Ranking:
    """The handlers of the ranking. `state`: returns the current state. `clock`: monotonic seconds."""

    def __init__(self, source: Source, state: Callable[[], Awaitable[RunState]], clock: Callable[[], float]) -> None:
        self._source = source
        self._state = state
        self._clock = clock
        self._reads = RationedReads("the list of nodes", clock)
        self._first: dict[tuple[str, int, bool], tuple[float, bytes, Cursor | None]] = {}
        """Content type, nodes of a whole page, packed -> until when the first page is cached, its body, and what
        follows."""

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        self._reads.end_with(app)
        app.router.add_get("/nodes", self.html)
        app.router.add_get("/api/v1/nodes", self.json)
        app.router.add_get("/api/v1/nodes.csv", self.csv)

    async def html(self, request: web.Request) -> web.StreamResponse:
        """Answer with an HTML page of `page.NODES_SHOWN` nodes."""
        after, state = _after(request), await self._state()
        return await self._answer(
            request,
            "text/html; charset=utf-8",
            after,
            page.NODES_SHOWN,
            lambda shown: page.ranking(state, shown).encode(),
        )

    async def json(self, request: web.Request) -> web.StreamResponse:
        """Answer with rows as JSON, at most the query's `limit`."""
        limit = request.query.get("limit", str(PAGE_NODES))
        most = min(int(limit), PAGE_NODES) if limit.isdecimal() and len(limit) < 10 else 0
        if not most:
            raise web.HTTPBadRequest(text=f"limit should be a number from 1 to {PAGE_NODES}")
        return await self._answer(
            request, "application/json", _after(request), most, lambda shown: msgspec.json.encode(shown.rows)
        )

    async def csv(self, request: web.Request) -> web.StreamResponse:
        """Answer with all rows as CSV (rule 2)."""
        market = (await self._state()).market is not None
        after, text = await self._read(
            request, None, PAGE_NODES, lambda shown: (shown.after, csv_export.of_nodes(shown.rows, market=market))
        )
        answer = web.StreamResponse(headers={"Content-Type": csv_export.CONTENT_TYPE, "Cache-Control": "no-store"})
        await answer.prepare(request)
        if request.method == "HEAD":
            return answer
        await _send(request, answer, text)
        while after is not None:
            after, text = await self._read(
                request, after, PAGE_NODES, lambda shown: (shown.after, csv_export.rows_of(shown.rows)), begun=True
            )
            await _send(request, answer, text)
        await answer.write_eof()
        return answer

    async def _answer(
        self, request: web.Request, kind: str, after: Cursor | None, most: int, render: Callable[[Page], bytes]
    ) -> web.StreamResponse:
        packed = "gzip" in request.headers.get("Accept-Encoding", "")

        def rendered(shown: Page) -> tuple[bytes, Cursor | None]:
            body = render(shown)
            return gzip.compress(body, 6, mtime=0) if packed else body, shown.after

        now, key = self._clock(), (kind, most, packed)
        cached = None if after is not None else self._first.get(key)
        if cached is not None and now < cached[0]:
            _, body, following = cached
        else:
            if cached is not None and now < cached[0] + PAGE_SECONDS:  # others get it while it is read again
                self._first[key] = now + RENEWAL_SECONDS, *cached[1:]
            try:
                body, following = await self._read(request, after, most, rendered)
            except BaseException:
                if cached is not None:  # the next visitor reads: refusals of one keep no old page for others
                    self._first[key] = cached
                raise
            if after is None and most in (PAGE_NODES, page.NODES_SHOWN):
                self._first[key] = self._clock() + PAGE_SECONDS, body, following
        headers = {"Content-Type": kind, **_CACHED, "ETag": etag_of(body)}
        if packed:
            headers["Content-Encoding"] = "gzip"
        if following is not None:
            headers["Link"] = f'<{request.path.rpartition("/")[2]}?after={following}>; rel="next"'
        return web.Response(body=body, headers=headers_unless_known(request, headers))

    async def _read(
        self, request: web.Request, after: Cursor | None, most: int, render: Callable[[Page], T], *, begun: bool = False
    ) -> T:
        """Read a page and render it (rule 3). `begun`: see `RationedReads.read`."""
        return await self._reads.read(party_of(request), lambda: render(self._source.nodes(after, most)), begun=begun)


def _after(request: web.Request) -> Cursor | None:
    text = request.query.get("after")
    try:
        return None if text is None else Cursor.read(text)
    except Malformed as error:
        raise web.HTTPBadRequest(text=str(error)) from error


async def _send(request: web.Request, answer: web.StreamResponse, text: str) -> None:
    """Send a part. Raises `ConnectionError` if the client is too slow, which closes the connection."""
    try:
        with client_receives(request):
            async with asyncio.timeout(CSV_PAGE_SECONDS):
                await answer.write(text.encode())
    except TimeoutError as error:
        raise ConnectionResetError("the client receives the list too slowly") from error
