"""A node with several engines: one identity, a rollout loop per engine, and versions that change per engine."""

from functools import partial
from typing import Any

import anyio
import msgspec
import pytest

from echo2.node.errors import BadConfig, NoUsableDevice
from echo2.node.links.coordinator_client import RequestRefused
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Lease, LeaseRequest, Submission
from echo2.protocol.methods import LEASE
from echo2.protocol.requests import Refusal
from echo2.weights.shown_ranges import shown_of
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import InProcessEngine, Node, until
from tests.support.small_run import SmallRun

TWO = "cpu,cpu"


class Engines:
    """Makes engine processes and keeps them in the order of their making. `seconds`: of a group of the n-th one, the
    last of them for all further. `gone`: whether no process can be started any more."""

    def __init__(self, *seconds: float, places: int = 2) -> None:
        self._seconds, self._places = seconds, places
        self.processes: list[InProcessEngine] = []
        self.gone = False

    def __call__(self) -> InProcessEngine:
        seconds = self._seconds[min(len(self.processes), len(self._seconds) - 1)]
        process = InProcessEngine(seconds=seconds, places=self._places)
        if self.gone:
            process.start = self._refuse  # type: ignore[method-assign]
        self.processes.append(process)
        return process

    async def _refuse(self) -> None:
        raise OSError(19, "the GPU is gone")


def versions(node: Node) -> list[int | None]:
    return [one.current.version if one.current is not None else None for one in node.daemon.fleet.engines]


def accepted(node: Node) -> int:
    return node.daemon.outbox.counts().get("accepted", 0)


@on_fake_clock
@pytest.mark.slow
async def test_two_engines_work_under_one_identity_and_each_changes_its_version_alone(small_run: SmallRun) -> None:
    engines = Engines(1.0, 20.0)
    async with small_run.working(make=engines, gpu=TWO) as node:
        await until(lambda: node.daemon.rollouts.done >= 10)
        quick, slow = engines.processes[:2]
        assert slow.generated == 0
        await small_run.coordinator.publish(1)
        await until(lambda: versions(node) == [1, 0], 15)
        await until(lambda: versions(node) == [1, 1], 60)
        assert slow.generated > 0
        for version in (2, 3, 4):
            await small_run.coordinator.publish(version)
            await anyio.sleep(5)
        await until(lambda: versions(node) == [4, 4], 120)
        done = accepted(node)
        await until(lambda: accepted(node) >= done + 20)
        assert "refused" not in node.daemon.outbox.counts()
        assert quick.generated > slow.generated
        status = await node.daemon.commands.status({})
        assert [row["version"] for row in status["engines"]] == [4, 4]
        assert status["device"] == "2 x a table"


@on_fake_clock
@pytest.mark.slow
async def test_a_gpu_that_vanishes_is_out_while_the_other_works_and_comes_back(small_run: SmallRun) -> None:
    engines = Engines(2.0)
    async with small_run.working(make=engines, gpu=TWO) as node:
        await until(lambda: node.daemon.rollouts.done >= 4)
        engines.gone = True
        engines.processes[0].crashes = 1
        await until(lambda: node.daemon.fleet.out, 300)
        (reason,) = node.daemon.fleet.out.values()
        assert "the GPU is gone" in reason
        done = node.daemon.rollouts.done
        await until(lambda: node.daemon.rollouts.done >= done + 10)
        await until(lambda: node.daemon.fleet.out)
        status = await node.daemon.commands.status({})
        assert ["the GPU is gone" in (row["why"] or "") for row in status["engines"]].count(True) == 1
        await small_run.coordinator.publish(1)
        await until(lambda: 1 in versions(node))
        engines.gone = False
        await until(lambda: versions(node) == [1, 1], 600)
        await until(lambda: all(worker.working for worker in node.daemon.rollouts.workers), 60)
        assert "refused" not in node.daemon.outbox.counts()


