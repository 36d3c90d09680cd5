import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.coordinator.learner.batches.batch import TrainRow, rows, shared
from echo2.coordinator.learner.batches.batch_groups import TrainBatch
from echo2.coordinator.learner.batches.dealing import deal, shares
from echo2.coordinator.learner.batches.share_codec import decode_share, encode_share
from tests.support.tiny_learner import batch, group


def rollouts(number: int, tokens: int) -> list[TrainRow]:
    """Return a group of one rollout with so many tokens."""
    none = np.zeros(0, np.float32)
    return [TrainRow(np.zeros(tokens, np.int32), np.zeros(0, np.int64), none, 1.0, 0, 1, number)]


@given(st.lists(st.integers(1, 500), max_size=40), st.integers(1, 9))
@pytest.mark.slow
def test_each_group_goes_to_one_rank_in_its_order_and_no_rank_has_too_many_tokens(sizes: list[int], ranks: int) -> None:
    groups = [rollouts(number, size) for number, size in enumerate(sizes)]
    dealt = deal(groups, ranks)
    numbers = [[part[0].group for part in own] for own in dealt]
    assert sorted(number for own in numbers for number in own) == [*range(len(groups))]
    assert all(own == sorted(own) for own in numbers)
    most = max(shared(own) for own in dealt)
    assert most <= sum(sizes) / ranks + max(sizes, default=0), "Graham's bound of any list"
    assert deal(groups, ranks) == dealt


def test_one_rank_gets_the_batch_as_it_stands() -> None:
    train_rows = rows(batch(1, groups=5), "group")
    (share,) = shares(train_rows, 1)
    assert [row.group for part in share.minis[0].signal for row in part] == [
        row.group for part in train_rows.groups for row in part
    ]
    assert (share.tokens, share.rollouts) == (train_rows.tokens, train_rows.rollouts)


def test_each_rank_has_a_part_of_each_mini_batch_though_it_may_be_empty() -> None:
    train_rows = rows(batch(1, groups=3), "group")
    dealt = shares(train_rows, 2, ranks=4)
    assert [len(share.minis) for share in dealt] == [2] * 4
    assert sum(len(mini.signal) for share in dealt for mini in share.minis) == 3


def test_a_share_is_the_same_after_it_was_sent() -> None:
    chance = random.Random(3)
    groups = [group(chance, "flat", reward=1.0), *(group(chance, str(number), turns=(4, 2, 3)) for number in range(3))]
    for share in shares(rows(TrainBatch(step=4, groups=groups), "group", flat=True), 2, ranks=2):
        sent = decode_share(encode_share(share))
        assert sent[1:] == share[1:]
        assert len(sent.minis) == len(share.minis)
        for mini, own in zip(sent.minis, share.minis, strict=True):
            for part, other in zip([*mini.signal, *mini.flat], [*own.signal, *own.flat], strict=True):
                for row, was in zip(part, other, strict=True):
                    assert row[3:] == was[3:]
                    for values, before in zip(row[:3], was[:3], strict=True):
                        np.testing.assert_array_equal(values, before, strict=True)
