"""The layout of several groups as one sequence: what stands where, and who attends to whom."""

import random

import pytest
import torch

from echo2.engines.transformers import packed_layout
from echo2.engines.transformers.packed_layout import PackedLayout, TokenGroup

CPU = torch.device("cpu")


def random_groups(seed: int, most: int) -> list[TokenGroup]:
    rng = random.Random(seed)
    return [
        TokenGroup(
            [rng.randrange(100) for _ in range(rng.randrange(1, most))],
            [[rng.randrange(100) for _ in range(rng.randrange(most))] for _ in range(rng.randrange(5))],
        )
        for _ in range(4)
    ]


def attended(layout: PackedLayout, window: int | None) -> torch.Tensor:
    """Return who attends to whom as the rows say it, [N, N], in number of times."""
    number = layout.ids.shape[1]
    counts = torch.zeros(number, number, dtype=torch.int64)
    for rows in layout.rows:
        for asked, seen in rows.blocks():
            queries, keys = rows.queries[:, asked], rows.keys[:, seen]
            mask = rows.mask(asked, seen, window)
            if mask is None:
                assert queries.shape[1] == keys.shape[1]
                mask = torch.ones(queries.shape[1], keys.shape[1], dtype=torch.bool).tril()
            own = torch.ones_like(queries, dtype=torch.bool) if rows.own is None else rows.own[:, asked]
            for row in range(len(queries)):
                for place in own[row].nonzero()[:, 0].tolist():
                    for key in keys[row][mask[place]].tolist():
                        counts[queries[row, place], key] += 1
    return counts


def expected(groups: list[TokenGroup], window: int | None) -> torch.Tensor:
    """The rule itself: one's own rollout so far, and the prompt of the group."""
    tokens = [
        (number, rollout, position)
        for number, group in enumerate(groups)
        for rollout, start, length in (
            (-1, 0, len(group.prompt)),
            *((index, len(group.prompt), len(one)) for index, one in enumerate(group.rollouts)),
        )
        for position in range(start, start + length)
    ]
    return torch.tensor([
        [
            int(
                group == other_group and other in (-1, rollout) and other_position <= position
                and (window is None or position - other_position < window)
            )
            for other_group, other, other_position in tokens
        ]
        for group, rollout, position in tokens
    ])  # fmt: skip


def test_a_group_is_its_prompt_and_then_its_rollouts_without_padding() -> None:
    layout = PackedLayout([TokenGroup([1, 2], [[3], [], [4, 5]]), TokenGroup([6], [[7]])], CPU)
    assert layout.ids.tolist() == [[1, 2, 3, 4, 5, 6, 7]]
    assert layout.positions.tolist() == [[0, 1, 2, 2, 3, 0, 1]]


def test_the_token_before_the_first_of_a_rollout_is_the_last_of_the_prompt() -> None:
    layout = PackedLayout([TokenGroup([1, 2], [[3], [], [4, 5]]), TokenGroup([6], [[7]])], CPU)
    assert [layout.before(0, 2, index) for index in range(3)] == [1, 3, 4]
    assert layout.before(0, 1, 0) == 1
    assert [layout.before(1, 0, index) for index in range(2)] == [5, 6]


@pytest.mark.parametrize("window", [None, 1, 3, 50])
@pytest.mark.parametrize("seed", range(3))
def test_each_token_attends_once_to_its_own_rollout_and_to_its_prompt(seed: int, window: int | None) -> None:
    groups = random_groups(seed, most=12)
    assert torch.equal(attended(PackedLayout(groups, CPU), window), expected(groups, window))


@pytest.mark.parametrize("window", [None, 5])
def test_long_rows_are_computed_in_blocks_that_look_no_further_than_their_end(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_layout, "QUERY_BLOCK", 4)
    monkeypatch.setattr(packed_layout, "KEYS_AT_ONCE", 40)
    groups = random_groups(7, most=14)
    layout = PackedLayout(groups, CPU)
    assert torch.equal(attended(layout, window), expected(groups, window))
    assert max(len(rows.keys) * rows.keys.shape[1] for rows in layout.rows if len(rows.keys) > 1) <= 40


def test_rows_of_like_length_share_a_product_also_across_groups() -> None:
    layout = PackedLayout([TokenGroup([1, 2, 3], [[1] * 40] * 4) for _ in range(3)], CPU)
    assert sorted(rows.queries.shape for rows in layout.rows) == [(3, 3), (12, 40)]
    uneven = PackedLayout([TokenGroup([1], [[1] * 500, [1], [1] * 450, [1]])], CPU)
    assert sorted(rows.queries.shape for rows in uneven.rows) == [(1, 1), (2, 1), (2, 500)]
