"""The estimate of the coordinator's clock."""

import anyio
import pytest

from echo2.node.trust.run_clock import RunClock, WrongClock
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import YEAR, FakeCoordinator, until, wall
from tests.support.small_run import SmallRun
from tests.support.swarm import accepted, working

DAY = 24 * 3_600_000
"""Milliseconds."""


@on_fake_clock
@pytest.mark.slow
async def test_a_clock_that_is_a_day_or_a_year_wrong_stops_no_work(small_run: SmallRun) -> None:
    async with small_run.serving():
        for number, off in enumerate((-DAY, DAY, -YEAR, YEAR)):
            node = small_run.node(f"node{number}", local=lambda off=off: wall() + off)
            async with working(node):
                await until(lambda n=node: accepted(n) >= 2)


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


def test_after_a_refusal_for_the_time_unsigned_times_count_again() -> None:
    clock = RunClock(Local(1000))
    clock.observe(9000, asked=1000, signed=True)
    clock.on_refusal()
    clock.observe(1000, asked=1000, signed=False)
    assert clock.now() == 1000


def test_a_time_past_the_end_of_the_root_is_not_believed_by_a_machine_that_is_before_it() -> None:
    local = Local(1000)
    clock = RunClock(local)
    clock.observe(5000, asked=1000, signed=True)
    clock.check(end=5001)
    assert clock.now() == 5000
    with pytest.raises(WrongClock, match="days ahead of this machine's"):
        clock.check(end=5000)
    assert clock.now() == 1000, "the offset is given up"
    local.time = 6000
    clock.check(end=5000)  # both clocks say that the Root has expired: RootExpired is for the caller


def _set_clock(coordinator: FakeCoordinator, ahead: int) -> None:
    """Set a coordinator's clock ahead of the true time, by ms."""
    coordinator.now = lambda: wall() + ahead  # type: ignore[method-assign]


@pytest.mark.parametrize("ahead", [-YEAR // 2, YEAR // 2, 2 * YEAR, 1 << 52])
@on_fake_clock
@pytest.mark.slow_but("63072000000", "4503599627370496")
async def test_a_node_works_again_once_its_coordinators_clock_is_right_again(ahead: int, small_run: SmallRun) -> None:
    """A clock half a year off is followed, one past the end of the Root is not. Neither ends the node, and the next
    leases bring it back."""
    coordinator = small_run.coordinator
    async with small_run.working() as node:
        await until(lambda: accepted(node) >= 1)
        _set_clock(coordinator, ahead)
        await anyio.sleep(20)
        told = (await node.daemon.commands.why({}))["not_believed"]
        assert any("past the end of the run's Root" in lie for lie in told) == (ahead > YEAR)
        assert abs(node.daemon.context.clock.now() - wall()) < YEAR
        _set_clock(coordinator, 0)
        before = accepted(node)
        with anyio.fail_after(120):
            await until(lambda: accepted(node) >= before + 2)


@on_fake_clock
@pytest.mark.slow
async def test_a_lease_far_in_the_future_does_not_end_a_node(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    async with small_run.working() as node:
        await until(lambda: accepted(node) >= 1)
        honest, far = coordinator.make_lease, 1 << 52
        coordinator.make_lease = lambda *asked, **rest: honest(  # type: ignore[method-assign]
            *asked, **{"sent": far, "expires": far + 60_000} | rest
        )
        await anyio.sleep(20)
        assert any("past the end" in lie for lie in node.coordinator_client.lies)
        coordinator.make_lease = honest  # type: ignore[method-assign]
        before = accepted(node)
        with anyio.fail_after(60):
            await until(lambda: accepted(node) >= before + 2)
