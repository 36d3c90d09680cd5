"""A node with several engines: one identity, a rollout loop per engine, and versions that change per engine."""

import anyio
import pytest

from node.errors import NoUsableDevice
from protocol.requests import Refusal
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
async def test_an_engine_killed_in_mid_lease_loses_nothing_and_the_other_works_on(small_run: SmallRun) -> None:
    engines = Engines(5.0)
    async with small_run.working(make=engines, gpu=TWO) as node:
        await until(lambda: node.daemon.rollouts.done >= 4)
        engines.processes[0].crashes = 1
        await until(lambda: node.daemon.fleet.deaths == 1)
        await until(lambda: accepted(node) >= 20)
        assert "refused" not in node.daemon.outbox.counts()
        assert len(engines.processes) == 3
        assert all(process.generated for process in engines.processes[1:])
        assert len(small_run.open_leases) <= 8


@on_fake_clock
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
        assert ["the GPU is gone" in row["state"] for row in status["engines"]].count(True) == 1
        await small_run.coordinator.publish(1)
        await until(lambda: 1 in versions(node))
        engines.gone = False
        await until(lambda: versions(node) == [1, 1], 600)
        await until(lambda: all(worker.working for worker in node.daemon.rollouts.workers), 60)
        assert "refused" not in node.daemon.outbox.counts()


@on_fake_clock
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
