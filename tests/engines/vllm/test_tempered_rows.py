"""Rows at a temperature within vLLM: the choice that vLLM takes, and the log-probabilities that are kept beside it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from echo2.engines.sampling import sampling
from echo2.engines.vllm import tempered_rows
from echo2.engines.vllm.noise_request import NoiseRequest

SEEDS = [bytes([number]) * 16 for number in range(3)]
Asked = Sequence[tuple[int, NoiseRequest, int]]


def choose(logits: Tensor, asked: Asked) -> Tensor:
    keys = sampling.keys([(noise.seed, noise.first + place) for _, noise, place in asked])
    rows = torch.tensor([row for row, _, _ in asked])
    return tempered_rows.choose_rows(logits, asked, lambda logits: sampling.add_noise_of(logits, keys, rows))


def test_rows_of_each_temperature_have_their_choice_as_the_greatest_logit_and_their_log_probabilities_kept() -> None:
    logits = torch.randn(4, 500, generator=torch.Generator().manual_seed(1)) * 3
    asked = [
        (0, NoiseRequest(SEEDS[0], 0), 2),
        (1, NoiseRequest(SEEDS[1], 5, 800, 11), 3),
        (3, NoiseRequest(SEEDS[2], 0, 2000, 12), 0),
    ]
    chosen = choose(logits.clone(), asked).argmax(-1).tolist()
    expected = []
    for row, noise, place in asked:
        tempered = sampling.temper(logits[row : row + 1].clone(), [noise.temperature])
        token, logprob = sampling.choose(tempered, sampling.keys([(noise.seed, noise.first + place)]))
        expected.append((token.item(), logprob.item()))
    assert chosen == [expected[0][0], expected[1][0], int(logits[2].argmax()), expected[2][0]]
    assert {kept_as: list(places) for kept_as, places in tempered_rows._kept.items()} == {11: [3], 12: [0]}
    assert tempered_rows.take(12, 1) == [expected[2][1]]
    tempered_rows.drop(11)
    tempered_rows.drop(99)
    assert tempered_rows._kept == {}


def test_a_token_that_is_computed_again_replaces_the_first() -> None:
    for _ in range(2):
        logits = torch.randn(1, 50)
        choose(logits, [(0, NoiseRequest(SEEDS[0], 0, 800, 1), 0)])
    assert len(tempered_rows.take(1, 2)) == 1, "a second one was not kept: the request's check finds one too few"


def test_the_noise_is_added_to_logits_at_the_temperature() -> None:
    logits, seen = torch.randn(3, 50), list[Tensor]()

    def add(logits: Tensor) -> Tensor:
        seen.append(logits.clone())
        return logits

    tempered_rows.choose_rows(logits.clone(), [(2, NoiseRequest(SEEDS[0], 0, 500, 1), 0)], add)
    tempered_rows.drop(1)
    assert torch.equal(seen[0], torch.stack([logits[0], logits[1], logits[2] * 2]))


def test_what_the_steps_under_way_keep_is_read_later() -> None:
    asked = [(0, NoiseRequest(SEEDS[0], 0, 800, 1), place) for place in range(6)]
    for one in asked:
        choose(torch.randn(1, 50), [one])
    unread = [step for step, _ in tempered_rows._kept[1].values() if "logprobs" not in vars(step)]
    assert len(unread) == tempered_rows.STEPS_AHEAD
    assert len(tempered_rows.take(1, 6)) == 6
