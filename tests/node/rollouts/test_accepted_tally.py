"""The log's summaries of accepted groups."""

from echo2.node.rollouts.accepted_tally import LATE_IN_ROW, AcceptedTally


def test_the_first_group_is_said_at_once_and_later_ones_once_a_minute() -> None:
    tally = AcceptedTally()
    assert tally.add(1_248, 0) == (1, 1.248)
    assert [tally.add(1_000, at) for at in (1_000, 30_000, 59_999)] == [None] * 3
    assert tally.add(500, 60_000) == (4, 3.5)
    assert tally.add(500, 60_001) is None


def test_a_clock_that_jumps_back_silences_nothing() -> None:
    tally = AcceptedTally()
    tally.add(1_000, 10**12)
    assert tally.add(1_000, 0) == (1, 1.0)


def test_groups_in_a_row_that_come_too_late_are_told_at_twice_as_many_each_time() -> None:
    tally = AcceptedTally()
    told = [number for number in range(1, 5 * LATE_IN_ROW) if tally.note_age(late=True)]
    assert told == [LATE_IN_ROW, 2 * LATE_IN_ROW, 4 * LATE_IN_ROW]
    assert not tally.note_age(late=False)
    assert [tally.note_age(late=True) for _ in range(LATE_IN_ROW)] == [False] * (LATE_IN_ROW - 1) + [True]
