"""Rollouts that the limit cut are kept, masked or penalised softly."""

import numpy as np
import pytest

from echo2.coordinator.learner.batches.batch_groups import TrainSample
from echo2.coordinator.learner.batches.cut_rollouts import CutRule, overlong


def sample(length: int, last: int = 9) -> TrainSample:
    tokens = np.array([*[5] * (length - 1), last], np.int32)
    return TrainSample(tokens=tokens, turns=[length], behaviour=np.zeros(length, np.float32), reward=1.0)


@pytest.mark.parametrize(("length", "share"), [(1, 0.0), (80, 0.0), (85, 0.25), (90, 0.5), (100, 1.0), (120, 1.0)])
def test_the_penalty_grows_over_the_last_fifth_of_the_limit(length: int, share: float) -> None:
    assert overlong(length, 100) == pytest.approx(share)
    assert CutRule("penalised", limit=100).reward(sample(length)) == pytest.approx(1 - share)


def test_only_masked_rollouts_lose_their_loss_and_only_penalised_ones_reward() -> None:
    for kind in ("kept", "masked", "penalised"):
        rule = CutRule(kind, limit=10, ends=(1, 2))
        assert rule.masks(sample(10)) == (kind == "masked")
        assert not rule.masks(sample(10, last=2))
        assert rule.reward(sample(10)) == (0.0 if kind == "penalised" else 1.0)
