"""It learns: the whole path from warm-up over stale rollouts to held-out answers, in this process."""

import torch

from benchmarks.learning import Setting, run


def test_a_tiny_model_learns_to_reverse_from_rollouts_four_steps_old() -> None:
    torch.set_num_threads(1)
    setting = Setting(hidden=64, warm_steps=200, steps=30, groups=12, staleness=4, rate=5e-4)
    found = run(setting, seed=0)
    assert 0.03 < found.before < 0.35, "the warm-up leaves room, and a signal"
    assert found.greedy_before < 0.35, "and most answers wrong"
    assert found.after > found.before + 0.3
    assert found.greedy_after > found.greedy_before + 0.3
