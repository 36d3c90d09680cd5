"""The complete ranking, in pages and as one CSV stream."""

import asyncio
import csv
import io
import socket
import threading
from collections.abc import AsyncIterator

import msgspec
import pytest
from aiohttp import ClientSession, web
from aiohttp.web import HTTPServiceUnavailable

from echo2.coordinator.metrics.views import NodeRow
from echo2.coordinator.web import node_ranking
from echo2.coordinator.web.node_ranking import PAGE_NODES, PAGE_SECONDS, Ranking
from echo2.coordinator.web.node_rows import Cursor, Page
from echo2.coordinator.web.page_listener import WebLimits
from echo2.coordinator.web.rationed_reads import MOST_OF_PARTY
from echo2.coordinator.web.site import application, serve_web
from tests.support import pictures
from tests.support.fixed_run import FixedRun
from tests.support.site_visits import fetched

MANY = msgspec.structs.replace(
    pictures.BUSY,
    nodes=[
        pictures.node(n % 99, id=f"node-{n}", name=f"name {n}", weight=10_000 - n) for n in range(2 * PAGE_NODES + 7)
    ],
)


@pytest.fixture
async def session() -> AsyncIterator[ClientSession]:
    """Serve a run of many nodes and return a client session for it."""
    site = await serve_web(application(FixedRun(MANY)), "127.0.0.1", 0)
    async with ClientSession(site.url) as opened:
        yield opened
    await site.stop()


async def test_json_pages_link_to_the_next_and_cover_all_nodes(session: ClientSession) -> None:
    seen: list[NodeRow] = []
    sizes = []
    path: str | None = "api/v1/nodes"
    while path is not None:
        async with session.get(f"/{path}") as answer:
            assert answer.status == 200
            sizes.append(len(await answer.read()))
            seen += msgspec.json.decode(await answer.read(), type=list[NodeRow])
            link = answer.headers.get("Link")
        assert link is None or link.endswith('; rel="next"')
        path = None if link is None else f"api/v1/{link[1:].partition('>')[0]}"
    assert seen == MANY.nodes
    assert len(sizes) == 3
    assert max(sizes) < 1_000_000


async def test_the_html_ranking_links_its_pages(session: ClientSession) -> None:
    async with session.get("/nodes") as first:
        text = await first.text()
        assert "name 99<" in text
        assert "name 100<" not in text
        link = text.partition('href="nodes?after=')[2].partition('"')[0]
        async with session.get(f"/nodes?after={link}") as second:
            text = await second.text()
            assert "name 100<" in text
            assert "101 to 200 of" in text


async def test_the_csv_has_every_node(session: ClientSession) -> None:
    async with session.get("/api/v1/nodes.csv") as answer:
        assert answer.headers["Transfer-Encoding"] == "chunked"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        rows = list(csv.DictReader(io.StringIO(await answer.text(), newline="")))
    assert [row["id"] for row in rows] == [node.id for node in MANY.nodes]


@pytest.mark.parametrize(
    "query",
    {
        "a malformed cursor": "after=first",
        "a cursor without a key": "after=1-2-xyz",
        "an overlong rank": f"after={'9' * 4000}-1-00",
        "a limit that is no number": "limit=many",
        "a limit of zero": "limit=0",
    }.values(),
)
async def test_an_invalid_page_query_is_answered_400(query: str, session: ClientSession) -> None:
    async with session.get(f"/api/v1/nodes?{query}") as answer:
        assert answer.status == 400
        assert len(await answer.text()) < 300


async def test_a_limit_above_the_maximum_returns_one_page(session: ClientSession) -> None:
    async with session.get("/api/v1/nodes?limit=999999") as answer:
        assert len(await answer.json()) == PAGE_NODES


async def test_any_cache_may_hold_a_page_for_some_seconds_and_one_that_holds_it_gets_no_body_again(
    session: ClientSession,
) -> None:
    for path in ("/nodes", "/api/v1/nodes", "/api/v1/nodes?limit=7"):
        async with session.get(path) as first:
            body, tag = await first.read(), first.headers["ETag"]
            assert first.headers["Cache-Control"] == f"public, max-age={PAGE_SECONDS}"
        async with session.get(path, headers={"If-None-Match": tag}) as again:
            assert (again.status, await again.read()) == (304, b"")
        async with session.get(path, headers={"If-None-Match": '"another"'}) as other:
            assert await other.read() == body


async def test_the_first_page_is_read_once_in_that_time() -> None:
    run, now = FixedRun(MANY), 0.0
    reads: list[object] = []
    nodes = run.nodes

    def counted(after: object, most: int) -> object:
        reads.append(after)
        return nodes(after, most)

    run.nodes = counted
    site = await serve_web(application(run, lambda: now), "127.0.0.1", 0)
    async with ClientSession(site.url) as visitor:
        for _ in range(5):
            async with visitor.get("/api/v1/nodes") as answer:
                assert answer.status == 200
        assert reads == [None]
        now += PAGE_SECONDS
        async with visitor.get("/api/v1/nodes") as answer:
            assert answer.status == 200
        assert reads == [None, None]
    await site.stop()


