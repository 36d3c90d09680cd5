"""Rows at a temperature within vLLM: the choice that vLLM takes, and the log-probabilities that are kept beside it."""

import torch

from echo2.engines.sampling import sampling
from echo2.engines.vllm import tempered_rows
from echo2.engines.vllm.noise_request import NoiseRequest

SEEDS = [bytes([number]) * 16 for number in range(3)]


def test_rows_of_each_temperature_have_their_choice_as_the_greatest_logit_and_their_log_probabilities_kept() -> None:
    logits = torch.randn(4, 500, generator=torch.Generator().manual_seed(1)) * 3
    asked = [
        (NoiseRequest(SEEDS[0], 0), 2),
        (NoiseRequest(SEEDS[1], 5, 800, 11), 3),
        (NoiseRequest(SEEDS[2], 0, 2000, 12), 0),
    ]
    chosen = tempered_rows.choose_rows(logits.clone(), [0, 1, 3], asked).argmax(-1).tolist()
    expected = []
    for row, (noise, place) in zip([0, 1, 3], asked, strict=True):
        tempered = sampling.temper(logits[row : row + 1].clone(), [noise.temperature])
        token, logprob = sampling.choose(tempered, sampling.keys([(noise.seed, noise.first + place)]))
        expected.append((token.item(), logprob.item()))
    assert chosen == [expected[0][0], expected[1][0], int(logits[2].argmax()), expected[2][0]]
    assert tempered_rows._kept == {11: {3: expected[1][1]}, 12: {0: expected[2][1]}}
    assert tempered_rows.take(12, 1) == [expected[2][1]]
    tempered_rows.drop(11)
    tempered_rows.drop(99)
    assert tempered_rows._kept == {}


def test_a_token_that_is_computed_again_replaces_the_first() -> None:
    for _ in range(2):
        logits = torch.randn(1, 50)
        tempered_rows.choose_rows(logits, [0], [(NoiseRequest(SEEDS[0], 0, 800, 1), 0)])
    assert len(tempered_rows.take(1, 2)) == 1, "a second one was not kept: the request's check finds one too few"
