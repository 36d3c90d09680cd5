"""Leases requested ahead: the engine does not wait for the coordinator, and no lease is open longer than needed."""

import math
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from benchmarks.memory_network.transport import Link, MemoryNetwork
from echo2.engines.engine import EngineRows
from echo2.node.rollouts.lease_prefetch import LeasePrefetch
from echo2.protocol.leases import Lease
from echo2.protocol.requests import Refusal
from echo2.runtime.exit_codes import Exit
from tests.support.clock import run_fake
from tests.support.fake_coordinator import FakeCoordinator, InProcessEngine, Node, make_node, until, wall

DELAY = 0.1
"""Seconds of a line, one way; a group takes one second."""
TRIP = 4 * DELAY
"""Seconds from a question to its answer: a stream is opened first."""


def full(waiting: int = 0) -> EngineRows:
    return EngineRows(running=16, waiting=waiting, limit=16)


def given(ahead: LeasePrefetch, lease: bytes, rows: int) -> None:
    """Let a lease come, and give its group to the engine."""
    ahead.on_lease(lease, rows)
    ahead.on_grant(lease)


def test_a_free_place_asks_for_a_lease_now() -> None:
    ahead = LeasePrefetch()
    given(ahead, b"a", 9)
    assert ahead.wait(EngineRows(running=9, waiting=0, limit=16), 5.0) == 0.0
    assert ahead.wait(EngineRows(running=9, waiting=7, limit=16), 5.0) == math.inf


def test_an_engine_without_a_group_asks_whatever_it_told() -> None:
    assert LeasePrefetch().wait(EngineRows(), 5.0) == 0.0


def test_the_next_lease_is_requested_two_round_trips_before_a_group_is_done() -> None:
    ahead = LeasePrefetch()
    ahead.on_answer(0.3)
    given(ahead, b"a", 16)
    ahead.on_rows(full(), 80.0)
    assert ahead.wait(full(), 80.0) == math.inf  # no group has ended yet
    ahead.on_end(b"a", 90.0)
    given(ahead, b"b", 8)
    ahead.on_rows(EngineRows(running=8, limit=16), 97.0)
    given(ahead, b"c", 8)
    ahead.on_rows(full(), 100.0)
    assert ahead.wait(full(), 100.0) == pytest.approx(6.4)
    ahead.on_answer(7.0)
    assert ahead.wait(full(), 100.0) == 0.0


def test_a_group_that_the_engine_does_not_have_yet_waits_for_a_place_behind_the_others() -> None:
    """Several leases come at a time. The engine's rows tell nothing of those that it was not given yet."""
    ahead = LeasePrefetch()
    given(ahead, b"a", 16)
    ahead.on_rows(full(), 80.0)
    ahead.on_end(b"a", 90.0)
    given(ahead, b"b", 16)
    for lease in (b"c", b"d"):
        ahead.on_lease(lease, 16)
    ahead.on_rows(full(), 100.0)
    assert ahead.waiting == [b"c", b"d"]
    assert ahead.wait(full(), 100.0) == pytest.approx(30.0)
    ahead.on_end(b"b", 110.0)
    assert ahead.wait(EngineRows(running=0, limit=16), 110.0) == pytest.approx(20.0)
    ahead.on_grant(b"c")
    ahead.on_rows(full(), 110.0)
    assert ahead.waiting == [b"d"]


def test_rows_that_wait_take_the_places_of_the_groups_that_end_first() -> None:
    ahead = LeasePrefetch()
    given(ahead, b"a", 8)
    ahead.on_rows(EngineRows(running=8, limit=16), 90.0)
    ahead.on_end(b"a", 100.0)
    for number in range(3):
        given(ahead, bytes([number]), 8)
        ahead.on_rows(full(8) if number == 2 else full(), 100.0 + number)
    assert ahead.wait(full(8), 104.0) == pytest.approx(7.0)  # when the second ends: the third waits for the first
    given(ahead, b"d", 8)
    ahead.on_rows(full(16), 104.0)
    assert ahead.wait(full(16), 104.0) == pytest.approx(16.0)  # when the third ends


def test_as_many_leases_are_requested_as_groups_can_begin_until_they_are_here() -> None:
    ahead = LeasePrefetch()
    given(ahead, b"a", 8)
    ahead.on_rows(EngineRows(running=8, limit=16), 90.0)
    ahead.on_end(b"a", 91.0)
    for number, begun in enumerate((100.0, 100.5)):
        given(ahead, bytes([number]), 8)
        ahead.on_rows(EngineRows(running=8 * (number + 1), limit=16), begun)
    ahead.on_answer(0.2)
    assert ahead.lacking(full(), 8, 100.7) == 1  # the first ends within two round trips
    ahead.on_answer(0.5)
    assert ahead.lacking(full(), 8, 100.7) == 2
    ahead.on_answer(2.0)
    assert ahead.lacking(full(), 8, 100.7) == 8  # and those that begin in their places
    given(ahead, b"c", 8)
    ahead.on_rows(full(8), 100.7)
    assert ahead.lacking(full(8), 8, 100.7) == 7


