"""A web site on the loopback per test, stopped when the test ends."""

from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession, DummyCookieJar, web

from echo2.coordinator.web.page_listener import WebLimits
from echo2.coordinator.web.site import Site, application, serve_web
from tests.support import pictures
from tests.support.fixed_run import FixedRun
from tests.support.site_visits import Visit


@pytest.fixture
async def visit() -> AsyncIterator[Visit]:
    """Return a function that serves an application on the loopback and returns a client session for it."""
    opened: list[tuple[Site, ClientSession]] = []

    async def open_(app: web.Application) -> ClientSession:
        site = await serve_web(app, "127.0.0.1", 0)
        session = ClientSession(site.url, cookie_jar=DummyCookieJar(), auto_decompress=False)
        opened.append((site, session))
        return session

    yield open_
    for site, session in opened:
        await session.close()
        await site.stop()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """Serve a busy run under small limits and the public name run.example.org."""
    limits = WebLimits(connections=20, head=4096, idle=0.3)
    opened = await serve_web(application(FixedRun(pictures.BUSY), names=["run.example.org"]), "127.0.0.1", 0, limits)
    yield opened
    await opened.stop()
