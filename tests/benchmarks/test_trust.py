"""The trust benchmark's own arithmetic: streams of groups, and what its machines hand in."""

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.trust.__main__ import MOST_TOKENS, pieces, tokens_to_refusal, with_other_seeds
from benchmarks.trust.machines import Generated, make_job
from benchmarks.trust.policies import SWAPS
from coordinator.verification.token_evidence import BINS, DIFFERS, ONE, STATISTICS, TOKEN, TokenArray
from engines.engine import Sample

TABLES = {name: [ONE * 51 // 100 if name in ("above", "below") else ONE // 50] * BINS for name in STATISTICS}


def tokens(number: int, every: int) -> TokenArray:
    made = np.zeros(number, TOKEN)
    made["flags"][::every] = DIFFERS
    return made


def test_pieces_have_one_length_and_leave_out_what_is_left() -> None:
    assert [len(piece) for piece in pieces([tokens(100, 7), tokens(50, 7)])] == [64, 64]


def test_a_bad_node_is_refused_after_some_tokens_and_a_good_one_never() -> None:
    order = np.random.default_rng(0)
    bad, good = pieces([tokens(640, 5)]), pieces([tokens(640, 100)])
    assert tokens_to_refusal(bad, TABLES, order) < 500
    assert tokens_to_refusal(good, TABLES, order) == MOST_TOKENS


def test_a_node_with_seeds_of_its_own_hands_in_the_same_tokens_under_the_leases_seeds() -> None:
    group = Generated(make_job(3, 2), [Sample(tokens=[5], turns=[1], logprobs=[-1.0])] * 2)
    (other,) = with_other_seeds([group])
    assert other.samples == group.samples
    assert other.job.prompt == group.job.prompt
    assert set(other.job.seeds).isdisjoint(group.job.seeds)


@pytest.mark.parametrize("name", [name for name in SWAPS if name.startswith("int")])
def test_quantised_weights_have_few_values_per_scale(name: str) -> None:
    layer = nn.Linear(64, 4)
    with torch.no_grad():
        SWAPS[name](layer)
    group = 64 if name == "int8" else 32
    assert all(len(row.unique()) <= (255 if name == "int8" else 15) for row in layer.weight.reshape(-1, group))