class Recorded(FakeCoordinator):
    """A coordinator that counts open leases. `most_open`: the most leases without a submission at one time."""

    most_open = 0

    def lease(self, node: bytes, body: bytes) -> bytes | Refusal:
        answer = super().lease(node, body)
        self.most_open = max(self.most_open, len(set(self.leases) - set(self.submitted)))
        return answer

    def unworked(self) -> list[Lease]:
        return [lease for lease in self.leases.values() if lease.id not in self.submitted]


def with_one_node(folder: Path, play: Callable[[Recorded, Node], object], seconds: float = 1.0) -> None:
    """Run a node over connections with a delay until `play` returns, then to its end."""

    async def main() -> None:
        network, coordinator = MemoryNetwork(0, link=Link(delay=DELAY)), Recorded(folder / "coordinator")
        async with coordinator.serving(network):
            await coordinator.publish(0)
            node = make_node(network, folder / "node", coordinator.invite(), engine=InProcessEngine(seconds=seconds))
            ended: list[Exit] = []

            async def life() -> None:
                ended.append(await node.daemon.run())

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(life)
                await until(lambda: node.daemon.rollouts.done >= 3)
                await play(coordinator, node)  # type: ignore[misc]
                assert "refused" not in node.daemon.outbox.counts()
                node.daemon.interrupt("the test")
                await until(lambda: ended)
            assert ended == [Exit.OK]

    run_fake(main)


@pytest.mark.slow
def test_the_engine_does_not_wait_for_a_round_trip_between_two_groups(tmp_path: Path) -> None:
    async def play(coordinator: Recorded, node: Node) -> None:
        before = node.engine.generated
        await anyio.sleep(100)
        assert node.engine.generated - before >= 99  # with a question between them it would be 71

    with_one_node(tmp_path, play)


def test_a_node_that_ends_has_completed_the_lease_requested_ahead(tmp_path: Path) -> None:
    coordinators: list[Recorded] = []

    async def play(coordinator: Recorded, node: Node) -> None:
        coordinators.append(coordinator)
        await until(lambda: len(coordinator.unworked()) == 2)

    with_one_node(tmp_path, play)
    assert coordinators[0].unworked() == []
    assert coordinators[0].most_open == 2


@pytest.mark.slow
def test_a_newer_version_waits_for_one_group_more_at_most_and_costs_no_lease(tmp_path: Path) -> None:
    async def play(coordinator: Recorded, node: Node) -> None:
        for version in range(1, 8):
            await coordinator.publish(version)
            await until(lambda: node.daemon.engine.wanted)
            began = wall()
            await until(lambda v=version: node.daemon.engine.current.version == v)
            assert wall() - began <= 1000 + 2 * TRIP * 1000 + 100, "a group, what is asked ahead, this test's own looks"
            await anyio.sleep(0.37 * version)
        assert len(coordinator.unworked()) <= 2

    with_one_node(tmp_path, play)


def test_a_lease_requested_ahead_is_kept_over_a_pause(tmp_path: Path) -> None:
    coordinators: list[Recorded] = []

    async def play(coordinator: Recorded, node: Node) -> None:
        coordinators.append(coordinator)
        await until(lambda: len(coordinator.unworked()) == 2)
        await node.daemon.commands.pause({"seconds": 20})
        await anyio.sleep(10)
        assert node.engine.engine is None
        await anyio.sleep(10)
        await until(lambda: coordinator.unworked() == [] or len(coordinator.leases) > len(coordinator.submitted) + 1)

    with_one_node(tmp_path, play)
    assert coordinators[0].unworked() == []


@pytest.mark.slow
def test_a_key_with_one_lease_at_a_time_works_as_before(tmp_path: Path) -> None:
    async def play(coordinator: Recorded, node: Node) -> None:
        ours = coordinator.lease

        def one_at_a_time(peer: bytes, body: bytes) -> bytes | Refusal:
            if coordinator.unworked():
                return Refusal(code="too-many-leases", sentence="A node has one lease here.", retry_after=1000)
            return ours(peer, body)

        coordinator.lease = one_at_a_time  # type: ignore[method-assign]
        done = node.daemon.rollouts.done
        await anyio.sleep(60)
        assert node.daemon.rollouts.done - done >= 20

    with_one_node(tmp_path, play)
