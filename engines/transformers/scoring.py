"""Score groups by teacher-forced passes: log-probability and margin of each sampled token.

1. The prompt of a group is computed once; its keys and values are repeated for the samples, which share a pass.
2. Tokens that the environment gave are fed to the model, and get no value.
3. At most `PASS_TOKENS` tokens are in one pass, and the logits of `HEAD_ROWS` positions exist at once.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from engines import sampling
from engines.engine import EngineError, Job, Sample, SampleScore
from engines.transformers.kv_cache import growing_cache
from tasks.task import sampled_mask

HEAD_ROWS = 64
"""Positions whose logits exist at once: 64 x 49,152 float32 are 12.6 MB."""
PASS_TOKENS = 2**14
"""Most tokens of one teacher-forced pass."""


class GroupScorer:
    """Scores groups under a model. `noise_device`: where the noise is computed. To be called in inference mode."""

    def __init__(self, model: Any, noise_device: torch.device) -> None:
        """`model`: a transformers.PreTrainedModel, whose methods carry no types."""
        self._model, self._noise_device = model, noise_device

    def score(self, job: Job, samples: Sequence[Sample]) -> list[SampleScore]:
        """See `engines.engine.Engine.score`. Raises EngineError for samples that do not fit the job or the model."""
        for sample in samples:
            _check_sample(sample, self._model.config.vocab_size)
        if len(samples) != len(job.seeds):
            raise EngineError(f"{len(samples)} samples for {len(job.seeds)} seeds: score one sample per seed")
        scores: dict[int, SampleScore] = {}
        cache, first = prefill(self._model, [job.prompt])
        for part in _parts([len(sample.tokens) for sample in samples]):
            seeded = [(job.seeds[index], samples[index]) for index in part]
            scores.update(zip(part, self._score_part(cache, first, seeded), strict=True))
        return [scores[index] for index in range(len(samples))]

    def _score_part(
        self, prompt_cache: DynamicCache, first: Tensor, seeded: Sequence[tuple[bytes, Sample]]
    ) -> Iterator[SampleScore]:
        """`first`: last hidden state of the prompt, [1, 1, D]."""
        longest = max(len(sample.tokens) for _, sample in seeded)
        hidden = first.expand(len(seeded), -1, -1)
        if longest > 1:
            # Padding stands on the right, where causal attention never looks.
            fed = [[*sample.tokens[:-1], *[0] * (longest - len(sample.tokens))] for _, sample in seeded]
            cache = copy.deepcopy(prompt_cache)
            cache.batch_repeat_interleave(len(seeded))
            ids = torch.tensor(fed, device=self._model.device)
            after = self._model.base_model(ids, past_key_values=cache, use_cache=True).last_hidden_state
            hidden = torch.cat([hidden, after], 1)
        places = [
            (row, position, seed, token)
            for row, (seed, sample) in enumerate(seeded)
            for position, (token, is_sampled) in enumerate(zip(sample.tokens, sampled_mask(sample.turns), strict=True))
            if is_sampled
        ]
        logprobs, margins, gaps = self._rescore(hidden, places)
        start = 0
        for _, sample in seeded:
            end = start + sum(sampled_mask(sample.turns))
            yield SampleScore(logprobs=logprobs[start:end], margins=margins[start:end], gaps=gaps[start:end])
            start = end

    def _rescore(
        self, hidden: Tensor, places: Sequence[tuple[int, int, bytes, int]]
    ) -> tuple[list[float], list[float], list[float]]:
        """(log-probabilities, margins, gaps) of tokens at (row, position, seed, token) of hidden [R, L, D]."""
        logprobs: list[float] = []
        margins: list[float] = []
        gaps: list[float] = []
        head = self._model.get_output_embeddings()
        for start in range(0, len(places), HEAD_ROWS):
            rows, positions, seeds, tokens = zip(*places[start : start + HEAD_ROWS], strict=True)
            logits = head(hidden[list(rows), list(positions)]).float().to(self._noise_device)
            keys = sampling.keys(zip(seeds, positions, strict=True), self._noise_device)
            chosen = torch.tensor(tokens, device=self._noise_device)
            margin, logprob, gap = sampling.margin(logits, keys, chosen)
            logprobs += logprob.tolist()
            margins += margin.tolist()
            gaps += gap.tolist()
        return logprobs, margins, gaps


def prefill(model: Any, prompts: Sequence[Sequence[int]]) -> tuple[DynamicCache, Tensor]:
    """Compute prompts of one length: their cache, and the last hidden state of each, [J, 1, D]."""
    cache = growing_cache(model.config)
    ids = torch.tensor(prompts, device=model.device)
    hidden = model.base_model(ids, past_key_values=cache, use_cache=True).last_hidden_state
    return cache, hidden[:, -1:]


def _check_sample(sample: Sample, vocabulary: int) -> None:
    if not sample.tokens or sum(sample.turns) != len(sample.tokens) or min(sample.turns) < 1:
        raise EngineError("a sample is empty, or its turns do not add up to its tokens")
    if not all(0 <= token < vocabulary for token in sample.tokens):
        raise EngineError(f"a sample has a token outside the model's vocabulary of {vocabulary}")


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
