"""The size of an evaluation's slices."""

from echo2.coordinator.training.slice_pace import (
    FIRST_SLICE_GROUPS,
    LONGEST_SLICE_SECONDS,
    MOST_SLICE_GROUPS,
    SlicePace,
)


def test_answers_that_wait_for_no_environment_come_in_full_slices() -> None:
    pace = SlicePace()
    assert pace.size == MOST_SLICE_GROUPS
    pace.note(7, 0.0)
    assert pace.size == MOST_SLICE_GROUPS


def test_a_quick_environment_soon_gets_full_slices() -> None:
    pace = SlicePace(played=True)
    sizes = []
    for _ in range(4):
        sizes.append(pace.size)
        pace.note(pace.size, 0.001 * pace.size)
    assert sizes == [FIRST_SLICE_GROUPS, 2 * FIRST_SLICE_GROUPS, 4 * FIRST_SLICE_GROUPS, MOST_SLICE_GROUPS]


def test_a_slow_environment_holds_the_scorer_for_a_bounded_time() -> None:
    for workers in (1, 4):
        pace, seconds = SlicePace(workers=workers, played=True), 3.0  # of the environment, for each answer
        for _ in range(8):
            pace.note(pace.size, seconds * pace.size)
        assert pace.size * seconds / workers <= LONGEST_SLICE_SECONDS


def test_an_answer_that_takes_longer_than_a_slice_may_comes_alone() -> None:
    pace = SlicePace(played=True)
    pace.note(16, 16 * 100.0)
    assert pace.size == 1