@on_fake_clock
@pytest.mark.slow
async def test_where_leases_are_few_the_engine_with_more_free_rows_asks_first(small_run: SmallRun) -> None:
    given = small_run.coordinator.lease

    def few(peer: bytes, body: bytes) -> bytes | Refusal:
        if len(small_run.open_leases) >= 4:
            return Refusal(code="too-many-leases", sentence="The most is 4.", retry_after=1000)
        return given(peer, body)

    small_run.coordinator.lease = few  # type: ignore[method-assign]
    engines = Engines(10.0, places=8)
    async with small_run.working(make=engines, gpu=TWO) as node:
        await until(lambda: node.daemon.rollouts.done >= 40, 600)
        first, second = (worker.done for worker in node.daemon.rollouts.workers)
        assert min(first, second) >= 0.25 * (first + second)
        assert small_run.coordinator.asked["lease"] <= 3 * node.daemon.rollouts.done


def given_back(run: SmallRun) -> set[bytes]:
    return {lease for report in run.coordinator.reports for lease in report.returned}


@on_fake_clock
async def test_an_engine_that_falls_out_gives_back_its_own_leases_and_no_others(small_run: SmallRun) -> None:
    engines = Engines(20.0, places=3)
    async with small_run.working(make=engines, gpu=TWO) as node:
        await until(lambda: all(len(worker.leases) >= 3 for worker in node.daemon.rollouts.workers))
        first, second = node.daemon.rollouts.workers
        lost, kept = set(first.leases), set(second.leases)
        engines.gone = True
        engines.processes[0].crashes = 1
        await until(lambda: node.daemon.fleet.out, 300)
        await until(lambda: lost <= given_back(small_run), 60)
        assert not kept & given_back(small_run)
        await until(lambda: kept <= set(small_run.coordinator.submitted), 60)
        assert not lost & set(small_run.coordinator.submitted)
        assert "refused" not in node.daemon.outbox.counts()


@on_fake_clock
async def test_one_report_tells_of_the_groups_that_wait_on_every_engine_and_each_ends_its_own(
    small_run: SmallRun,
) -> None:
    engines = Engines(10.0, places=2)
    async with small_run.working(make=engines, gpu=TWO) as node:
        coordinator, workers = small_run.coordinator, node.daemon.rollouts.workers
        await until(lambda: len(small_run.open_leases) == 4)
        for process in engines.processes:
            process.places = 1  # as after an out-of-memory: the last group waits for a place again
            process._tell()
        report = node.daemon.rollouts.report("lease")
        assert report is not None
        assert report.waiting == [lease for worker in workers for lease in worker.waiting]
        assert report.returned == []
        assert node.daemon.rollouts.report("hello") is None
        ended = {worker.waiting[0] for worker in workers}
        coordinator.ended = ended
        coordinator.refusals["lease"] = Refusal(code="no-room", sentence="enough", retry_after=5000)
        ask = LeaseRequest(nonce=bytes(16), era=1, version=0, root=bytes(32), engine="bigram/float32/cpu")
        with pytest.raises(RequestRefused):
            await node.coordinator_client.call(LEASE, ask)
        await until(lambda: len(coordinator.submitted) == 2 and not node.daemon.rollouts.working)
        assert set(coordinator.submitted) == set(coordinator.leases) - ended


@on_fake_clock
async def test_every_request_asks_for_what_all_engines_together_can_use(small_run: SmallRun) -> None:
    asked: list[int | None] = []
    given = small_run.coordinator.make_lease

    def noted(node: bytes, ask: LeaseRequest, **changes: Any) -> Lease:
        asked.append(ask.at_once)
        return given(node, ask, **changes)

    small_run.coordinator.make_lease = noted  # type: ignore[method-assign]
    async with small_run.working(make=Engines(10.0, places=4), gpu=TWO) as node:
        await until(lambda: all(len(worker.leases) == 4 for worker in node.daemon.rollouts.workers))
        assert max(one or 0 for one in asked) == 8


@on_fake_clock
@pytest.mark.slow
async def test_the_bytes_that_a_lease_asks_for_are_those_of_its_version_though_another_engine_steps_the_folder(
    small_run: SmallRun,
) -> None:
    coordinator = small_run.coordinator
    coordinator.make_lease = partial(  # type: ignore[method-assign]
        coordinator.make_lease, ranges_asked=True
    )
    async with small_run.working(make=Engines(1.0, 15.0), gpu=TWO) as node:
        await until(lambda: node.daemon.rollouts.done >= 4)
        for version in range(1, 7):
            await coordinator.publish(version)
            await anyio.sleep(4)
        await until(lambda: versions(node) == [6, 6], 120)
        await until(lambda: len(coordinator.submitted) >= 40, 200)
    shown = {lease: decode(body, Submission).ranges for lease, body in coordinator.submitted.items()}
    of = {lease: coordinator.leases[lease].version for lease in shown}
    assert len(set(of.values())) > 3
    assert shown == {lease: shown_of(coordinator.snapshots[of[lease]].path, lease) for lease in shown}


