"""Log-probabilities computed in chunks are those of the model's own logits."""

import random

import pytest
import torch
from transformers import PreTrainedModel

from echo2.coordinator.learner.batches.batch import pack, rows
from echo2.coordinator.learner.batches.batch_groups import TrainBatch
from echo2.coordinator.learner.batches.logprobs import token_logprobs
from tests.support.tiny_learner import group


@pytest.mark.parametrize("temperature", [1000, 800])
def test_log_probabilities_in_chunks_are_those_of_the_models_own_logits_with_their_gradients(
    policy: PreTrainedModel, temperature: int
) -> None:
    chance = random.Random(4)
    train_batch = TrainBatch(step=1, groups=[group(chance, "g", turns=(3, 2, 2)), group(chance, "h", turns=(6,))])
    (micro,) = pack(rows(train_batch, "group").groups, 10_000)
    expected = torch.cat(
        [
            torch.log_softmax(policy(torch.from_numpy(row.tokens).long()[None]).logits[0] * 1000 / temperature, -1)[
                row.targets - 1, row.tokens[row.targets]
            ]
            for row in micro.rows
        ]
    )
    for chunk in (None, 7):
        logprobs = token_logprobs(policy, micro, chunk, temperature)
        torch.testing.assert_close(logprobs, expected)
        ours = torch.autograd.grad(logprobs.square().sum(), list(policy.parameters()))
        theirs = torch.autograd.grad(expected.square().sum(), list(policy.parameters()), retain_graph=True)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-5)