async def test_one_visitor_waits_while_the_first_page_is_read_again() -> None:
    run, now, begun, may_end = FixedRun(MANY), 0.0, threading.Event(), threading.Event()
    nodes = run.nodes

    def read(after: Cursor | None, most: int) -> Page:
        begun.set()
        assert may_end.wait(20)
        return nodes(after, most)

    site = await serve_web(application(run, lambda: now), "127.0.0.1", 0)
    async with ClientSession(site.url) as visitor:
        _, _, before = await fetched(visitor, "/api/v1/nodes")
        now += PAGE_SECONDS
        run.nodes = read  # type: ignore[method-assign]
        first = asyncio.create_task(fetched(visitor, "/api/v1/nodes"))
        await asyncio.to_thread(begun.wait, 20)
        run.nodes = nodes  # type: ignore[method-assign]
        assert (await fetched(visitor, "/api/v1/nodes"))[2] == before
        assert not first.done()
        may_end.set()
        assert (await first)[2] == before
    await site.stop()


async def test_a_read_that_fails_keeps_no_old_page_for_others() -> None:
    run, now, changed = FixedRun(MANY), 0.0, msgspec.structs.replace(MANY.nodes[0], name="a newer name")
    nodes = run.nodes

    def fail(after: Cursor | None, most: int) -> Page:
        raise HTTPServiceUnavailable(text="too many requests of one party")

    site = await serve_web(application(run, lambda: now), "127.0.0.1", 0)
    async with ClientSession(site.url) as visitor:
        await fetched(visitor, "/api/v1/nodes")
        run.state = msgspec.structs.replace(MANY, nodes=[changed, *MANY.nodes[1:]])
        now += PAGE_SECONDS
        run.nodes = fail  # type: ignore[method-assign]
        assert (await fetched(visitor, "/api/v1/nodes"))[0] == 503
        run.nodes = nodes  # type: ignore[method-assign]
        _, _, body = await fetched(visitor, "/api/v1/nodes")
        assert b"a newer name" in body, "the next visitor reads"
    await site.stop()


async def test_a_csv_that_has_begun_is_whole_though_its_party_asks_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal amid the body wrote a second answer into it."""
    run, gate = FixedRun(MANY), threading.Event()
    nodes, send = run.nodes, node_ranking._send

    def gated(after: Cursor | None, most: int) -> Page:
        if most == 7:
            gate.wait(60)
        return nodes(after, most)

    run.nodes = gated  # type: ignore[method-assign]
    ranking, app = Ranking(run, run.current_state, lambda: 0.0), web.Application()
    ranking.add_to(app)
    site = await serve_web(app, "127.0.0.1", 0)
    async with ClientSession(site.url) as session, asyncio.TaskGroup() as group:

        async def ask() -> None:
            async with session.get("/api/v1/nodes?limit=7") as answer:
                await answer.read()

        async def send_and_ask(request: web.Request, answer: web.StreamResponse, text: str) -> None:
            await send(request, answer, text)
            monkeypatch.setattr(node_ranking, "_send", send)
            for _ in range(MOST_OF_PARTY):
                group.create_task(ask())
            while ranking._reads._waiting.total() < MOST_OF_PARTY:  # noqa: ASYNC110 (no event says so)
                await asyncio.sleep(0.01)
            asyncio.get_running_loop().call_later(0.1, gate.set)

        monkeypatch.setattr(node_ranking, "_send", send_and_ask)
        try:
            async with session.get("/api/v1/nodes.csv") as answer:
                rows = list(csv.DictReader(io.StringIO(await answer.text(), newline="")))
        finally:
            gate.set()
    await site.stop()
    assert [row["id"] for row in rows] == [node.id for node in MANY.nodes]


async def test_a_request_for_the_head_of_the_csv_reads_one_page() -> None:
    run = FixedRun(MANY)
    reads, nodes = [], run.nodes
    run.nodes = lambda after, most: (reads.append(after), nodes(after, most))[1]  # type: ignore[method-assign]
    site = await serve_web(application(run), "127.0.0.1", 0)
    async with ClientSession(site.url) as session, session.head("/api/v1/nodes.csv") as answer:
        assert answer.status == 200
    await site.stop()
    assert reads == [None]


async def test_visitors_who_receive_a_long_answer_slowly_keep_no_place_from_others() -> None:
    long = [msgspec.structs.replace(node, name="x" * 9_000) for node in MANY.nodes] * 3
    run = FixedRun(msgspec.structs.replace(MANY, nodes=long))
    site = await serve_web(application(run), "127.0.0.1", 0, WebLimits(connections=2))
    slow = [socket.socket() for _ in range(2)]
    try:
        for one in slow:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.setblocking(False)
            await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", site.port))
            head = b"GET /api/v1/nodes.csv HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            await asyncio.get_running_loop().sock_sendall(one, head)
            assert await asyncio.get_running_loop().sock_recv(one, 12) == b"HTTP/1.1 200"
        async with asyncio.timeout(10):
            while not await is_healthy(site.port):  # noqa: ASYNC110 (it is refused meanwhile)
                await asyncio.sleep(0.05)
    finally:
        for one in slow:
            one.close()
        await site.stop()


async def is_healthy(port: int) -> bool:
    """Tell whether the page answers a new connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        return (await reader.read()).startswith(b"HTTP/1.1 200")
    except ConnectionError:
        return False
    finally:
        writer.close()
