"""Test attention between tokens against the rule said in words. Attention itself: test_packed_attention.py."""

from itertools import product

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from echo2.engines.transformers.packed_flex import BLOCK, TokenMasks
from echo2.engines.transformers.packed_layout import PackedLayout, TokenGroup

GROUPS = [TokenGroup([3, 1, 4], [[1, 5], [], [9, 2, 6, 5]]), TokenGroup([3, 5], [[8], [9, 7]])]


def rows() -> list[tuple[int, int, int]]:
    """Return (group, rollout, position) of each token; rollout -1: of the prompt."""
    places = []
    for number, group in enumerate(GROUPS):
        prompt = len(group.prompt)
        places += [(number, -1, place) for place in range(prompt)]
        places += [
            (number, index, prompt + place)
            for index, tokens in enumerate(group.rollouts)
            for place in range(len(tokens))
        ]
    return places


@pytest.mark.parametrize("window", [None, 1, 3])
def test_a_token_sees_its_own_rollout_and_its_prompt_up_to_itself(window: int | None) -> None:
    masks = PackedLayout(GROUPS, torch.device("cpu"), one_call=True).masks
    assert masks.of(window) is masks.of(window)
    sees = masks._rule(window)
    none = torch.tensor(0)
    places = rows()
    for query, key in product(range(len(places)), repeat=2):
        (group, rollout, at), (other_group, other_rollout, before) = places[query], places[key]
        expected = group == other_group and other_rollout in (rollout, -1) and 0 <= at - before < (window or 99)
        assert bool(sees(none, none, torch.tensor(query), torch.tensor(key))) == expected, (query, key)


def layouts() -> list[list[TokenGroup]]:
    """Return layouts whose rows lie in every relation to the blocks: within one, across several, at their edges."""
    random = np.random.default_rng(3)
    edges = [TokenGroup([1] * (2 * BLOCK), [[2] * BLOCK, [], [2] * (3 * BLOCK)]), TokenGroup([1] * BLOCK, [[2]])]
    mixed = [
        [
            TokenGroup([1] * int(random.integers(1, 300)), [[2] * int(random.integers(0, 300)) for _ in range(3)])
            for _ in range(int(random.integers(1, 4)))
        ]
        for _ in range(4)
    ]
    return [edges, [TokenGroup([1], [[2]])], [TokenGroup([1] * 3, [[2] * 5] * 40)], *mixed]


def dense(numbers: torch.Tensor | None, order: torch.Tensor | None) -> torch.Tensor:
    """Return the blocks that a mask of PyTorch's names: bool [queries, keys]."""
    assert numbers is not None
    assert order is not None
    named = torch.zeros(order.shape[-2:], dtype=torch.bool)
    for row, number in enumerate(numbers[0, 0].tolist()):
        named[row, order[0, 0, row, :number].long()] = True
    return named


def blocks_of_all_pairs(masks: TokenMasks, window: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the blocks in part and as a whole, as PyTorch finds them by a mask of all pairs of tokens."""
    size = len(masks._positions)
    right = create_block_mask(masks._rule(window), None, None, size, size, device="cpu")
    return dense(right.kv_num_blocks, right.kv_indices), dense(right.full_kv_num_blocks, right.full_kv_indices)


@pytest.mark.parametrize("number", range(len(layouts())))
def test_the_blocks_are_those_of_a_mask_of_all_pairs(number: int) -> None:
    masks = PackedLayout(layouts()[number], torch.device("cpu"), one_call=True).masks
    assert masks is not None
    partial, whole = masks.blocks(None)
    right_partial, right_whole = blocks_of_all_pairs(masks, None)
    assert torch.equal(partial | whole, right_partial | right_whole)
    assert not (whole & ~right_whole).any()
    assert (right_whole & ~whole).sum() <= len(layouts()[number]), "the end of a prompt with its first rollout"
    own = masks.of(None)
    assert torch.equal(dense(own.kv_num_blocks, own.kv_indices), partial)
    assert torch.equal(dense(own.full_kv_num_blocks, own.full_kv_indices), whole)
    assert own.seq_lengths == (len(masks._positions),) * 2


@pytest.mark.parametrize("window", [1, 100, BLOCK, 300, 2000])
def test_with_a_window_no_block_is_left_out_and_few_are_named_in_vain(window: int) -> None:
    vain = right = 0
    for groups in layouts():
        masks = PackedLayout(groups, torch.device("cpu"), one_call=True).masks
        assert masks is not None
        partial, whole = masks.blocks(window)
        right_partial, right_whole = blocks_of_all_pairs(masks, window)
        seen = right_partial | right_whole
        assert not (whole & ~right_whole).any()
        assert not (seen & ~(partial | whole)).any()
        vain, right = vain + int((partial & ~seen).sum()), right + int(seen.sum())
    assert vain <= right


def test_blocks_of_a_long_pass_take_little_memory() -> None:
    """A mask of all pairs would take 10 GB and more."""
    masks = PackedLayout([TokenGroup([1] * 500, [[2] * 2000] * 15)], torch.device("cpu"), one_call=True).masks
    assert masks is not None
    own = masks.of(None)
    tensors = [own.kv_indices, own.full_kv_indices, own.q_indices, own.full_q_indices]
    assert sum(one.nbytes for one in tensors if one is not None) == 16 * (-(-30_500 // BLOCK)) ** 2
