"""The site over HTTP: headers, compression, caching, size, and a taken port."""

import asyncio
import gc
import gzip
import queue

import msgspec
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from echo2.coordinator.metrics.broadcast_stats import MOST_TAKES
from echo2.coordinator.metrics.views import NodeRow, RunState
from echo2.coordinator.web.site import BODIES, GRACE_SECONDS, STATIC, Render, ResponseCache, application, serve_web
from echo2.p2p.wire_types import decode
from echo2.protocol.ledger_heads import EntryProof
from echo2.runtime.errors import LocalFault
from tests.support import pictures
from tests.support.fixed_run import FixedRun
from tests.support.site_visits import Visit, fetched

BUDGET = 150_000
"""Most bytes of the page and its assets, gzipped."""


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_every_answer_carries_the_security_headers(visit: Visit) -> None:
    session = await visit(application(FixedRun(pictures.BUSY)))
    paths = [
        "/",
        "/live",
        "/api/v1/run",
        "/api/v1/nodes",
        "/api/v1/nodes.csv",
        "/metrics",
        "/healthz",
        "/static/page.js",
        "/nowhere",
    ]
    for path in paths:
        status, headers, _ = await fetched(session, path)
        assert status == (404 if path == "/nowhere" else 200), path
        assert "default-src 'none'" in headers["Content-Security-Policy"], path
        assert "unsafe" not in headers["Content-Security-Policy"], path
        assert headers["X-Content-Type-Options"] == "nosniff", path
        assert headers["Referrer-Policy"] == "no-referrer", path


async def test_a_proof_of_the_ledger_is_served_for_ever_and_others_are_not_there(visit: Visit) -> None:
    session = await visit(application(FixedRun(pictures.BUSY)))
    status, headers, body = await fetched(session, "/ledger/proof/9/3")
    assert (status, decode(body, EntryProof).canonical) == (200, b"entry")
    assert "immutable" in headers["Cache-Control"]
    for path in ("/ledger/proof/9/4", "/ledger/proof/8/3", "/ledger/proof/9/-3", "/ledger/proof/9/" + "9" * 40):
        assert (await fetched(session, path))[0] == 404, path


async def test_the_page_and_all_it_loads_stay_small(visit: Visit) -> None:
    nodes = [pictures.node(n % 99) for n in range(3_000)]
    wide = pictures.broadcast([node.id for node in nodes[:MOST_TAKES]], senders=32)
    state = msgspec.structs.replace(pictures.BUSY, steps=pictures.steps(5_000), nodes=nodes, broadcast=wide)
    session = await visit(application(FixedRun(state)))
    total = 0
    for path in ["/", *(f"/static/{name}" for name in STATIC)]:
        _, _, body = await fetched(session, path, **{"Accept-Encoding": "gzip"})
        total += len(body)
    assert total < BUDGET


async def test_a_compressed_answer_equals_the_plain_one(visit: Visit) -> None:
    session = await visit(application(FixedRun(pictures.BUSY)))
    for path in ("/", "/api/v1/run", "/metrics", "/static/page.css"):
        _, _, plain = await fetched(session, path)
        _, headers, packed = await fetched(session, path, **{"Accept-Encoding": "br, gzip"})
        assert headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(packed) == plain
        assert len(packed) < len(plain)


async def test_whoever_holds_the_present_body_gets_it_no_second_time(visit: Visit) -> None:
    session = await visit(application(FixedRun(pictures.BUSY)))
    one = f"/nodes/{pictures.NODES[1].id}"
    for path in (*BODIES, "/nodes", "/api/v1/nodes", one, f"{one}.svg", f"{one}.atom", f"/api/v1{one}"):
        tags = set()
        for encoding in ("identity", "gzip"):
            asked = {"Accept-Encoding": encoding}
            _, headers, whole = await fetched(session, path, **asked)
            status, again, body = await fetched(session, path, **asked, **{"If-None-Match": headers["Etag"]})
            assert (status, body, again["Etag"]) == (304, b"", headers["Etag"]), path
            status, _, body = await fetched(session, path, **asked, **{"If-None-Match": '"another"'})
            assert (status, body) == (200, whole), path
            tags.add(headers["Etag"])
        assert len(tags) == 2, f"{path}: each encoding has its own"
    for name in STATIC:
        _, headers, _ = await fetched(session, f"/static/{name}")
        assert "immutable" in headers["Cache-Control"], "its address has a hash"


async def test_the_api_returns_the_state(visit: Visit) -> None:
    session = await visit(application(FixedRun(pictures.BUSY)))
    _, headers, run = await fetched(session, "/api/v1/run")
    assert headers["Content-Type"] == "application/json"
    assert msgspec.json.decode(run, type=RunState) == pictures.BUSY
    _, _, nodes = await fetched(session, "/api/v1/nodes")
    assert msgspec.json.decode(nodes, type=list[NodeRow]) == pictures.NODES


def test_the_state_has_no_bytes_which_json_would_show_as_base64() -> None:
    schema = msgspec.json.schema(RunState)
    assert "base64" not in str(schema)


async def test_the_state_is_built_at_most_once_per_second(visit: Visit) -> None:
    clock, source = Clock(), FixedRun(pictures.BUSY)
    session = await visit(application(source, clock))
    for path in ("/", "/live", "/api/v1/run", "/", "/metrics"):
        await fetched(session, path)
    assert source.calls == 1
    source.state = pictures.FINISHED
    clock.now += 1.0 + GRACE_SECONDS
    _, _, body = await fetched(session, "/api/v1/run")
    assert source.calls == 2
    assert msgspec.json.decode(body, type=RunState).phase == "finished"


