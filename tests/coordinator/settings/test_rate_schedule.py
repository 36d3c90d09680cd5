"""The learning rate of each step, and schedules that contradict themselves."""

import math

import pytest

from echo2.coordinator.learner.messages import Hyper, at_step
from echo2.coordinator.settings import config
from echo2.coordinator.settings.rate_schedule import decay, describe_rate, warm_up
from echo2.runtime.settings import SettingsFault

LINEAR = Hyper(learning_rate=1.0, warmup_steps=4, schedule="linear", schedule_steps=14, schedule_end=0.2)
COSINE = Hyper(learning_rate=1.0, warmup_steps=4, schedule="cosine", schedule_steps=14, schedule_end=0.2)
POINTS = Hyper(learning_rate=1.0, warmup_steps=4, schedule="steps", schedule_points=((5, 0.5), (9, 0.1)))


def rates(hyper: Hyper, steps: int) -> list[float]:
    """Return the rates of the first steps of a run."""
    return [at_step(hyper, 1.0, step).learning_rate * warm_up(hyper, step - 1) for step in range(1, steps + 1)]


def test_each_schedule_begins_with_the_warm_up_and_reaches_its_end_at_the_step_that_it_names() -> None:
    warm = [0.25, 0.5, 0.75, 1.0]
    assert rates(Hyper(learning_rate=1.0, warmup_steps=4), 6) == [*warm, 1.0, 1.0]
    assert rates(LINEAR, 16) == pytest.approx([*warm, *(1 - 0.08 * n for n in range(1, 11)), 0.2, 0.2])
    cosine = [0.2 + 0.4 * (1 + math.cos(math.pi * n / 10)) for n in range(1, 11)]
    assert rates(COSINE, 16) == pytest.approx([*warm, *cosine, 0.2, 0.2])
    assert rates(POINTS, 10) == [*warm, 0.5, 0.5, 0.5, 0.5, 0.1, 0.1]


def test_a_rollback_scales_the_rate_and_leads_back_to_no_higher_one() -> None:
    assert at_step(LINEAR, 0.5, 9).learning_rate == pytest.approx(0.5 * decay(LINEAR, 9)) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["schedule=cosine"], "learner: schedule cosine needs schedule_steps, the step of the run at which"),
        (["schedule=linear", "schedule_steps=10"], "schedule_steps is 10, and the warm-up alone takes 10 steps"),
        (["schedule_steps=10"], "schedule_steps is of the schedules linear and cosine, and schedule is constant"),
        (["schedule=steps"], "schedule steps needs schedule_points, as"),
        (["schedule_points=[[3, 0.5]]"], "schedule_points is of the schedule steps, and schedule is constant"),
        (["schedule=steps", "schedule_points=[[3, 0.5], [3, 0.1]]"], "schedule_points has steps that do not rise"),
        (["schedule=steps", "schedule_points=[[3]]"], "learner.schedule_points should be a longer list"),
        (["schedule=steps", "schedule_points=[[0, 0.5]]"], "learner.schedule_points should be greater than or equal"),
        (["schedule=steps", "schedule_points=[[3, -1]]"], "learner.schedule_points should be greater than or equal"),
        (["schedule=warm"], "learner.schedule should be 'constant', 'linear', 'cosine' or 'steps', not 'warm'"),
        (["schedule_end=1.5"], "learner.schedule_end should be less than or equal to 1, not 1.5"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_in_one_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(SettingsFault) as refused:
        config.parse({}, source="x", flags=config.from_assignments([f"learner.{word}" for word in words]))
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_schedule_is_described_in_words() -> None:
    assert describe_rate(Hyper(learning_rate=3e-4)) == "0.0003"
    assert describe_rate(Hyper(learning_rate=3e-4), 0.5) == "0.0003 x 0.5 by rollbacks"
    assert describe_rate(COSINE) == "1, cosine to 0.2 of it at step 14"
    assert describe_rate(POINTS) == "1, 0.5 of it from step 5, 0.1 of it from step 9"
