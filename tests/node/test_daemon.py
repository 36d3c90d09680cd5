"""The life of a daemon: start, interrupt, drain, end."""

import asyncio
from typing import Any

import anyio
import msgspec
import pytest
from structlog.testing import capture_logs

from echo2.engines.process.candidates import Candidate
from echo2.node.daemon import END_SECONDS
from echo2.node.errors import BadConfig, NoUsableDevice, TrustFailure
from echo2.p2p.identity import generate_key
from echo2.protocol.authority import Asset
from echo2.protocol.requests import Refusal
from echo2.runtime.child import ChildDied, ChildError
from echo2.runtime.exit_codes import Exit
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import FakeCoordinator, InProcessEngine, Node, until
from tests.support.small_run import SmallRun
from tests.support.swarm import accepted, working


@on_fake_clock
async def test_a_finished_node_delivers_everything_and_ends(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    async with small_run.serving():
        node = small_run.node()
        ended: list[Exit] = []

        async def life() -> None:
            ended.append(await node.daemon.run())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(life)
            await until(lambda: node.daemon.rollouts.done >= 3)
            node.daemon.interrupt("the test")
            await until(lambda: ended)
        assert ended == [Exit.OK]
        assert set(coordinator.leases) == set(coordinator.submitted) == coordinator.confirmed


@on_fake_clock
async def test_an_engine_that_never_comes_up_ends_the_node_with_its_reason(small_run: SmallRun) -> None:
    async with small_run.serving():
        node = small_run.node()
        node.engine.crashes = 1 << 30
        with pytest.raises(NoUsableDevice, match="times in a row") as ended:
            await node.daemon.run()
        assert ended.value.exit == Exit.NO_DEVICE


class Unloadable(InProcessEngine):
    """An engine that ends, or refuses, while it loads."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    async def call(self, method: str, body: Any, type_: Any, **options: Any) -> Any:
        if method == "load":
            raise self._error
        return await super().call(method, body, type_, **options)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            ChildDied("engine", -6, "vllm: a worker is gone"),
            "the engine died 7 times in a row: engine ended with -6: vllm: a worker is gone",
        ),
        (
            ChildError("EngineError", "vLLM cannot run this model on cuda:0: no kernel image is available"),
            "the engine cannot load version 0: vLLM cannot run this model on cuda:0: no kernel image is available",
        ),
    ],
    ids=["it ends", "it refuses"],
)
@on_fake_clock
async def test_an_engine_that_cannot_load_ends_the_node_before_its_first_lease(
    small_run: SmallRun, error: Exception, sentence: str
) -> None:
    key = generate_key()
    async with small_run.serving():
        node = small_run.node(key=key, engine=Unloadable(error))
        with pytest.raises(NoUsableDevice) as ended:
            await node.daemon.run()
        assert (str(ended.value), ended.value.exit) == (sentence, Exit.NO_DEVICE)
        assert not small_run.coordinator.leases
        again = small_run.node(key=key)
        async with working(again):
            await until(lambda: accepted(again) >= 1)
            assert again.daemon.payloads.taken_bytes == 0, "what was fetched is still there"


@on_fake_clock
async def test_a_node_whose_engine_starts_slowly_says_what_it_waits_for(
    small_run: SmallRun,
) -> None:
    """On a busy machine an engine of priority idle takes minutes to start; `why` blamed the connection."""
    async with small_run.serving():
        node = small_run.node()
        node.engine._starting_seconds = 60.0
        with capture_logs() as logs:
            async with working(node):
                await anyio.sleep(30)
                words = await node.daemon.commands.why({})
                await until(lambda: node.daemon.rollouts.done >= 1)
    said = "the engine is not ready yet; it computes when other programs leave the CPU idle"
    assert str(words["blocked"]).startswith(f"starting: {said}")
    assert [one["event"].startswith(said) for one in logs if one["log_level"] == "warning"] == [True]


UNUSABLE_ASSETS: dict[str, dict[str, Any]] = {
    "a path out of the folder": {"name": "../node.key.json"},
    "a kind of file that no model has": {"name": "model.bin"},
    "a chunk size beyond the bounds": {"chunk_size": 1},
    "more chunks than the bound": {"length": 1 << 62},
}


@pytest.mark.parametrize("asset", UNUSABLE_ASSETS)
@on_fake_clock
async def test_a_runspec_with_an_unusable_asset_ends_the_node_as_a_matter_for_the_operator(
    asset: str, small_run: SmallRun
) -> None:
    coordinator = small_run.coordinator
    changes = dict(UNUSABLE_ASSETS[asset])
    good, _ = coordinator.assets[0]
    name = changes.pop("name", good.name)
    manifest = msgspec.structs.replace(good.manifest, **changes)
    coordinator.runspec = coordinator.sealed_runspec(assets=[Asset(name=name, manifest=manifest)])
    async with small_run.serving():
        node = small_run.node()
        with pytest.raises(TrustFailure, match=r"the RunSpec.* asset .*: ask the operator") as ended:
            await node.daemon.run()
        assert ended.value.exit == Exit.TRUST


@on_fake_clock
async def test_model_files_beyond_the_owners_disk_are_not_fetched(small_run: SmallRun) -> None:
    """Before, a node fetched them until its disk was full, whatever its owner had set."""
    coordinator = small_run.coordinator
    good, _ = coordinator.assets[0]
    manifest = msgspec.structs.replace(good.manifest, length=60 * 10**9, chunk_size=1 << 20)
    coordinator.runspec = coordinator.sealed_runspec(assets=[good, Asset(name="base.safetensors", manifest=manifest)])
    async with small_run.serving():
        node = small_run.node()
        with pytest.raises(BadConfig, match=r"the model's files take 60 GB, and this node may use 50 GB") as ended:
            await node.daemon.run()
        assert ended.value.exit == Exit.CONFIG


@on_fake_clock
async def test_a_finished_run_ends_its_nodes(small_run: SmallRun) -> None:
    async with small_run.serving():
        node = small_run.node()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(until, lambda: node.daemon.rollouts.done >= 2)
            tasks.start_soon(_finish_soon, small_run.coordinator, node)
            assert await node.daemon.run() == Exit.OK
        assert "finished" in node.daemon.run_state.why_finishing


async def _finish_soon(coordinator: FakeCoordinator, node: Node) -> None:
    await until(lambda: node.daemon.rollouts.done >= 2)
    coordinator.finished = True


@on_fake_clock
async def test_an_interrupted_node_without_answers_ends_within_its_bound_and_keeps_its_work(
    small_run: SmallRun,
) -> None:
    coordinator = small_run.coordinator
    coordinator.refusals["submit"] = Refusal(code="paused", sentence="not now", retry_after=500)
    async with small_run.serving():
        key = generate_key()
        node = small_run.node(key=key, drain=10.0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.daemon.run)
            await until(lambda: node.daemon.rollouts.done >= 1)
            node.daemon.interrupt("the test")
            with anyio.fail_after(15):
                await until(lambda: node.peer_id not in small_run.network.transports)
        again = small_run.node(key=key)
        assert again.daemon.outbox.waiting() == node.daemon.rollouts.done
        again.daemon.close()


@on_fake_clock
async def test_a_node_that_is_interrupted_before_it_has_started_waits_for_no_answers(small_run: SmallRun) -> None:
    """Its outbox is not delivered yet: it waited for 120 s until nobody had asked."""
    small_run.coordinator.refusals["submit"] = Refusal(code="paused", sentence="not now", retry_after=500)
    async with small_run.serving():
        key = generate_key()
        node = small_run.node(key=key, drain=1.0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.daemon.run)
            await until(lambda: node.daemon.rollouts.done >= 1)
            node.daemon.interrupt("the test")
        again = small_run.node(key=key)
        assert again.daemon.outbox.waiting()
        again.daemon.interrupt("before its start")
        with anyio.fail_after(15):
            assert await again.daemon.run() == Exit.OK


@on_fake_clock
async def test_interrupted_twice_ends_at_once(small_run: SmallRun) -> None:
    async with small_run.serving():
        node = small_run.node(engine=InProcessEngine(seconds=500.0))
        run = asyncio.ensure_future(node.daemon.run())
        await until(lambda: node.daemon.rollouts.working)
        node.daemon.interrupt("once")
        await anyio.sleep(5)
        assert not run.done()
        node.daemon.interrupt("twice")
        with anyio.fail_after(5):
            await asyncio.wait({run})
        assert node.engine.engine is None


@on_fake_clock
async def test_a_node_that_the_system_ends_gives_its_leases_back_and_ends_within_its_bound(small_run: SmallRun) -> None:
    """It completed its groups before, and waited for the verdicts: docker kills after 10 s."""
    async with small_run.serving():
        node = small_run.node(engine=InProcessEngine(seconds=500.0))
        run = asyncio.ensure_future(node.daemon.run())
        await until(lambda: node.daemon.rollouts.working)
        asyncio.get_running_loop().call_soon(node.daemon.end_soon, "the system asks to end")  # as of a signal
        with anyio.fail_after(END_SECONDS):
            assert await run == Exit.OK
        assert {*small_run.coordinator.reports[-1].returned} == small_run.open_leases
        assert small_run.open_leases


@on_fake_clock
async def test_groups_that_are_whole_soon_are_sent_before_a_node_leaves(small_run: SmallRun) -> None:
    small_run.coordinator.refusals["verdicts"] = Refusal(code="paused", sentence="not now", retry_after=500)
    async with small_run.serving():
        node = small_run.node(engine=InProcessEngine(seconds=1.5))
        run = asyncio.ensure_future(node.daemon.run())
        await until(lambda: node.daemon.rollouts.working)
        node.daemon.end_soon("the system asks to end")
        with anyio.fail_after(END_SECONDS):
            assert await run == Exit.OK
        assert small_run.coordinator.submitted
        assert not small_run.open_leases


@on_fake_clock
async def test_a_node_leaves_as_soon_without_a_coordinator_and_while_it_drains(small_run: SmallRun) -> None:
    key = generate_key()
    async with small_run.serving():
        node = small_run.node(key=key, engine=InProcessEngine(seconds=500.0))
        run = asyncio.ensure_future(node.daemon.run())
        await until(lambda: node.daemon.rollouts.working)
        node.daemon.interrupt("Ctrl-C")
        await anyio.sleep(5)
        small_run.coordinator.refusals |= {
            name: Refusal(code="paused", sentence="not now", retry_after=60_000) for name in ("submit", "verdicts")
        }
        node.daemon.end_soon("the system asks to end")
        with anyio.fail_after(END_SECONDS):
            assert await run == Exit.OK
    again = small_run.node(key=key)
    run = asyncio.ensure_future(again.daemon.run())
    await anyio.sleep(1)
    again.daemon.end_soon("the system asks to end")
    with anyio.fail_after(END_SECONDS):
        assert await run == Exit.OK


@on_fake_clock
async def test_a_node_that_joined_before_starts_without_the_coordinator_and_reports_it(small_run: SmallRun) -> None:
    key = generate_key()
    async with small_run.serving():
        node = small_run.node(key=key)
        async with working(node):
            await until(lambda: node.holds(0))
    again = small_run.node(key=key)
    async with working(again):
        await until(lambda: again.holds(0))
        await until(lambda: "the coordinator is unreachable" in again.daemon.rollouts.blocked)
        assert (await again.daemon.commands.status({}))["state"] == "waiting"


@on_fake_clock
async def test_a_node_joins_follows_works_and_is_credited(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    async with small_run.working() as node:
        await until(lambda: accepted(node) >= 3)
        for version in (1, 2, 3):
            await coordinator.publish(version)
            await until(lambda v=version: node.holds(v))
        await until(lambda: accepted(node) >= 10)
        assert node.daemon.outbox.counts().get("refused", 0) == 0
        assert {lease.version for lease in coordinator.leases.values()} == {0, 1, 2, 3}


class TwoCards:
    """Stands in for a choice that takes one of two equal cards. `record`: none is kept."""

    record = None

    def __init__(self) -> None:
        one = Candidate(engine="bigram", dtype="float32", device="cuda:0", hardware="a card")
        self.cards = [one, msgspec.structs.replace(one, device="cuda:1")]

    async def choose(self, *_: object) -> Candidate:
        return self.cards[0]


@on_fake_clock
async def test_a_node_that_chooses_one_of_equal_cards_ends_to_begin_again_before_it_computes(
    small_run: SmallRun,
) -> None:
    async with small_run.serving():
        node = small_run.node()
        node.daemon._times(TwoCards(), once=False)  # type: ignore[arg-type]
        assert await node.daemon.run() == Exit.OK
        assert node.daemon.begins_again
        assert node.daemon.rollouts.done == 0
        assert node.peer_id not in small_run.network.transports
