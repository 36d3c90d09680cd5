"""The estimate of the coordinator's clock."""

from node.trust.run_clock import RunClock
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until, wall
from tests.support.small_run import SmallRun
from tests.support.swarm import accepted, working


@on_fake_clock
async def test_a_clock_that_is_a_day_wrong_stops_no_work(small_run: SmallRun) -> None:
    async with small_run.serving():
        for number, hours in enumerate((-24, 24)):
            off = hours * 3_600_000
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
