import math
import random

import numpy as np
import pytest
import torch

from echo2.coordinator.learner.batches.batch import (
    Cost,
    TrainRow,
    count_padded_tokens,
    expected_log,
    pack,
    rows,
    shared,
    split,
)
from echo2.coordinator.learner.batches.batch_groups import BadBatch, Floats, Tokens, TrainBatch, TrainGroup, TrainSample
from tests.support.tiny_learner import batch, group, sample


def ids(*values: int) -> Tokens:
    return np.array(values, np.int32)


def logs(*values: float) -> Floats:
    return np.array(values, np.float32)


def row(length: int, prompt: int = 1) -> TrainRow:
    return TrainRow(np.ones(length, np.int32), np.array([length - 1]), logs(-1.0), 1.0, 0, prompt, 0)


def turns_batch() -> TrainBatch:
    first = TrainSample(tokens=ids(10, 11, 20, 21, 12), turns=[2, 2, 1], behaviour=logs(-0.1, -0.2, -0.3), reward=1.0)
    second = TrainSample(tokens=ids(13, 14), turns=[2], behaviour=logs(-0.4, -0.5), reward=0.0)
    return TrainBatch(step=7, groups=[TrainGroup(id=b"g", version=4, prompt=ids(5, 6, 7), samples=[first, second])])


def test_the_probability_that_a_group_was_expected_to_have_is_of_its_rollouts_geometric_means() -> None:
    ((first, second),) = rows(turns_batch(), "mean").groups
    one, other = math.exp(-0.2), math.exp(-0.45)
    assert math.exp(first.expected) == pytest.approx((one * one + other * other) / (one + other))
    (micro,) = pack([[first, second]], 1000)
    assert micro.expected.tolist() == pytest.approx([first.expected] * 5)
    assert expected_log([logs(-2000.0), logs(-2000.0)]) == pytest.approx(-2000.0), "no probability underflows"


def test_only_sampled_tokens_are_targets_and_each_is_predicted_from_the_one_before() -> None:
    ((first, second),) = rows(turns_batch(), "mean").groups
    assert (first.targets.tolist(), second.targets.tolist()) == ([3, 4, 7], [3, 4])
    assert (first.age, first.advantage, second.advantage) == (2, 0.5, -0.5)
    (micro,) = pack([[first, second]], 1000)
    assert [row.tokens.tolist() for row in micro.rows] == [[5, 6, 7, 13, 14], [5, 6, 7, 10, 11, 20, 21, 12]]
    assert [row.prompt for row in micro.rows] == [3, 3]
    assert micro.target.tolist() == [13, 14, 10, 11, 12]
    assert micro.row.tolist() == [0, 0, 1, 1, 1]
    assert micro.position.tolist() == [2, 3, 2, 3, 6]
    torch.testing.assert_close(micro.behaviour, torch.tensor([-0.4, -0.5, -0.1, -0.2, -0.3]))
    assert micro.advantage.tolist() == [-0.5, -0.5, 0.5, 0.5, 0.5]
    assert micro.age.tolist() == [2] * 5


def test_groups_without_signal_cost_no_pass() -> None:
    chance = random.Random(1)
    flat = group(chance, "flat", reward=0.2)
    train_rows = rows(TrainBatch(step=1, groups=[flat, group(chance, "live")]), "group")
    assert (len(train_rows.groups), train_rows.zero_variance) == (1, 1)


@pytest.mark.parametrize("cost", [shared, count_padded_tokens])
def test_no_micro_batch_exceeds_its_budget_and_no_token_is_lost(cost: Cost) -> None:
    chance = random.Random(2)
    mini = [[row(length)] for length in chance.choices(range(2, 40), k=50)]
    packed = list(pack(mini, 64, cost))
    assert all(cost(micro.groups) <= 64 for micro in packed)
    assert sum(len(micro.target) for micro in packed) == 50
    assert len(packed) < 50


def test_a_prompt_counts_once_for_its_group_and_for_each_rollout_where_it_is_padded() -> None:
    part = [row(length, prompt=10) for length in (12, 15, 20)]
    assert (shared([part]), count_padded_tokens([part])) == (10 + 2 + 5 + 10, 3 * 20)
    assert (shared([part, part]), count_padded_tokens([part, part[:1]])) == (2 * 27, 4 * 20)
    assert (shared([]), count_padded_tokens([])) == (0, 0)


def test_a_group_longer_than_the_budget_is_divided_and_each_part_has_the_prompt() -> None:
    part = [row(length, prompt=10) for length in (12, 15, 20)]
    micros = list(pack([part], 20))
    assert [[len(one.tokens) for one in micro.rows] for micro in micros] == [[12, 15], [20]]
    assert [shared(micro.groups) for micro in micros] == [17, 20]


def test_a_rollout_longer_than_the_budget_is_a_micro_batch_of_its_own() -> None:
    long, short = row(100), row(5)
    assert [[len(one.tokens) for one in micro.rows] for micro in pack([[long], [short]], 64)] == [[5], [100]]


@pytest.mark.parametrize(
    ("groups", "minibatches", "sizes"), [(8, 4, [2, 2, 2, 2]), (5, 4, [2, 1, 1, 1]), (2, 4, [1, 1])]
)
def test_groups_are_assigned_whole_to_minibatches(groups: int, minibatches: int, sizes: list[int]) -> None:
    assert [len(part) for part in split(rows(batch(1, groups=groups), "group").groups, minibatches)] == sizes


def altered(**changes: object) -> TrainBatch:
    good = {"tokens": ids(2, 3), "turns": [2], "behaviour": logs(-1.0, -1.0), "reward": 1.0}
    bad = TrainSample(**(good | changes))  # type: ignore[arg-type]
    other = sample(random.Random(0), reward=0.0)
    return TrainBatch(step=1, groups=[TrainGroup(id=b"g", version=0, prompt=ids(5), samples=[bad, other])])


BAD = {
    "turns that do not add up": (altered(turns=[3], behaviour=logs(*[-1.0] * 3)), "turn lengths"),
    "a log-probability too few": (altered(behaviour=logs(-1.0)), "1 log-probabilities for 2 tokens"),
    "a log-probability for a given token": (altered(turns=[1, 1]), "2 log-probabilities for 1 tokens"),
}


@pytest.mark.parametrize("sentence", BAD)
def test_an_inconsistent_sample_is_refused(sentence: str) -> None:
    bad, message = BAD[sentence]
    with pytest.raises(BadBatch, match=message):
        rows(bad, "group")


def test_an_empty_prompt_is_refused() -> None:
    chance = random.Random(0)
    bad = TrainGroup(id=b"g", version=0, prompt=ids(), samples=[sample(chance), sample(chance)])
    with pytest.raises(BadBatch, match="prompt is empty"):
        rows(TrainBatch(step=1, groups=[bad]), "group")
