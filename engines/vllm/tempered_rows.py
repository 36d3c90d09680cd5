"""The choice of rows at a temperature other than 1, within vLLM's process, and the log-probabilities of their tokens.

Rules
1. The choice is that of engines.sampling.sampling.choose; its logit becomes the greatest, so that vLLM takes it.
2. vLLM's own log-probabilities are of plain logits. Those at the temperature are kept here under the request's
   `kept_as`, by the token's place in the request, until `take` or `drop`. A token that vLLM computes again, as after a
   lack of memory, replaces the first.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from echo2.engines.sampling import sampling
from echo2.engines.temperature import PLAIN_TEMPERATURE
from echo2.engines.vllm.noise_request import NoiseRequest

_kept: dict[int, dict[int, float]] = {}


def choose_rows(logits: Tensor, rows: Sequence[int], asked: Sequence[tuple[NoiseRequest, int]]) -> Tensor:
    """Make the choice of each row its greatest logit, in place, and return the logits, float32 [R, V]. `asked`: request
    of each of `rows`, and how many tokens it has."""
    drawn = list(zip(rows, asked, strict=True))
    plain = [(row, one) for row, one in drawn if one[0].temperature == PLAIN_TEMPERATURE]
    pairs = [(noise.seed, noise.first + place) for _, (noise, place) in plain]
    logits = sampling.add_noise(logits, [row for row, _ in plain], pairs)
    others = [(row, one) for row, one in drawn if one[0].temperature != PLAIN_TEMPERATURE]
    if others:
        numbers = [row for row, _ in others]
        tempered = sampling.temper(logits[numbers], [noise.temperature for _, (noise, _) in others])
        keys = sampling.keys([(noise.seed, noise.first + place) for _, (noise, place) in others], logits.device)
        tokens, logprobs = sampling.choose(tempered, keys)
        logits[numbers, tokens] = torch.inf
        for (_, (noise, place)), logprob in zip(others, logprobs.tolist(), strict=True):
            _kept.setdefault(noise.kept_as, {})[place] = logprob
    return logits


def take(kept_as: int, count: int) -> list[float]:
    """Return the log-probabilities of a request's `count` tokens, and forget them; fewer where one was not kept."""
    kept = _kept.pop(kept_as, {})
    return [kept[place] for place in range(count) if place in kept]


def drop(kept_as: int) -> None:
    """Forget what is kept of a request."""
    _kept.pop(kept_as, None)
