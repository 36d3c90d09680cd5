"""The row about the memory of children: nothing reaches a private process, and what reaches one is told."""

import sys

import pytest

from benchmarks.attacks import child_memory
from benchmarks.attacks.child_memory import ATTACKERS, OPEN, UNLIMITED, Reached, judge
from benchmarks.attacks.reaching_task import REACHES

VICTIMS = ("coordinator", "another environment", "scorer", "learner", OPEN)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
def test_no_environment_and_no_other_process_reaches_the_coordinator_or_its_children() -> None:
    found = child_memory.finding(True)
    assert (found.tried, found.prevented) == (len(VICTIMS) * (len(ATTACKERS) + 1) * len(REACHES), True), found.note


def _nothing() -> Reached:
    return {attacker: dict.fromkeys(VICTIMS, 0) for attacker in (UNLIMITED, *ATTACKERS)}


def test_a_process_that_is_reached_breaks_the_row_unless_it_is_the_open_one_of_a_process_without_limits() -> None:
    found = _nothing()
    found[UNLIMITED][OPEN] = 4
    assert judge(found) == child_memory.AttackFinding(tried=80, prevented=True)
    found["an environment"][OPEN] = 1
    assert judge(found).note == "an environment reaches a process that is not private in 1 of 4 ways"
    assert not judge(found).prevented


def test_a_system_that_lets_no_process_trace_another_is_told() -> None:
    assert judge(_nothing()).prevented
    assert "nothing is shown of ours" in judge(_nothing()).note
