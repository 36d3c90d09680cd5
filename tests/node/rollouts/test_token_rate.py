"""The tokens per second of an engine."""

from echo2.node.rollouts.token_rate import MEDIAN_GROUPS, WINDOW_SECONDS, TokenRate


def test_before_the_first_whole_group_there_is_no_rate() -> None:
    assert TokenRate().per_second(5.0) is None


def test_groups_side_by_side_add_up() -> None:
    rate = TokenRate()
    for _ in range(4):
        rate.note(100, began=0.0, now=10.0)
    assert rate.per_second(10.0) == 40.0


def test_an_engine_that_stopped_falls_to_nothing() -> None:
    rate = TokenRate()
    rate.note(300, began=0.0, now=10.0)
    assert rate.per_second(10.0 + WINDOW_SECONDS / 2) == 300 / (10.0 + WINDOW_SECONDS / 2)
    assert rate.per_second(11.0 + WINDOW_SECONDS) == 0.0


def test_a_group_longer_than_the_window_counts_whole_and_no_more() -> None:
    rate = TokenRate()
    for number in range(1, 6):
        rate.note(1000, began=1000.0 * (number - 1), now=1000.0 * number)
    assert rate.per_second(5000.0) == 1.0


def test_a_group_and_a_rollout_take_the_median_of_the_last_ones() -> None:
    rate = TokenRate()
    assert rate.usual_durations() is None
    for seconds, part in ((500.0, 0.5), (5.0, 0.4), (7.0, 1.0)):
        rate.note(10, began=0.0, now=seconds, part=part)
    assert rate.usual_durations() == (7.0, 7.0)
    for _ in range(MEDIAN_GROUPS):
        rate.note(10, began=0.0, now=3.0, part=0.5)
    assert rate.usual_durations() == (3.0, 1.5)