class SlowRun(FixedRun):
    """A run whose state is built once it may be. `fault`: raised instead of a state."""

    def __init__(self, state: RunState) -> None:
        super().__init__(state)
        self.may_build = asyncio.Event()
        self.fault: Exception | None = None

    async def current_state(self) -> RunState:
        await super().current_state()
        await self.may_build.wait()
        if self.fault is not None:
            raise self.fault
        return self.state


async def test_visitors_get_the_state_before_while_a_new_one_is_built() -> None:
    clock, source = Clock(), SlowRun(pictures.BUSY)
    cache = ResponseCache(source.current_state, clock)
    source.may_build.set()
    assert (await cache.current_state()).phase == "learning"
    source.may_build.clear()
    source.state = pictures.FINISHED
    clock.now += 1.0
    for _ in range(3):
        assert (await cache.current_state()).phase == "learning"
        await asyncio.sleep(0)
    assert source.calls == 2
    clock.now += GRACE_SECONDS
    late = asyncio.create_task(cache.current_state())
    await asyncio.sleep(0)
    source.may_build.set()
    assert (await late).phase == "finished"
    assert (await cache.current_state()).phase == "finished"
    assert source.calls == 2


async def test_a_new_state_is_shown_with_the_bodies_that_were_asked_for_before(visit: Visit) -> None:
    rendered = queue.Queue[str]()

    def render(path: str) -> Render:
        def body(state: RunState) -> bytes:
            rendered.put(f"{path} {state.phase}")
            return path.encode()

        return body

    clock, source = Clock(), FixedRun(pictures.BUSY)
    app = web.Application()
    bodies = {path: ("text/plain", render(path)) for path in ("/often", "/once")}
    ResponseCache(source.current_state, clock, bodies).add_to(app)
    session = await visit(app)
    await fetched(session, "/often")
    await fetched(session, "/once")
    assert [rendered.get(), rendered.get()] == ["/often learning", "/once learning"]
    source.state = pictures.FINISHED
    clock.now += 1.0
    await fetched(session, "/often")  # nobody asks for anything else
    assert {await asyncio.to_thread(rendered.get, True, 20) for _ in range(2)} == {"/often finished", "/once finished"}
    while source.calls == 2:
        clock.now += 1.0
        await fetched(session, "/often")
    assert await asyncio.to_thread(rendered.get, True, 20) == "/often finished"
    assert rendered.empty(), "what nobody asked for since is not rendered again"


async def test_a_state_that_cannot_be_built_is_asked_for_again_after_a_second() -> None:
    clock, source = Clock(), SlowRun(pictures.BUSY)
    cache = ResponseCache(source.current_state, clock)
    source.may_build.set()
    await cache.current_state()
    source.fault = ValueError("no state")
    clock.now += 1.0 + GRACE_SECONDS
    before = source.calls
    for _ in range(50):
        with pytest.raises(ValueError, match="no state"):
            await cache.current_state()
    assert source.calls == before + 1
    source.fault = None
    clock.now += 1.0
    assert (await cache.current_state()).phase == "learning"


async def test_a_refresh_that_fails_while_nobody_waits_is_logged_once_and_leaves_the_page() -> None:
    """Before, asyncio alone logged it, as an exception that was never retrieved, when the task was collected."""
    unheard, loop = list[dict[str, object]](), asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unheard.append(context))
    clock, source = Clock(), SlowRun(pictures.BUSY)
    cache = ResponseCache(source.current_state, clock)
    source.may_build.set()
    await cache.current_state()
    source.fault = ValueError("no state")
    with capture_logs() as logged:
        for _ in range(2):
            clock.now += 1.0
            assert (await cache.current_state()).phase == "learning"
            await asyncio.sleep(0.01)
            clock.now -= 1.0
        clock.now += 1.0 + GRACE_SECONDS
        with pytest.raises(ValueError, match="no state"):
            await cache.current_state()
        source.fault = None
        clock.now += 1.0
        assert (await cache.current_state()).phase == "learning"
        source.fault = OSError("disk")
        clock.now += 1.0
        await cache.current_state()
        await asyncio.sleep(0.01)
    del cache
    gc.collect()
    told = [(one["log_level"], one["event"], one["kind"], one["reason"]) for one in logged]
    assert told == [
        ("error", "page not refreshed", *words) for words in (("ValueError", "no state"), ("OSError", "disk"))
    ]
    assert unheard == []


async def test_post_is_not_allowed(visit: Visit) -> None:
    session = await visit(application(FixedRun(pictures.BUSY)))
    async with session.post("/", data=b"x") as answer:
        assert answer.status == 405
        assert "Content-Security-Policy" in answer.headers


async def test_a_taken_port_is_one_line_that_names_the_setting() -> None:
    first = await serve_web(application(FixedRun(pictures.EMPTY)), "127.0.0.1", 0)
    try:
        with pytest.raises(LocalFault, match=rf"port {first.port} .*web\.port"):
            await serve_web(application(FixedRun(pictures.EMPTY)), "127.0.0.1", first.port)
    finally:
        await first.stop()
        await first.stop()
