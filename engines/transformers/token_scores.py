"""Score tokens of known hidden states: the output layer, then log-probability, margin and gap (sampling.py)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from echo2.engines.engine import Sample, SampleScore
from echo2.engines.sampling import sampling
from echo2.engines.transformers.output_layer import OutputLayer
from echo2.tasks.task import sampled_mask

HEAD_ROWS: Final = 64
"""Positions whose logits exist at once: 64 x 49,152 float32 are 12.6 MB."""


class SampledToken(NamedTuple):
    """A token to score. `place`: place of the hidden state that predicts it. `position`: position of the token within
    its rollout."""

    place: int
    seed: bytes
    position: int
    token: int


class TokenScores:
    """Scores under a model's output layer."""

    def __init__(self, model: Any) -> None:
        """`model`: a transformers.PreTrainedModel, whose methods carry no types."""
        self._head = OutputLayer.of(model)

    def of(self, hidden: Tensor, samples: Sequence[Sequence[SampledToken]]) -> list[SampleScore]:
        """Score the tokens of each sample. `hidden`: [N, D]."""
        tokens = [token for sample in samples for token in sample]
        values: list[tuple[float, float, float]] = []  # margin, log-probability, gap of each token
        for start in range(0, len(tokens), HEAD_ROWS):
            block = self._block(hidden, tokens[start : start + HEAD_ROWS])
            values += zip(*(part.tolist() for part in block), strict=True)
        scores, start = [], 0
        for sample in samples:
            own, start = values[start : start + len(sample)], start + len(sample)
            margins, logprobs, gaps = ([one[part] for one in own] for part in range(3))
            scores.append(SampleScore(logprobs=logprobs, margins=margins, gaps=gaps))
        return scores

    def _block(self, hidden: Tensor, tokens: Sequence[SampledToken]) -> tuple[Tensor, Tensor, Tensor]:
        places, seeds, positions, ids = zip(*tokens, strict=True)
        logits = self._head(hidden[list(places)])
        keys = sampling.keys(zip(seeds, positions, strict=True), logits.device)
        return sampling.margin(logits, keys, torch.tensor(ids, device=logits.device))


def sampled_tokens_of(sample: Sample, seed: bytes, before: Callable[[int], int]) -> Iterator[SampledToken]:
    """Yield the sampled tokens of a rollout; those that its environment gave have no score. `before`: returns the place
    that predicts the token of a position."""
    for position, (token, is_sampled) in enumerate(zip(sample.tokens, sampled_mask(sample.turns), strict=True)):
        if is_sampled:
            yield SampledToken(before(position), seed, position, token)
