"""Scores of tokens whose hidden states are known."""

import numpy as np
import pytest
import torch
from transformers import PreTrainedConfig

from echo2.engines.engine import Sample
from echo2.engines.sampling import sampling
from echo2.engines.transformers import token_scores
from echo2.engines.transformers.token_scores import SampledTokens, TokenScores, sampled_tokens_of

SEED = bytes(range(16))


class Model:
    """An output layer of 8 inputs and 50 tokens."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.head = torch.nn.Linear(8, 50, bias=False).requires_grad_(False)
        self.config = PreTrainedConfig()

    def get_output_embeddings(self) -> torch.nn.Linear:
        return self.head


def test_tokens_that_the_environment_gave_have_no_score() -> None:
    sample = Sample(tokens=[5, 6, 7, 8, 9], turns=[2, 1, 2], logprobs=[])
    tokens = sampled_tokens_of(sample, SEED, np.arange(100, 105))
    assert tokens.seed == SEED
    assert tokens.places.tolist() == [100, 101, 103, 104]
    assert tokens.positions.tolist() == [0, 1, 3, 4]
    assert tokens.ids.tolist() == [5, 6, 8, 9]


@pytest.mark.parametrize("rows", [1, 7, token_scores.HEAD_ROWS])
def test_each_sample_gets_the_values_of_its_own_tokens_however_blocks_are_cut(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_scores, "HEAD_ROWS", rows)
    model, hidden = Model(), torch.randn(200, 8)
    places = [np.arange(start, start + length) for start, length in ((0, 3), (3, 0), (3, 73), (90, 1))]
    samples = [SampledTokens(SEED, (7 * at) % 200, at, (3 * at) % 50) for at in places]
    scores = TokenScores(model).of(hidden, samples)
    assert [len(score.gaps) for score in scores] == [len(at) for at in places]
    assert [len(score.logprobs) for score in scores] == [3, 0, 73, 1]
    for sample, score in zip(samples, scores, strict=True):
        for place, position, token, logprob, margin in zip(*sample[1:4], score.logprobs, score.margins, strict=True):
            logits = model.head(hidden[place])[None]
            key = sampling.keys([(SEED, int(position))])
            assert abs(float(logits.log_softmax(-1)[0, token]) - logprob) < 1e-6
            assert (float(margin) == 0.0) == (int(sampling.choose(logits, key)[0]) == token)


def test_samples_without_a_sampled_token_have_no_values() -> None:
    nothing = SampledTokens(SEED, *(np.empty(0, np.int64) for _ in range(3)))
    assert [len(one.logprobs) for one in TokenScores(Model()).of(torch.randn(2, 8), [nothing, nothing])] == [0, 0]


def test_logits_stay_within_a_cpus_cache_and_within_the_free_memory_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = TokenScores(Model())
    assert scores._rows(torch.device("cpu")) == token_scores.HEAD_ROWS
    scores._head.linear.out_features = 49_152
    assert scores._rows(torch.device("cpu")) == 64
    for free, rows in ((1 << 40, token_scores.HEAD_ROWS), (1 << 30, 341), (0, 1)):
        monkeypatch.setattr(token_scores, "free_memory", lambda device, free=free: free)
        assert scores._rows(torch.device("cuda")) == rows
