"""Simulated prompts: which groups teach something, and how the product's rules of selection move that."""

import pytest

from benchmarks.plays.comparison import ALL, FleetTerms, compared
from benchmarks.plays.run_scene import RunScene, fleet
from benchmarks.plays.simulated_prompts import LeasedPrompt, PromptTerms, SimulatedPrompts
from benchmarks.plays.simulated_run import SimulatedRun

TERMS = PromptTerms(number=200)


def test_a_group_with_equal_rewards_teaches_nothing_and_passes_no_learner() -> None:
    prompts = SimulatedPrompts(TERMS, 0)
    before = prompts.figures()
    prompts.learn([LeasedPrompt(number=3, successes=0), LeasedPrompt(number=3, successes=8)])
    after = prompts.figures()
    assert before.signal == after.signal == after.passed == after.strength == 0.0
    assert prompts.useful == 0


def test_learning_moves_a_prompt_and_solved_prompts_lose_their_signal() -> None:
    prompts = SimulatedPrompts(TERMS, 0)
    start = SimulatedPrompts(TERMS, 0)
    start.learn([LeasedPrompt()])
    for _ in range(100):
        prompts.learn(LeasedPrompt(number=index, successes=4) for index in range(TERMS.number))
    assert prompts.figures().solved > start.figures().solved + 0.2
    assert prompts.figures().solved < 0.9  # a fifth never succeeds


def test_known_prompts_of_equal_rewards_are_chosen_less_often() -> None:
    prompts = SimulatedPrompts(TERMS._replace(by_variance=True), 0)
    for index in range(TERMS.number):
        for node in range(3):
            prompts.came(bytes([node]), LeasedPrompt(number=index, successes=4 if index < 20 else 8))
    chosen = [prompts.prompt_at(position) for position in range(400)]
    assert sum(index < 20 for index in chosen) > 2 * 400 * 20 / 200


def test_the_same_seed_draws_the_same_prompts_and_rewards() -> None:
    scene = RunScene(fleet(True, 8, 1.5, 8, 1, 0), batch=8, prompts=TERMS._replace(by_variance=True))
    first, second = (SimulatedRun(scene, windowed=True, seed=4).run(steps=12) for _ in range(2))
    assert first == second
    assert first.useful > first.leases
    assert SimulatedRun(scene, windowed=True, seed=5).run(steps=12).selection != first.selection


@pytest.mark.slow
def test_each_rule_of_selection_is_a_row_and_does_what_it_is_for() -> None:
    terms = FleetTerms(nodes=30, batch=16, prompts=200)
    rows = {row.name: row.mean for row in compared(terms, 60.0 * 80, 1, ablate=True)}
    assert list(rows) == [ALL, "without window", "by signal", "room, signal", "by variance"]
    assert rows["by variance"].signal > 1.1 * rows[ALL].signal
    assert rows["by variance"].useful < 0.95 * rows[ALL].useful
    assert rows["room, signal"].signal > rows["without window"].signal


def test_where_prompts_are_alike_nothing_is_told_of_them() -> None:
    (row,) = compared(FleetTerms(nodes=20, batch=8), 600.0, 1, ablate=False)
    assert (row.mean.useful, row.mean.signal, row.mean.solved) == (0.0, 0.0, 0.0)
