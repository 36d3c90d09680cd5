"""The estimate of the coordinator's clock."""

from pathlib import Path

from node.trust.run_clock import RunClock
from p2p.memory.transport import MemoryNetwork
from tests.support.clock import run_fake
from tests.support.fake_coordinator import FakeCoordinator, make_node, until, wall
from tests.support.swarm import working


def test_a_clock_that_is_a_day_wrong_stops_no_work(tmp_path: Path) -> None:
    async def main() -> None:
        network, coordinator = MemoryNetwork(0), FakeCoordinator(tmp_path / "coordinator")
        async with coordinator.serving(network):
            await coordinator.publish(0)
            for number, hours in enumerate((-24, 24)):
                home, off = tmp_path / f"node{number}", hours * 3_600_000
                node = make_node(network, home, coordinator.invite(), local=lambda off=off: wall() + off)
                async with working(node):
                    await until(lambda n=node: n.daemon.outbox.counts().get("accepted", 0) >= 2)

    run_fake(main)


class Local:
    """A clock that the test sets. `time`: milliseconds."""

    def __init__(self, time: int) -> None:
        self.time = time

    def __call__(self) -> int:
        return self.time


def test_the_offset_moves_only_as_far_as_question_and_answer_demand() -> None:
    local = Local(1000)
    clock = RunClock(local)
    local.time = 1100
    clock.observe(1050, asked=1000, signed=False)
    assert clock.now() == 1100, "the stated time lies between question and answer: no correction"
    clock.observe(5000, asked=1000, signed=False)
    assert clock.now() == 5000, "the run is ahead: the least offset that explains the answer"
    clock.observe(100, asked=1050, signed=False)
    assert clock.now() == 150, "the run is behind: the largest offset that explains the answer"


def test_after_a_signed_time_unsigned_times_are_ignored() -> None:
    local = Local(1000)
    clock = RunClock(local)
    clock.observe(9000, asked=1000, signed=True)
    clock.observe(0, asked=1000, signed=False)
    assert clock.now() == 9000
    clock.observe(3000, asked=1000, signed=True)
    assert clock.now() == 3000


def test_the_run_time_is_never_negative() -> None:
    local = Local(1000)
    clock = RunClock(local)
    clock.observe(500, asked=1000, signed=False)
    local.time = 0
    assert clock.now() == 0
