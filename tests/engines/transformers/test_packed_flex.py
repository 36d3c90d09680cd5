"""Test attention between tokens against the rule said in words. Attention itself: test_packed_attention.py."""

from itertools import product

import pytest
import torch

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
