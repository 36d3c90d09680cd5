"""Runs that die: the product's training step on a tiny model, and what the guard makes of it."""

import pytest
from transformers import PreTrainedModel

from benchmarks import guards
from benchmarks.guards import CAUSES, Cause, delays, die, warmed
from echo2.coordinator.training.run_guard import KINDS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    """Return the model from which the runs start."""
    return warmed("reverse", 0)


def test_there_is_a_cause_for_each_kind() -> None:
    assert sorted(cause.kind for cause in CAUSES) == sorted(KINDS)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.kind)
def test_a_run_that_dies_is_named_and_paused_in_time(cause: Cause, model: PreTrainedModel) -> None:
    fate = die(cause, model, 0)
    named, paused = delays(cause, fate)
    bars = (guards.NAMED_EXAMS, guards.PAUSED_EXAMS) if cause.by_exams else (guards.NAMED_STEPS, guards.PAUSED_STEPS)
    assert named is not None
    assert 0 < named <= bars[0]
    assert paused is not None
    assert 0 < paused <= bars[1]


def test_a_healthy_run_goes_on() -> None:
    task = guards.registry.get("reverse", 1)
    fate = guards.live(guards.Run(warmed("reverse", 1), task, 1, heldout=task), 60)
    assert fate.paused is None
    assert fate.solved[1] > fate.solved[0]
