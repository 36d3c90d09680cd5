"""A tiny model learns a task: warm-up, training on stale rollouts, held-out evaluation, all in this process."""

import pytest
import torch

from benchmarks.learning import Setting, run

WHOLE = Setting(hidden=64, warm_steps=200, steps=30, groups=12, staleness=4, rate=5e-4)
QUICK = WHOLE._replace(hidden=48, noise=0.05, warm_steps=160, warm_batch=32, steps=50, groups=8, rate=1.2e-3)


@pytest.mark.parametrize("setting", [QUICK, pytest.param(WHOLE, marks=pytest.mark.slow)], ids=["quick", "whole"])
@pytest.mark.slow
def test_a_tiny_model_learns_to_reverse_from_rollouts_four_steps_old(setting: Setting) -> None:
    torch.set_num_threads(1)
    outcome = run(setting, seed=0)
    assert 0.03 < outcome.before < 0.35, "the warm-up leaves room, and a signal"
    assert outcome.greedy_before < 0.35, "and most answers wrong"
    assert outcome.after > outcome.before + 0.3
    assert outcome.greedy_after > outcome.greedy_before + 0.3
