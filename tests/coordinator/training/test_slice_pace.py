"""The size of an evaluation's slices."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from echo2.coordinator.training.slice_pace import (
    FIRST_SLICE_GROUPS,
    LEAST_SLICE_SECONDS,
    LONGEST_SLICE_SECONDS,
    MOST_SLICE_GROUPS,
    SlicePace,
    SliceTimes,
)

PROMPTS = 200


class Slice(NamedTuple):
    """A slice that a scorer generated; `seconds`: with the change of version."""

    answers: int
    seconds: float


def evaluation(pace: SlicePace, generate: Callable[[int], float], moved: float, verdict: float | None) -> list[Slice]:
    """Evaluate `PROMPTS` prompts with a scorer that generates n answers in `generate(n)` seconds."""
    pace.begin()
    slices = list[Slice]()
    while (left := PROMPTS - sum(one.answers for one in slices)) > 0:
        answers = min(left, pace.size)
        pace.note(answers, SliceTimes(moved, generate(answers), verdict))
        slices.append(Slice(answers, moved + generate(answers)))
    return slices


def settled(generate: Callable[[int], float], moved: float, verdict: float | None) -> list[Slice]:
    pace = SlicePace()
    for _ in range(4):
        slices = evaluation(pace, generate, moved, verdict)
    return slices


def one_by_one(answers: int) -> float:
    return 1.5 * answers


def together(answers: int) -> float:
    """Return the seconds of a scorer whose steps take nearly as long for one answer as for many."""
    return 10.0 + 0.05 * answers


SCORERS = {
    "answers one by one, verdicts of eight of them": (one_by_one, 0.0, 12.0),
    "answers one by one, short verdicts": (one_by_one, 0.0, 0.1),
    "answers one by one, slow changes of version": (one_by_one, 6.0, 2.0),
    "answers one by one, no verdict yet": (one_by_one, 0.0, None),
    "answers together, short verdicts": (together, 0.0, 1.0),
    "answers together, long verdicts": (together, 1.0, 40.0),
}


@pytest.mark.parametrize("name", SCORERS)
def test_a_slice_takes_as_long_as_a_verdict_or_twice_as_long_as_one_answer(name: str) -> None:
    generate, moved, verdict = SCORERS[name]
    longest = max(verdict or 0.0, 2 * (moved + generate(1)))
    slices = settled(generate, moved, verdict)
    assert max(one.seconds for one in slices) <= longest * 1.001
    assert len(slices) > 2, "else the bound means nothing here"


@pytest.mark.parametrize("name", SCORERS)
def test_an_evaluation_in_slices_takes_about_twice_the_scorers_time_at_most(name: str) -> None:
    generate, moved, verdict = SCORERS[name]
    whole = moved + generate(PROMPTS)
    assert sum(one.seconds for one in settled(generate, moved, verdict)) <= 2 * whole + 2 * (moved + generate(1))


def test_a_first_evaluation_begins_with_one_answer_and_is_soon_within_the_bound() -> None:
    slices = evaluation(SlicePace(), one_by_one, 0.0, 12.0)
    assert [one.answers for one in slices[:2]] == [1, FIRST_SLICE_GROUPS]
    assert {one.answers for one in slices[2:-1]} == {8}


def test_one_answer_that_ends_at_once_does_not_leave_the_others_alone() -> None:
    pace = SlicePace()
    evaluation(pace, together, 0.0, 1.0)
    pace.begin()
    pace.note(1, SliceTimes(0.0, 0.01, None))
    sizes = list[int]()
    for _ in range(12):
        sizes.append(pace.size)
        pace.note(sizes[-1], SliceTimes(0.0, together(sizes[-1]), None))
    assert sizes[-1] >= MOST_SLICE_GROUPS // 2


def test_the_rest_of_an_evaluation_makes_the_next_slices_no_smaller() -> None:
    pace = SlicePace()
    evaluation(pace, together, 0.0, None)
    before = pace.size
    pace.note(3, SliceTimes(0.0, together(3), None))
    assert pace.size == before > 3


def test_answers_of_a_quick_scorer_come_in_slices_of_a_second() -> None:
    slices = settled(lambda answers: 0.02 * answers, 0.0, 0.05)
    assert [one.answers for one in slices[1:4]] == [50] * 3
    assert max(one.seconds for one in slices) <= LEAST_SLICE_SECONDS


def test_a_clock_that_stands_still_bounds_nothing() -> None:
    assert [one.answers for one in settled(lambda answers: 0.0, 0.0, None)][1] == MOST_SLICE_GROUPS


def played(workers: int = 1) -> SlicePace:
    """Return the pace of a served task whose scorer takes no time."""
    pace = SlicePace(workers=workers, played=True)
    for _ in range(5):
        pace.note(1, SliceTimes(0.0, 0.0, None))
        pace.note(MOST_SLICE_GROUPS, SliceTimes(0.0, 0.0, None))
    return pace


def test_a_quick_environment_soon_gets_full_slices() -> None:
    pace = played()
    sizes = []
    for _ in range(4):
        sizes.append(pace.size)
        pace.note_environment(pace.size, 0.001 * pace.size)
    assert sizes == [FIRST_SLICE_GROUPS, 2 * FIRST_SLICE_GROUPS, 4 * FIRST_SLICE_GROUPS, MOST_SLICE_GROUPS]


def test_a_slow_environment_holds_the_scorer_for_a_bounded_time() -> None:
    for workers in (1, 4):
        pace, seconds = played(workers), 3.0  # of the environment, for each answer
        for _ in range(8):
            pace.note_environment(pace.size, seconds * pace.size)
        assert pace.size * seconds / workers <= LONGEST_SLICE_SECONDS


def test_an_answer_that_takes_longer_than_a_slice_may_comes_alone() -> None:
    pace = played()
    pace.note_environment(16, 16 * 100.0)
    assert pace.size == 1
