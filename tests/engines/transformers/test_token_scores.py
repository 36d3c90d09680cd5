"""Scores of tokens whose hidden states are known."""

import torch
from transformers import PreTrainedConfig

from echo2.engines.engine import Sample
from echo2.engines.sampling import sampling
from echo2.engines.transformers import token_scores
from echo2.engines.transformers.token_scores import SampledToken, TokenScores, sampled_tokens_of

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
    tokens = list(sampled_tokens_of(sample, SEED, lambda position: 100 + position))
    assert tokens == [SampledToken(100 + at, SEED, at, 5 + at) for at in (0, 1, 3, 4)]


def test_each_sample_gets_the_values_of_its_own_tokens_however_blocks_are_cut() -> None:
    model, hidden = Model(), torch.randn(200, 8)
    samples = [
        [SampledToken((7 * at) % 200, SEED, at, (3 * at) % 50) for at in range(start, start + length)]
        for start, length in ((0, 3), (3, 0), (3, token_scores.HEAD_ROWS + 9), (90, 1))
    ]
    scores = TokenScores(model).of(hidden, samples)
    assert [len(score.gaps) for score in scores] == [len(sample) for sample in samples]
    assert [len(score.logprobs) for score in scores] == [3, 0, token_scores.HEAD_ROWS + 9, 1]
    for sample, score in zip(samples, scores, strict=True):
        for token, logprob, margin in zip(sample, score.logprobs, score.margins, strict=True):
            logits = model.head(hidden[token.place])[None]
            key = sampling.keys([(token.seed, token.position)])
            assert abs(float(logits.log_softmax(-1)[0, token.token]) - logprob) < 1e-6
            assert (float(margin) == 0.0) == (int(sampling.choose(logits, key)[0]) == token.token)
