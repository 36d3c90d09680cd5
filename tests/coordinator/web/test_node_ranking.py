"""The whole ranking, in pages and as one stream."""

import csv
import io

import msgspec
import pytest
from aiohttp import ClientSession

from coordinator.metrics.views import NodeRow
from coordinator.web.node_ranking import ROWS
from coordinator.web.site import application, serve_web
from tests.support import pictures
from tests.support.fixed_run import FixedRun

MANY = msgspec.structs.replace(
    pictures.BUSY,
    nodes=[pictures.node(n % 99, id=f"node-{n}", name=f"name {n}", weight=10_000 - n) for n in range(2 * ROWS + 7)],
)


async def test_the_ranking_goes_on_from_page_to_page_as_json() -> None:
    site = await serve_web(application(FixedRun(MANY)), "127.0.0.1", 0)
    seen: list[NodeRow] = []
    sizes = []
    try:
        async with ClientSession(site.url) as session:
            path: str | None = "api/v1/nodes"
            while path is not None:
                async with session.get(f"/{path}") as answer:
                    assert answer.status == 200
                    sizes.append(len(await answer.read()))
                    seen += msgspec.json.decode(await answer.read(), type=list[NodeRow])
                    link = answer.headers.get("Link")
                assert link is None or link.endswith('; rel="next"')
                path = None if link is None else f"api/v1/{link[1:].partition('>')[0]}"
    finally:
        await site.stop()
    assert seen == MANY.nodes
    assert len(sizes) == 3
    assert max(sizes) < 1_000_000


async def test_people_leaf_through_the_ranking() -> None:
    site = await serve_web(application(FixedRun(MANY)), "127.0.0.1", 0)
    try:
        async with ClientSession(site.url) as session, session.get("/nodes") as first:
            text = await first.text()
            assert "name 99<" in text
            assert "name 100<" not in text
            link = text.partition('href="nodes?after=')[2].partition('"')[0]
            async with session.get(f"/nodes?after={link}") as second:
                text = await second.text()
                assert "name 100<" in text
                assert "101 to 200 of" in text
    finally:
        await site.stop()


async def test_the_csv_has_every_node() -> None:
    site = await serve_web(application(FixedRun(MANY)), "127.0.0.1", 0)
    try:
        async with ClientSession(site.url) as session, session.get("/api/v1/nodes.csv") as answer:
            assert answer.headers["Transfer-Encoding"] == "chunked"
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            rows = list(csv.DictReader(io.StringIO(await answer.text(), newline="")))
    finally:
        await site.stop()
    assert [row["id"] for row in rows] == [node.id for node in MANY.nodes]


@pytest.mark.parametrize(
    "query",
    {
        "no place": "after=first",
        "a place that is no key": "after=1-2-xyz",
        "a rank without end": f"after={'9' * 4000}-1-00",
        "no number": "limit=many",
        "none at all": "limit=0",
    }.values(),
)
async def test_a_page_that_there_is_not_is_said(query: str) -> None:
    site = await serve_web(application(FixedRun(MANY)), "127.0.0.1", 0)
    try:
        async with ClientSession(site.url) as session, session.get(f"/api/v1/nodes?{query}") as answer:
            assert answer.status == 400
            assert len(await answer.text()) < 300
    finally:
        await site.stop()


async def test_asked_for_too_much_the_page_gives_what_a_page_has() -> None:
    site = await serve_web(application(FixedRun(MANY)), "127.0.0.1", 0)
    try:
        async with ClientSession(site.url) as session, session.get("/api/v1/nodes?limit=999999") as answer:
            assert len(await answer.json()) == ROWS
    finally:
        await site.stop()
