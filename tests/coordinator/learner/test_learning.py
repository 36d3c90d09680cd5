"""A tiny model learns a task: warm-up, training on stale rollouts, held-out evaluation, all in this process."""

import torch

from benchmarks.learning import Setting, run


def test_a_tiny_model_learns_to_reverse_from_rollouts_four_steps_old() -> None:
    torch.set_num_threads(1)
    setting = Setting(hidden=64, warm_steps=200, steps=30, groups=12, staleness=4, rate=5e-4)
    outcome = run(setting, seed=0)
    assert 0.03 < outcome.before < 0.35, "the warm-up leaves room, and a signal"
    assert outcome.greedy_before < 0.35, "and most answers wrong"
    assert outcome.after > outcome.before + 0.3
    assert outcome.greedy_after > outcome.greedy_before + 0.3
