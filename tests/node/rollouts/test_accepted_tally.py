"""The log's summaries of accepted groups."""

from echo2.node.rollouts.accepted_tally import AcceptedTally


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
