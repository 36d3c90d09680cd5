"""The ledger as static files (accounts/ledger_tiles.py), and the sealed documents that a reader needs with them.

Rules
1. Tiles and bundles never change: any cache may hold whole ones for ever, and partial ones, which nobody wants once
   they are whole, for a day. Their ETag is the run's. Documents are not cached.
2. Reads are rationed (rationed_reads.py). A tile has at most 8 KiB, and the last `MOST_TILES` stay in memory. A bundle
   is read and sent in parts of some `PART_BYTES`, so that memory is that of a part; a client that takes longer than
   `TILE_SECONDS` for one is disconnected.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import msgspec
from aiohttp import web

from echo2.coordinator.accounts.ledger_tiles import BundlePart
from echo2.coordinator.web.page_listener import client_receives, party_of
from echo2.coordinator.web.rationed_reads import RationedReads
from echo2.ledger.tile_places import WIDTH, TilePlace, place_of

TILE_SECONDS: Final = 30.0
MOST_TILES: Final = 512
FOR_EVER: Final = {"Cache-Control": "public, max-age=31536000, immutable"}
FOR_A_DAY: Final = {"Cache-Control": "public, max-age=86400"}
_NOT_KEPT: Final = {"Cache-Control": "no-store"}
_BINARY: Final = "application/octet-stream"


class TileSource(Protocol):
    """The source of tiles: coordinator/web/run_view_builder.py. Called in a thread, but for Roots and RunSpec."""

    def ledger_tile(self, level: int, place: TilePlace) -> bytes | None:
        """Return a tile; None: there is no such tile (yet)."""

    def ledger_bundle(self, place: TilePlace, first: int) -> BundlePart | None:
        """Return the part of a bundle from its entry `first` on; None: there is no such bundle (yet)."""

    def sealed_roots(self) -> list[bytes]:
        """Return the run's Roots, sealed, oldest first."""

    def sealed_runspec(self) -> bytes:
        """Return the run's RunSpec, sealed."""

    def sealed_logs(self) -> list[bytes]:
        """Return the documents of the run's restored logs, sealed, in order: read from files, and verified."""


class TileRoutes:
    """The handlers. `clock`: monotonic seconds."""

    def __init__(self, source: TileSource, clock: Callable[[], float]) -> None:
        self._source = source
        self._reads = RationedReads("tiles of the ledger", clock)
        self._tiles: OrderedDict[tuple[int, TilePlace], bytes] = OrderedDict()
        self._etag = etag_of(source.sealed_runspec())

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        router = app.router
        self._reads.end_with(app)
        router.add_get("/ledger/roots", self.roots)
        router.add_get("/ledger/runspec", self.runspec)
        router.add_get("/ledger/restored", self.restored_logs)
        router.add_get("/ledger/tile/{level:[0-9]}/{place:[x0-9./p]{1,64}}", self.tile)
        router.add_get("/ledger/entries/{place:[x0-9./p]{1,64}}", self.entries)

    async def roots(self, request: web.Request) -> web.StreamResponse:
        """Answer with the sealed Roots, a MessagePack list."""
        body = msgspec.msgpack.encode(self._source.sealed_roots())
        return web.Response(body=body, content_type="application/msgpack", headers=_NOT_KEPT)

    async def runspec(self, request: web.Request) -> web.StreamResponse:
        """Answer with the sealed RunSpec."""
        return web.Response(body=self._source.sealed_runspec(), content_type=_BINARY, headers=_NOT_KEPT)

    async def restored_logs(self, request: web.Request) -> web.StreamResponse:
        """Answer with the sealed documents of restored logs, a MessagePack list."""
        body = msgspec.msgpack.encode(await self._reads.read(party_of(request), self._source.sealed_logs))
        return web.Response(body=body, content_type="application/msgpack", headers=_NOT_KEPT)

    async def tile(self, request: web.Request) -> web.StreamResponse:
        """Answer with a tile."""
        level, place = int(request.match_info["level"]), _place(request)
        if (body := self._tiles.get((level, place))) is None:
            body = await self._reads.read(party_of(request), lambda: self._source.ledger_tile(level, place))
            if body is None:
                raise _absent()
            self._tiles[level, place] = body
            if len(self._tiles) > MOST_TILES:
                self._tiles.popitem(last=False)
        return web.Response(body=body, content_type=_BINARY, headers=self._caching(request, place))

    async def entries(self, request: web.Request) -> web.StreamResponse:
        """Answer with a bundle of entries, part by part (rule 2)."""
        place = _place(request)
        answer = web.StreamResponse(headers={"Content-Type": _BINARY, **self._caching(request, place)})
        first = 0
        while first < place.width:
            action = partial(self._source.ledger_bundle, place, first)
            part = await self._reads.read(party_of(request), action, begun=first > 0)
            if part is None:
                raise _absent()
            if not first:
                await answer.prepare(request)
            try:
                with client_receives(request):
                    async with asyncio.timeout(TILE_SECONDS):
                        await answer.write(part.content)
            except TimeoutError as error:
                raise ConnectionResetError("the client receives the bundle too slowly") from error
            first = part.end
        await answer.write_eof()
        return answer

    def _caching(self, request: web.Request, place: TilePlace) -> dict[str, str]:
        """Return the headers for caches (rule 1). Raises `HTTPNotModified`."""
        headers = {**(FOR_EVER if place.width == WIDTH else FOR_A_DAY), "ETag": self._etag}
        return headers_unless_known(request, headers)


def etag_of(body: bytes) -> str:
    """Return the ETag of a body."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def headers_unless_known(request: web.Request, headers: dict[str, str]) -> dict[str, str]:
    """Return the headers of an answer with an ETag. Raises `HTTPNotModified` if the client has that answer."""
    if headers["ETag"] in request.headers.get("If-None-Match", ""):
        raise web.HTTPNotModified(headers=headers)
    return headers


def _place(request: web.Request) -> TilePlace:
    place = place_of(request.match_info["place"])
    if place is None:
        raise _absent()
    return place


def _absent() -> web.HTTPException:
    return web.HTTPNotFound(text="no signed head covers such a tile; docs/protocol/ledger.md has the paths")