@on_fake_clock
@pytest.mark.slow
async def test_an_engine_behind_the_folder_asks_for_no_lease_until_it_has_followed(small_run: SmallRun) -> None:
    async with small_run.working(make=Engines(1.0), gpu=TWO) as node:
        await until(lambda: node.daemon.rollouts.done >= 4)
        engine, (other, behind) = node.daemon.fleet.engines[1], node.daemon.rollouts.workers
        assert engine.current is not None
        ahead, folder = msgspec.structs.replace(engine.current, version=1, root=bytes(32)), engine.on_disk
        engine.on_disk = lambda: ahead
        await until(lambda: not behind.leases)
        done, others = behind.done, other.done
        await anyio.sleep(10)
        assert behind.done == done
        assert other.done >= others + 8
        engine.on_disk = folder
        await until(lambda: behind.done > done)


@on_fake_clock
async def test_one_group_takes_one_device(small_run: SmallRun) -> None:
    engines = Engines(1.0)
    async with small_run.serving():
        node = small_run.node(make=engines, gpu=TWO, once=True)
        await node.daemon.run()
        assert len(engines.processes) == len(small_run.coordinator.submitted) == 1


@on_fake_clock
async def test_a_node_whose_engines_are_all_out_ends_with_the_reason(small_run: SmallRun) -> None:
    engines = Engines(1.0)
    engines.gone = True
    async with small_run.serving():
        with pytest.raises(NoUsableDevice, match="the GPU is gone"):
            await small_run.node(make=engines, gpu=TWO).daemon.run()


@on_fake_clock
async def test_a_pause_frees_every_device(small_run: SmallRun) -> None:
    engines = Engines(1.0)
    async with small_run.working(make=engines, gpu=TWO) as node:
        await until(lambda: node.daemon.rollouts.done >= 4)
        await node.daemon.commands.pause({})
        await anyio.sleep(10)
        assert all(process.engine is None for process in engines.processes)
        await node.daemon.commands.resume({})
        done = node.daemon.rollouts.done
        await until(lambda: node.daemon.rollouts.done > done)


@on_fake_clock
async def test_one_device_is_paused_and_the_other_works_on_and_follows(small_run: SmallRun) -> None:
    engines = Engines(1.0)
    async with small_run.working(make=engines, gpu="cuda:0,cuda:1") as node:
        await until(lambda: all(worker.done >= 2 for worker in node.daemon.rollouts.workers))
        commands = node.daemon.commands
        assert (await commands.pause({"gpu": "1", "seconds": 60}))["state"] != "paused"
        await anyio.sleep(6)
        first, second = node.daemon.rollouts.workers
        assert engines.processes[1].engine is None, "its memory is free"
        done, at = second.done, first.done
        rows = {row["device"]: row["blocked"] for row in (await commands.why({}))["devices"]}
        assert rows["cuda:1"].startswith("paused by the owner for ")
        assert (await commands.why({}))["blocked"] == "nothing blocks: the node works"
        await small_run.coordinator.publish(1)
        await until(lambda: versions(node)[0] == 1)
        await until(lambda: first.done >= at + 3)
        assert second.done == done
        await until(lambda: second.done > done and versions(node) == [1, 1], 120)
        await commands.pause({"gpu": "0,cuda:1"})
        assert (await commands.status({}))["state"] == "paused"
        await commands.resume({})
        assert (await commands.status({}))["state"] != "paused"
        with pytest.raises(BadConfig, match="no device 7: it computes on cuda:0, cuda:1"):
            await commands.pause({"gpu": "0,7"})
        assert not any(state.paused for state in node.daemon.run_state.devices), "all of them, or none"
        assert "refused" not in node.daemon.outbox.counts()
