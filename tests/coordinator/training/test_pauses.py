"""Pauses begin after repeated trouble, last longer each time, and end by time, success or the operator. In minutes."""

import msgspec
import pytest

from echo2.coordinator.submissions.episode_record import KEPT_EPISODES
from echo2.coordinator.training.pauses import (
    MOST_UNSCORED,
    PAUSE_WINDOW_GROUPS,
    Pause,
    Pauses,
    PauseState,
    wait,
    window_of_episodes,
    window_of_groups,
)

MINUTE = 60_000


def at(minutes: float) -> int:
    return int(minutes * MINUTE)


def until(pauses: Pauses) -> float | None:
    assert pauses.pause is not None
    return None if pauses.pause.until is None else pauses.pause.until / MINUTE


def test_three_batches_in_a_row_pause_the_run_for_ten_minutes() -> None:
    pauses = Pauses()
    pauses.set_aside("E: bad", at(0))
    pauses.set_aside("E: bad", at(1))
    assert pauses.pause is None
    pauses.set_aside("E: worse", at(2))
    assert pauses.pause.why == "the learner failed at 3 batches in a row, the last time by E: worse"
    assert until(pauses) == 12
    assert pauses.look(at(11.99)) is None
    assert pauses.look(at(12)) is not None
    assert pauses.pause is None


def test_a_step_between_resets_the_count() -> None:
    pauses = Pauses()
    for minute in range(20):
        pauses.set_aside("E", at(minute))
        pauses.set_aside("E", at(minute))
        pauses.on_step()
    assert pauses.pause is None


def test_each_failed_attempt_doubles_the_pause_up_to_two_hours_and_a_step_resets_it() -> None:
    pauses, now, lasted = Pauses(), 0, []
    for _ in range(2):
        pauses.set_aside("E", now)
    for _ in range(7):
        pauses.set_aside("E", now)
        assert pauses.pause.until is not None
        lasted.append((pauses.pause.until - now) / MINUTE)
        now = pauses.pause.until
        assert pauses.look(now) is not None
    assert lasted == [10, 20, 40, 80, 120, 120, 120]
    pauses.on_step()
    pauses.set_aside("E", now)
    assert pauses.pause is None
    assert wait(10_000) == 120 * MINUTE


def test_resume_tries_at_once_and_keeps_the_count() -> None:
    pauses = Pauses()
    for _ in range(3):
        pauses.set_aside("E", at(0))
    assert pauses.resume() is not None
    assert pauses.pause is None
    assert pauses.resume() is None
    pauses.set_aside("E", at(1))
    assert until(pauses) == 21


def test_the_operators_pause_ends_by_resume_alone_and_outlasts_the_others() -> None:
    pauses = Pauses()
    pauses.stop("by its operator", at(0))
    for _ in range(5):
        pauses.set_aside("E", at(1))
    assert pauses.pause == Pause(kind="operator", why="by its operator", since=0)
    assert pauses.look(at(1e6)) is None
    assert pauses.resume() is not None


def test_of_two_pauses_the_one_that_ends_later_applies() -> None:
    pauses = Pauses()
    for _ in range(4):
        pauses.set_aside("E", at(0))
    assert until(pauses) == 20
    pauses.check_results([window_of_groups([1.0] * PAUSE_WINDOW_GROUPS)], at(5))
    assert until(pauses) == 20
    pauses.cannot_work("gone", at(15))
    pauses.cannot_work("gone", at(15))
    assert until(pauses) == 25


@pytest.mark.parametrize(("bad", "paused"), [(MOST_UNSCORED, False), (MOST_UNSCORED + 1, True)])
def test_more_than_five_percent_of_the_last_200_groups_without_a_reward_pause_it(bad: int, paused: bool) -> None:
    pauses = Pauses()
    recent = [0.0] * (PAUSE_WINDOW_GROUPS - bad) + [1.0] * bad
    assert pauses.check_results([window_of_groups(recent)], at(0)) is paused
    assert (pauses.pause is not None) is paused
    if pauses.pause is not None:
        assert "no finite reward for 5.5 % of the rollouts of the last 200 groups" in pauses.pause.why
        assert until(pauses) == 10


@pytest.mark.parametrize(("failed", "paused"), [(0.02, False), (0.05, False), (0.055, True)])
def test_single_rollouts_without_a_reward_count_as_rollouts(failed: float, paused: bool) -> None:
    """Of groups of 16, 2 rollouts in 100 spoil 28 % of the groups."""
    assert Pauses().check_results([window_of_groups([failed] * PAUSE_WINDOW_GROUPS)], at(0)) is paused


def test_after_200_good_groups_the_next_pause_for_rewards_is_short_again() -> None:
    pauses, bad = Pauses(), [1.0] * 11
    for wanted in (10, 20, 40):
        assert pauses.check_results([window_of_groups(bad)], at(0))
        assert until(pauses) == wanted
        assert pauses.resume() is not None
    assert not pauses.check_results([window_of_groups([0.0] * 199)], at(0))
    assert not pauses.check_results([window_of_groups([0.0] * 200)], at(0))
    assert pauses.check_results([window_of_groups(bad)], at(0))
    assert until(pauses) == 10


def test_a_failing_machine_gets_one_retry_at_once_and_then_a_pause() -> None:
    pauses = Pauses()
    pauses.cannot_work("NoDevice: gone", at(0))
    assert pauses.pause is None
    pauses.cannot_work("NoDevice: gone", at(0))
    assert until(pauses) == 10
    pauses.look(at(10))
    pauses.cannot_work("NoDevice: gone", at(10))
    assert until(pauses) == 30
    pauses.look(at(30))
    pauses.on_step()
    pauses.cannot_work("NoDevice: gone", at(31))
    assert pauses.pause is None


def test_the_state_survives_its_encoding() -> None:
    pauses = Pauses()
    for _ in range(4):
        pauses.set_aside("E", at(0))
    kept = msgspec.json.decode(msgspec.json.encode(pauses.standing), type=PauseState)
    again = Pauses(kept)
    assert again.pause == pauses.pause
    again.resume()
    again.set_aside("E", at(0))
    assert until(again) == 40


def test_setting_the_clock_back_makes_no_pause_longer() -> None:
    """The machine started with its clock a year ahead, which is corrected while the run is paused."""
    pauses, year = Pauses(), 365 * 24 * 60
    for _ in range(3):
        pauses.set_aside("E", at(year))
    assert pauses.look(at(4)) is None
    assert until(pauses) == 14
    assert pauses.look(at(14)) is not None
    pauses.stop("by its operator", at(year))
    assert pauses.look(at(20)) is None
    assert until(pauses) is None


def test_of_several_tasks_the_failing_one_is_named_and_a_healthy_one_excuses_nothing() -> None:
    pauses = Pauses()
    well, bad = (
        window_of_groups([0.0] * PAUSE_WINDOW_GROUPS, "add"),
        window_of_episodes([True] * 101, "it broke", "talk"),
    )
    for wanted in (10, 20):
        assert pauses.check_results([well, bad], at(0))
        assert pauses.pause.why.startswith("the environment of task talk failed in 101 of the last 101 episodes")
        assert "add" not in pauses.pause.why
        assert until(pauses) == wanted
        pauses.resume()
        assert not pauses.check_results([well, window_of_episodes([False] * 1_000, "", "talk")], at(0))
    assert not pauses.check_results([well, window_of_episodes([False] * KEPT_EPISODES, "", "talk")], at(0))
    assert pauses.check_results([well, bad], at(0))
    assert until(pauses) == 10
