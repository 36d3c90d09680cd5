"""The rollout loop: crashes, refusals, a full outbox."""

import asyncio
import functools
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from echo2.engines.process.versioned import MOST_CRASHES, LoadedVersion
from echo2.node.links.coordinator_client import RequestRefused
from echo2.p2p.identity import generate_key
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Lease, LeaseRequest, Submission
from echo2.protocol.methods import LEASE
from echo2.protocol.requests import Refusal
from echo2.runtime.child import ChildError
from echo2.weights.shown_ranges import shown_ranges
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import InProcessEngine, until
from tests.support.small_run import SmallRun
from tests.support.swarm import accepted, working


@on_fake_clock
async def test_an_engine_that_crashes_generates_the_same_lease_again(small_run: SmallRun) -> None:
    async with small_run.working() as node:
        await until(lambda: node.daemon.rollouts.done >= 2)
        node.engine.crashes = 3
        await until(lambda: node.daemon.engine.deaths == 3 and node.engine.crashes == 0)
        await until(lambda: accepted(node) >= 5)
        assert "refused" not in node.daemon.outbox.counts()
        unworked = small_run.open_leases
        assert len(unworked) <= 2


@on_fake_clock
@pytest.mark.slow
async def test_a_refused_node_waits_for_as_long_as_stated_and_a_new_version_ends_the_wait(small_run: SmallRun) -> None:
    """At commit 439044d the node asks again after at most 30 s."""
    coordinator = small_run.coordinator
    coordinator.refusals["lease"] = Refusal(code="no-room", sentence="enough", retry_after=600_000)
    async with small_run.serving(), working(small_run.node()):
        await until(lambda: coordinator.asked.get("lease"))
        await anyio.sleep(590)
        assert coordinator.asked["lease"] == 1
        await coordinator.publish(1)
        await anyio.sleep(5)
        assert coordinator.asked["lease"] == 2
        await anyio.sleep(725)
        assert coordinator.asked["lease"] == 3


@on_fake_clock
async def test_a_new_version_does_not_end_the_wait_for_a_busy_coordinator(small_run: SmallRun) -> None:
    """Otherwise every new version would make all refused nodes ask a busy coordinator at the same time."""
    coordinator = small_run.coordinator
    coordinator.refusals["lease"] = Refusal(code="busy", sentence="a crowd", retry_after=100_000)
    async with small_run.working() as node:
        await until(lambda: coordinator.asked.get("lease"))
        await coordinator.publish(1)
        await until(lambda: node.daemon.follower.current is not None and node.daemon.follower.current.version == 1)
        await anyio.sleep(60)
        assert coordinator.asked["lease"] == 1
        await anyio.sleep(60)
        assert coordinator.asked["lease"] == 2
        del coordinator.refusals["lease"]
        await until(lambda: node.daemon.rollouts.done, 130)


