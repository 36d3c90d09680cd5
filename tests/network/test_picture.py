"""The status page during a run: the reads of run.sqlite that visitors cause in the event loop."""

from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest
from aiohttp import ClientSession

from echo2.coordinator.web.run_view_builder import MOST_NODES
from echo2.coordinator.web.site import application, serve_web
from tests.support.group_world import HELLO, name
from tests.support.swarm import make_swarm

NODES = 300
MANY = 12_000
LONG = msgspec.structs.replace(HELLO, name="n" * 40, software="s" * 200, engine="e" * 200, device="d" * 200)


@pytest.mark.slow
async def test_a_visitor_makes_the_event_loop_read_no_more_where_there_are_many_nodes(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    async with swarm.coordinating() as coordinator:
        database, counted = coordinator.group_service.database, 0

        def count() -> int:
            nonlocal counted
            counted += 1
            return 0

        async def read_by_a_visit() -> int:
            nonlocal counted
            site = await serve_web(application(coordinator.view_builder), "127.0.0.1", 0)
            try:
                async with ClientSession(f"http://127.0.0.1:{site.port}") as session:
                    counted = 0
                    database.connection.set_progress_handler(count, 10)
                    for path in ("/", "/live", "/api/v1/run", "/metrics"):
                        async with session.get(path) as answer:
                            assert answer.status == 200
                            body = await answer.text()
                    database.connection.set_progress_handler(None, 0)
                    seen.append(body.count("echo2_node_connected{"))
            finally:
                await site.stop()
            return counted

        seen: list[int] = []
        few = await read_by_a_visit()
        for number in range(NODES):
            coordinator.group_service.registry.register(name("node", number, 32), HELLO, None, 1_000_000_000_000)
        await anyio.lowlevel.checkpoint()
        many = await read_by_a_visit()
    assert seen == [0, MOST_NODES]
    assert many <= few + 50, f"{10 * few} instructions without nodes, {10 * many} with {NODES}"


async def test_the_state_names_the_loss_that_the_learner_lowers(tmp_path: Path) -> None:
    async with make_swarm(tmp_path).coordinating() as coordinator:
        state = await coordinator.view_builder.current_state()
    assert state.objective == "decoupled (anchor proximal, weight token_cap, surrogate clip, mean by tokens)"


@pytest.mark.slow
async def test_no_body_is_larger_than_a_megabyte_however_many_keys_there_are(tmp_path: Path) -> None:
    """At commit 439044d `/api/v1/nodes` of 12,000 keys has 8.5 MB, and `/metrics` 10 MB."""
    swarm = make_swarm(tmp_path)
    async with swarm.coordinating() as coordinator:
        with coordinator.group_service.database.transaction():
            for number in range(MANY):
                coordinator.group_service.registry.register(name("node", number, 32), LONG, None, 1_000_000_000_000)
        await anyio.lowlevel.checkpoint()
        view_builder = coordinator.view_builder
        site = await serve_web(
            application(view_builder if hasattr(view_builder, "nodes") else view_builder.build), "127.0.0.1", 0
        )
        sizes = {}
        try:
            async with ClientSession(f"http://127.0.0.1:{site.port}") as session:
                for path in ("/", "/live", "/api/v1/run", "/api/v1/nodes", "/metrics"):
                    async with session.get(path, headers={"Accept-Encoding": "identity"}) as answer:
                        sizes[path] = len(await answer.read())
        finally:
            await site.stop()
    assert {path: size for path, size in sizes.items() if size > 1_000_000} == {}
