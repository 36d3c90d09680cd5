"""The page beside the run: what visitors make the event loop read from run.sqlite."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import anyio.lowlevel
from aiohttp import ClientSession

from coordinator.state import RunState
from coordinator.web.site import application, serve_web
from tests.coordinator.test_coordinator_growth import HELLO, name
from tests.swarm import Swarm, make_swarm

NODES = 300


def picture_of(swarm: Swarm) -> Callable[[], Awaitable[RunState]] | Callable[[], RunState]:
    """What the daemon gives to the site; 439044d calls it `paint`."""
    assert swarm.coordinator is not None
    painter = swarm.coordinator.painter
    return getattr(painter, "picture", painter.paint)


async def test_a_visitor_makes_the_event_loop_read_no_more_where_there_are_many_nodes(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    async with swarm.coordinating() as coordinator:
        database, counted = coordinator.books.database, 0

        def count() -> int:
            nonlocal counted
            counted += 1
            return 0

        async def read_by_a_visit() -> int:
            nonlocal counted
            site = await serve_web(application(picture_of(swarm)), "127.0.0.1", 0)
            try:
                async with ClientSession(f"http://127.0.0.1:{site.port}") as session:
                    counted = 0
                    database._connection.set_progress_handler(count, 10)
                    for path in ("/", "/live", "/api/v1/run", "/metrics"):
                        async with session.get(path) as answer:
                            assert answer.status == 200
                            body = await answer.text()
                    database._connection.set_progress_handler(None, 0)
                    seen.append(body.count("echo2_node_connected{"))
            finally:
                await site.stop()
            return counted

        seen: list[int] = []
        few = await read_by_a_visit()
        for number in range(NODES):
            coordinator.books.roster.hello(name("node", number, 32), HELLO, None, 1_000_000_000_000)
        await anyio.lowlevel.checkpoint()
        many = await read_by_a_visit()
    assert seen == [0, NODES]
    assert many <= few + 50, f"{10 * few} instructions without nodes, {10 * many} with {NODES}"
