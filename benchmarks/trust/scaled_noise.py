"""Nodes whose rounding is that of a 16-bit format times a factor, and nodes that round nothing and write tokens.

A model in float32 and its copy in the format compute the same rollout side by side. The node's logits are those of
float32 and the differences of the copy's, times `noise`; what the scorer says of each token follows from float32.
"""

import copy
import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

from echo2.coordinator.verification.token_evidence import TokenArray, compare_tokens
from echo2.engines.engine import Dtype
from echo2.engines.sampling import sampling
from echo2.engines.transformers.output_layer import OutputLayer

CHOSEN = -1
"""In the place of a token: it is the node's choice by its logits."""


class ComparedRollout(NamedTuple):
    """A rollout, and its tokens as the scorer sees them, without `RAISING`: that needs its group's rewards."""

    ids: list[int]
    tokens: TokenArray


class ModelPair(NamedTuple):
    """A model in float32, and its copy in a 16-bit format. `eos`: end-of-sequence."""

    exact: Any
    rough: Any
    eos: int

    @classmethod
    def of(cls, model: Any, dtype: Dtype, eos: int) -> "ModelPair":
        """Make a pair of a model in float32."""
        return cls(model, copy.deepcopy(model).to(getattr(torch, dtype)), eos)

    @torch.inference_mode()
    def play(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[bytes],
        limit: int,
        noise: float,
        forced: NDArray[np.int64] | None = None,
    ) -> list[ComparedRollout]:
        """Generate a rollout per prompt and seed; all prompts have one length. `noise`: over that of the format; 0.0:
        the node rounds nothing. `forced`: [rows, limit] tokens that the node writes, or `CHOSEN`."""
        caches, fed = (DynamicCache(), DynamicCache()), torch.tensor(prompts)
        going, columns = torch.ones(len(fed), dtype=torch.bool), list[tuple[Tensor, ...]]()
        for place in range(limit):
            exact = logits_after(self.exact, fed, caches[0])
            logits = exact + noise * (logits_after(self.rough, fed, caches[1]) - exact) if noise else exact
            keys = sampling.keys((seed, place) for seed in seeds)
            chosen, _ = sampling.choose(logits, keys)
            if forced is not None:
                chosen = torch.where((own := torch.from_numpy(forced[:, place])) == CHOSEN, chosen, own)
            claimed = torch.log_softmax(logits, -1).gather(1, chosen[:, None])[:, 0]
            margins, scored, gaps = sampling.margin(exact, keys, chosen)
            columns.append((chosen, claimed, scored, margins, gaps, going))
            going, fed = going & (chosen != self.eos), chosen[:, None]
            if not going.any():
                break
        ids, claims, scores, lost, apart, live = (
            torch.stack(column, 1).numpy() for column in zip(*columns, strict=True)
        )
        return [
            ComparedRollout(
                ids[row, kept].tolist(),
                compare_tokens(
                    claims[row, kept], scores[row, kept], lost[row, kept], apart[row, kept],
                    ends=ids[row, kept] == self.eos, raising=False,
                ),
            )
            for row, kept in enumerate(live)
        ]  # fmt: skip


def logits_after(model: Any, fed: Tensor, cache: DynamicCache) -> Tensor:
    """Return the logits after the last of the tokens that are fed, float32 [rows, V]."""
    hidden = model.base_model(fed, past_key_values=cache, use_cache=True).last_hidden_state[:, -1]
    return OutputLayer.of(model)(hidden)


def seeds_of(name: str, count: int) -> list[bytes]:
    """Return seeds that follow from a name."""
    return [hashlib.blake2b(f"{name}/{row}".encode(), digest_size=16).digest() for row in range(count)]
