"""Score one group by the library's own forward pass, with padding: for groups that are no packed pass
(engines.transformers.scoring).

1. The prompt is computed once, and its keys and values are repeated for the samples.
2. Samples of like length share a pass of at most `PASS_TOKENS` tokens.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from echo2.engines.engine import Job, Sample, SampleScore
from echo2.engines.transformers.kv_cache import growing_cache
from echo2.engines.transformers.token_scores import TokenScores, sampled_tokens_of

PASS_TOKENS: Final = 2**14
"""Most tokens of one pass, padding included."""


def score_padded(model: Any, token_scores: TokenScores, job: Job, samples: Sequence[Sample]) -> list[SampleScore]:
    """Score a group. `model`: a transformers.PreTrainedModel, whose methods carry no types."""
    cache, first = _prefill(model, job.prompt)
    scores: dict[int, SampleScore] = {}
    for part in _parts([len(sample.tokens) for sample in samples]):
        fed = [samples[index].tokens[:-1] for index in part]
        hidden = torch.cat([first.expand(len(part), -1, -1), *_after(model, cache, fed)], 1)
        length = hidden.shape[1]
        tokens = [
            sampled_tokens_of(
                samples[index], job.seeds[index], np.arange(row * length, (row + 1) * length), job.temperature
            )
            for row, index in enumerate(part)
        ]
        scores.update(zip(part, token_scores.of(hidden.flatten(0, 1), tokens), strict=True))
    return [scores[index] for index in range(len(samples))]


def _prefill(model: Any, prompt: Sequence[int]) -> tuple[DynamicCache, Tensor]:
    """Compute a prompt: its cache, and its last hidden state, [1, 1, D]."""
    cache = growing_cache(model.config)
    ids = torch.tensor([prompt], device=model.device)
    hidden = model.base_model(ids, past_key_values=cache, use_cache=True).last_hidden_state
    return cache, hidden[:, -1:]


def _after(model: Any, prompt_cache: DynamicCache, fed: Sequence[Sequence[int]]) -> Iterator[Tensor]:
    """Yield the hidden states of the tokens after the prompt, [R, L, D]; nothing for L = 0."""
    longest = max(map(len, fed))
    if longest:
        # Padding stands on the right, where causal attention never looks.
        ids = torch.tensor([[*tokens, *[0] * (longest - len(tokens))] for tokens in fed], device=model.device)
        cache = copy.deepcopy(prompt_cache)
        cache.batch_repeat_interleave(len(fed))
        yield model.base_model(ids, past_key_values=cache, use_cache=True).last_hidden_state


def _parts(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the samples that share a pass: longest first, at most `PASS_TOKENS` tokens, with little padding."""
    part: list[int] = []
    padding = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        longest = lengths[part[0]] if part else lengths[index]
        padding += longest - lengths[index]
        if part and (longest * (len(part) + 1) > PASS_TOKENS or padding > max(64, longest * (len(part) + 1) // 8)):
            yield part
            part, padding = [], 0
        part.append(index)
    if part:
        yield part
