"""Plans of held-out groups: how many are open, and what a look at them costs."""

from types import SimpleNamespace
from typing import Any

import pytest

from echo2.coordinator.prompts.heldout_plans import HeldoutPrompt, PromptKey
from echo2.coordinator.prompts.pass_rates import PromptAnswers
from echo2.coordinator.prompts.prompts import Prompt
from echo2.coordinator.training.evaluation import EvaluationSet
from echo2.coordinator.training.heldout_evaluation import MOST_OPEN, HeldoutEvaluation
from echo2.coordinator.training.slice_pace import SlicePace
from echo2.tasks.tokenizer import EOS
from tests.support import sqlite_cost
from tests.support.group_world import TEXT, World, name
from tests.support.hosted_task import HostedTask


def evaluation(world: World, groups: int) -> HeldoutEvaluation:
    """An evaluation of every version, whose prompts are posed."""
    history: Any = SimpleNamespace(add=lambda result: None)
    sets = [EvaluationSet(HostedTask(TEXT), EOS, limit=16, prompts=groups, pace=SlicePace())]
    world.group_service.leases.heldout.prompts = {
        PromptKey("riddle", index): HeldoutPrompt(Prompt("riddle", 3, index, [5]), [name("seed", index)])
        for index in range(groups)
    }
    return HeldoutEvaluation(
        world.group_service, sets, history, groups=groups, every=1, clock=lambda: world.now / 1000, left=lambda: None
    )


def test_where_no_group_is_generated_plans_do_not_pile_up_and_the_oldest_version_is_not_kept_for_ever(
    world: World,
) -> None:
    one, plans = evaluation(world, 2), world.group_service.leases.heldout
    for version in range(3 * MOST_OPEN):
        world.learner_at(version)
        one.look()
    assert [version for _, version in plans.open_plans()] == list(range(MOST_OPEN))
    for group in plans.left_to_scorer(2):  # the scorer comes to the oldest plan
        plans.answered(group.id, PromptAnswers(2, 1), by_operator=True)
    one.look()
    world.learner_at(3 * MOST_OPEN)
    one.look()
    assert [version for _, version in plans.open_plans()] == [*range(1, MOST_OPEN), 3 * MOST_OPEN]


@pytest.mark.parametrize("groups", [4, 400])
def test_a_look_at_open_plans_costs_no_more_with_more_groups_and_versions(world: World, groups: int) -> None:
    one = evaluation(world, groups)
    world.learner_at(0)
    one.look()
    for version in range(1, groups // 4):
        world.publish(version)
    one.look()  # leaves them to the scorer
    assert sqlite_cost.instructions(world.group_service.database, one.look) < 120