@on_fake_clock
async def test_a_full_outbox_stops_new_work_and_is_reported(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    coordinator.refusals["submit"] = Refusal(code="paused", sentence="not now", retry_after=500)
    async with small_run.working(outbox=3) as node:
        await until(lambda: "outbox is full" in node.daemon.rollouts.blocked)
        await anyio.sleep(30)
        assert node.daemon.outbox.waiting() == 3
        del coordinator.refusals["submit"]
        await until(lambda: accepted(node) >= 6)


@on_fake_clock
@pytest.mark.slow
async def test_as_many_groups_are_under_way_as_the_engine_has_places(small_run: SmallRun) -> None:
    engine = InProcessEngine(places=4, seconds=10.0)
    async with small_run.working(engine=engine) as node:
        await until(lambda: engine.generated >= 4)
        before = engine.generated
        await anyio.sleep(100)
        assert engine.generated - before >= 36  # one at a time it would be 10
        assert len(small_run.open_leases) <= 8
        assert node.daemon.rollouts.blocked == ""


@on_fake_clock
async def test_a_refusal_while_groups_are_under_way_leaves_them_alone_and_blocks_nothing(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    engine = InProcessEngine(places=4, seconds=20.0)
    async with small_run.working(engine=engine) as node:
        await until(lambda: len(coordinator.leases) >= 2)
        coordinator.refusals["lease"] = Refusal(code="no-room", sentence="enough", retry_after=5000)
        asked = coordinator.asked["lease"]
        await anyio.sleep(15)
        assert coordinator.asked["lease"] - asked <= 4
        assert node.daemon.rollouts.working
        assert node.daemon.rollouts.blocked == ""
        await until(lambda: not node.daemon.rollouts.working)
        await until(lambda: node.daemon.rollouts.blocked == "no lease: enough")
        assert set(coordinator.submitted) == set(coordinator.leases)


@on_fake_clock
@pytest.mark.slow
async def test_a_bound_on_open_leases_keeps_no_quick_engine_waiting_and_costs_no_requests(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    given = coordinator.lease

    def three_at_a_time(peer: bytes, body: bytes) -> bytes | Refusal:
        if len(small_run.open_leases) >= 3:
            return Refusal(code="too-many-leases", sentence="The most is 3.", retry_after=1000)
        return given(peer, body)

    coordinator.lease = three_at_a_time  # type: ignore[method-assign]
    engine = InProcessEngine(places=8, seconds=0.1)
    async with small_run.working(engine=engine):
        await until(lambda: engine.generated >= 6)
        before, asked = engine.generated, coordinator.asked["lease"]
        await anyio.sleep(15)
        groups = engine.generated - before
        assert groups >= 180  # waiting for a second after each refusal it would be 45
        assert coordinator.asked["lease"] - asked <= 1.02 * groups


@on_fake_clock
@pytest.mark.parametrize(("places", "seconds"), [(8, 0.5), (1, 0.07)])
@pytest.mark.slow
async def test_no_place_is_empty_for_a_round_trip_where_several_groups_end_within_one(
    places: int, seconds: float, small_run: SmallRun
) -> None:
    engine = InProcessEngine(places=places, seconds=seconds)
    async with small_run.working(engine=engine) as node:
        await until(lambda: engine.generated >= 3 * places)
        small_run.coordinator.delays["lease"] = 0.2
        await anyio.sleep(2)
        before = engine.generated
        await anyio.sleep(5)
        assert engine.generated - before >= 0.95 * 5 * places / seconds
        assert len(small_run.open_leases) <= 3 * places + 8
        assert "refused" not in node.daemon.outbox.counts()


@on_fake_clock
@pytest.mark.slow
async def test_a_crash_with_several_groups_under_way_loses_none(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    engine = InProcessEngine(places=4, seconds=5.0)
    async with small_run.working(engine=engine) as node:
        for _ in range(MOST_CRASHES + 2):  # one crash, however many groups it ends, is one crash
            await until(lambda: len(small_run.open_leases) >= 4)
            leases = set(coordinator.leases)
            engine.crashes = 1
            deaths = node.daemon.engine.deaths
            await until(lambda n=deaths: node.daemon.engine.deaths == n + 1)
            await until(lambda ids=leases: ids <= set(coordinator.submitted), 120)
        await until(lambda: set(coordinator.decided) >= leases, 120)
        assert "refused" not in node.daemon.outbox.counts()


@on_fake_clock
@pytest.mark.slow
async def test_a_lease_that_comes_while_a_crashed_engine_starts_again_is_generated(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    engine = InProcessEngine(places=4, seconds=5.0, starting=1.0)
    async with small_run.working(engine=engine) as node:
        coordinator.delays["lease"] = 0.4
        await until(lambda: len(coordinator.submitted) >= 4)
        for _ in range(MOST_CRASHES + 2):
            asked, done = coordinator.asked["lease"], len(coordinator.submitted)
            await until(lambda n=asked: coordinator.asked["lease"] > n)
            engine.kill()
            await until(lambda n=done: len(coordinator.submitted) >= n + 4)
        assert not [lease for report in coordinator.reports for lease in report.returned]
        await until(lambda: len(coordinator.decided) >= 8)
        assert "refused" not in node.daemon.outbox.counts()


@on_fake_clock
async def test_a_lease_under_a_version_that_the_engine_has_left_is_given_back(small_run: SmallRun) -> None:
    """Where several engines share a folder of weights, one of them may step it while another one starts again."""
    coordinator = small_run.coordinator
    async with small_run.working() as node:
        await until(lambda: accepted(node) >= 2)
        coordinator.delays["lease"] = 1.0
        asked, engine = coordinator.asked["lease"], node.daemon.engine
        await until(lambda: coordinator.asked["lease"] > asked)
        (lease,) = small_run.open_leases - set(node.daemon.rollouts.workers[0].leases)
        await coordinator.publish(1, table_seed=5)
        moved = coordinator.published[1]
        await engine.hold(LoadedVersion(era=1, version=1, root=moved.root, weights=coordinator.snapshots[1].path))
        await until(lambda: any(lease in report.returned for report in coordinator.reports))
        assert lease not in coordinator.submitted
        assert "refused" not in node.daemon.outbox.counts()


@on_fake_clock
@pytest.mark.slow
async def test_memory_that_another_program_has_for_a_moment_costs_no_lease(small_run: SmallRun) -> None:
    """Each lease given back counts as an expired one: a dozen would let the coordinator pause the node for long."""
    coordinator = small_run.coordinator
    engine = InProcessEngine(places=4, seconds=2.0)
    async with small_run.working(engine=engine) as node:
        await until(lambda: accepted(node) >= 4)
        engine.short = True
        await anyio.sleep(5)
        leases = len(coordinator.leases)
        await anyio.sleep(20)
        assert len(coordinator.leases) == leases
        engine.short = False
        await until(lambda: set(coordinator.submitted) >= set(list(coordinator.leases)[:leases]))
        assert not [lease for report in coordinator.reports for lease in report.returned]
        await until(lambda: len(coordinator.leases) > leases + 8)


@on_fake_clock
async def test_a_group_for_which_there_is_never_memory_is_given_back(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    engine = InProcessEngine(places=2)
    async with small_run.working(engine=engine) as node:
        await until(lambda: accepted(node) >= 2)
        engine.short = True
        await until(lambda: any(report.returned for report in coordinator.reports), 120)
        assert len(small_run.open_leases) <= 4


@on_fake_clock
@pytest.mark.slow
async def test_a_new_version_lets_the_groups_under_way_finish_and_starts_none_under_the_old_one(
    small_run: SmallRun,
) -> None:
    coordinator = small_run.coordinator
    engine = InProcessEngine(places=4, seconds=5.0)
    async with small_run.working(engine=engine) as node:
        for version in range(1, 4):
            await until(lambda: len(small_run.open_leases) >= 4)
            await coordinator.publish(version)
            await until(lambda: node.daemon.engine.wanted)
            leases = set(coordinator.leases)
            await until(lambda v=version: node.holds(v))
            assert {id for id, lease in coordinator.leases.items() if lease.version < version} == leases
            await until(lambda ids=leases: ids <= set(coordinator.submitted))
        assert "refused" not in node.daemon.outbox.counts()
        assert {lease.version for lease in coordinator.leases.values()} >= {0, 1, 2}


@on_fake_clock
async def test_a_node_that_finishes_has_completed_all_its_groups(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    engine = InProcessEngine(places=4, seconds=5.0)
    async with small_run.working(engine=engine) as node:
        await until(lambda: len(small_run.open_leases) >= 4)
        node.daemon.interrupt("the test")
        await until(lambda: not node.daemon.rollouts.working and set(coordinator.decided))
        assert set(coordinator.leases) == set(coordinator.submitted)


@on_fake_clock
async def test_a_group_whose_lease_has_ended_before_it_began_is_not_generated(small_run: SmallRun) -> None:
    coordinator, engine = small_run.coordinator, InProcessEngine(places=4, seconds=20.0)
    async with small_run.working(engine=engine) as node:
        await until(lambda: len(small_run.open_leases) == 4)
        *begun, waits = coordinator.leases
        engine.places = 3  # as after an out-of-memory: the last group waits for a place again
        engine._tell()
        coordinator.ended = {*begun, waits}
        coordinator.refusals["lease"] = Refusal(code="no-room", sentence="enough", retry_after=5000)
        ask = LeaseRequest(nonce=bytes(16), era=1, version=0, root=bytes(32), engine="bigram/float32/cpu")
        with pytest.raises(RequestRefused):
            await node.coordinator_client.call(LEASE, ask)
        assert coordinator.reports[-1].waiting == [waits]
        await until(lambda: set(coordinator.submitted) == set(begun))
        assert not node.daemon.rollouts.working
        assert node.daemon.rollouts.blocked == "no lease: enough"
        await until(lambda: coordinator.reports[-1].returned == [] and not node.daemon.outbox.open_leases())
        assert [waits] in [report.returned for report in coordinator.reports]


FAULTS: dict[str, tuple[ChildError, str]] = {
    "logits that are not finite": (ChildError("LogitsNotFinite", "the logits are not finite"), "not finite"),
    "no memory for one group": (ChildError("EngineError", "out of memory: no rollout fits"), "no rollout fits"),
}


class Faulty(InProcessEngine):
    """An engine whose second group ends with a fault."""

    def __init__(self, fault: ChildError) -> None:
        super().__init__()
        self._fault = fault

    async def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        answer = await super().call(method, *arguments, **options)
        if method == "generate" and self.generated == 2:
            raise self._fault
        return answer


@on_fake_clock
@pytest.mark.parametrize(("fault", "sentence"), FAULTS.values(), ids=FAULTS.keys())
async def test_the_lease_of_a_group_that_failed_is_given_back_and_the_next_one_is_worked_on(
    fault: ChildError, sentence: str, small_run: SmallRun
) -> None:
    coordinator = small_run.coordinator
    with capture_logs() as logs:
        async with small_run.working(engine=Faulty(fault)) as node:
            await until(lambda: node.daemon.rollouts.done >= 4)
            (failed,) = {lease for report in coordinator.reports for lease in report.returned}
            assert failed in small_run.open_leases, "nothing was submitted for it"
            assert failed not in node.daemon.outbox.open_leases()
    assert [sentence in one["reason"] for one in logs if one["event"] == "lease dropped"] == [True]


@on_fake_clock
async def test_a_restarted_node_gives_back_what_it_lost_and_nothing_else(small_run: SmallRun) -> None:
    coordinator, key = small_run.coordinator, generate_key()
    coordinator.refusals["submit"] = Refusal(code="paused", sentence="not now", retry_after=500)
    async with small_run.serving():
        node = small_run.node(engine=InProcessEngine(places=4, seconds=5.0), key=key)
        async with working(node):
            outbox = node.daemon.outbox
            await until(lambda: outbox.unsent() >= 2 and len(outbox.open_leases()) == 4)
            lost = set(outbox.open_leases())
        assert not any(report.returned for report in coordinator.reports)
        earlier = len(coordinator.reports)
        again = small_run.node(key=key)
        async with working(again):
            await until(lambda: coordinator.reports[-1].returned == [] and len(coordinator.reports) > earlier + 4)
            assert lost.isdisjoint(again.daemon.outbox.open_leases())
        returned = [report.returned for report in coordinator.reports[earlier:]]
        assert set(returned[0]) == lost
        assert lost == set().union(*returned)


@on_fake_clock
async def test_a_lease_that_comes_while_its_loop_is_cancelled_ends_no_node(small_run: SmallRun) -> None:
    """The task that waits for the answer is cancelled a moment before the group's own. At first the node ended with
    a bug's exit code."""
    async with small_run.working() as node:
        await until(lambda: node.daemon.engine.current)
        (worker,) = node.daemon.rollouts.workers
        waiting: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()
        waiting.cancel()
        done = worker.done
        await worker._group(waiting, 1)
        assert worker.done > done


@on_fake_clock
async def test_a_node_shows_the_bytes_of_its_version_that_a_lease_asks_for(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    small_run.coordinator.make_lease = functools.partial(  # type: ignore[method-assign]
        coordinator.make_lease, ranges_asked=True
    )
    async with small_run.working() as node:
        await until(lambda: accepted(node) >= 2)
        await coordinator.publish(1)
        await until(lambda: any(coordinator.leases[lease].version for lease in coordinator.submitted))
    for lease, body in coordinator.submitted.items():
        snapshot = coordinator.snapshots[coordinator.leases[lease].version]
        assert decode(body, Submission).ranges == shown_ranges(snapshot, lease)


@on_fake_clock
async def test_a_refusal_that_asks_for_no_wait_is_no_call_to_ask_without_pause(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    coordinator.refusals["lease"] = Refusal(code="no-room", sentence="enough", retry_after=0)
    node = small_run.node()
    async with small_run.serving(), working(node):
        await until(lambda: coordinator.asked.get("lease"))
        await anyio.sleep(10)
        assert coordinator.asked["lease"] <= 101
        assert node.daemon.rollouts.blocked == "no lease: enough"


@on_fake_clock
@pytest.mark.slow
async def test_a_lease_of_which_the_engine_dies_is_given_back_and_does_not_end_the_node(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    make = coordinator.make_lease

    def one_of_ten(node: bytes, ask: LeaseRequest, /, **changes: Any) -> Lease:
        return make(node, ask, **changes, **({"prompt": [3, 3, 3]} if len(coordinator.leases) % 10 == 5 else {}))

    coordinator.make_lease = one_of_ten  # type: ignore[method-assign]
    engine = InProcessEngine()
    engine.deadly = [[3, 3, 3]]
    async with small_run.working(engine=engine) as node:
        await until(lambda: accepted(node) >= 20, 300)
        returned = {lease for report in coordinator.reports for lease in report.returned}
        deadly = {lease.id for lease in coordinator.leases.values() if lease.prompt == [3, 3, 3]}
        assert deadly & returned
        assert not deadly & set(coordinator.submitted)
