"""Score tokens of known hidden states: the output layer, then log-probability, margin and gap (sampling.py).

1. Whatever the host does for a token (its place, its key, the copies to and from a device) it does for all tokens of a
   call together, as arrays.
2. The logits of `HEAD_ROWS` positions exist at once. On a CPU they are fewer, so that these logits stay in its cache;
   on a GPU where they would take more than `MEMORY_SHARE` of what is free.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from echo2.engines.devices.host_transfers import upload
from echo2.engines.engine import Sample, SampleScore
from echo2.engines.sampling import sampling
from echo2.engines.temperature import PLAIN_TEMPERATURE
from echo2.engines.transformers.device_memory import free_memory
from echo2.engines.transformers.output_layer import OutputLayer

HEAD_ROWS: Final = 4096
"""Most positions whose logits exist at once."""
CPU_VALUES: Final = 64 * 49_152
"""Most logits that exist at once on a CPU: 12.6 MB."""
VALUE_BYTES: Final = 16
"""Memory that a logit takes on a GPU: its own, that of its noise, and room to compare the two."""
MEMORY_SHARE: Final = 0.25


class SampledTokens(NamedTuple):
    """The tokens of a rollout to score, arrays of int64 [n]. `places`: places of the hidden states that predict them.
    `positions`: positions of the tokens within the rollout. `ids`: token ids. `temperature`:
    temperature of the job."""

    seed: bytes
    places: NDArray[np.int64]
    positions: NDArray[np.int64]
    ids: NDArray[np.int64]
    temperature: int = PLAIN_TEMPERATURE


class TokenScores:
    """Scores under a model's output layer."""

    def __init__(self, model: Any) -> None:
        """`model`: a transformers.PreTrainedModel, whose methods carry no types."""
        self._head = OutputLayer.of(model)

    def of(self, hidden: Tensor, samples: Sequence[SampledTokens]) -> list[SampleScore]:
        """Score the tokens of each sample. `hidden`: [N, D]."""
        lengths = [len(one.ids) for one in samples]
        if not sum(lengths):
            return [SampleScore(logprobs=[], margins=[]) for _ in samples]
        device = hidden.device
        pairs = ((one.seed, position) for one in samples for position in one.positions.tolist())
        places = upload(np.concatenate([one.places for one in samples]), device)
        keys, ids = sampling.keys(pairs, device), upload(np.concatenate([one.ids for one in samples]), device)
        temperatures = np.repeat([one.temperature for one in samples], lengths).tolist()
        blocks, rows = [], self._rows(device)
        for start in range(0, len(places), rows):
            cut = slice(start, start + rows)
            logits = sampling.temper(self._head(hidden[places[cut]]), temperatures[cut])
            blocks.append(sampling.margin(logits, keys[cut], ids[cut]))
        ends = np.cumsum(lengths)[:-1]
        values = (np.split(torch.cat(part).numpy(), ends) for part in zip(*blocks, strict=True))
        return [
            SampleScore(logprobs=logprobs.tolist(), margins=margins.tolist(), gaps=gaps.tolist())
            for margins, logprobs, gaps in zip(*values, strict=True)
        ]

    def _rows(self, device: torch.device) -> int:
        """Return how many positions have logits at once (rule 2)."""
        size = self._head.linear.out_features
        most = CPU_VALUES // size
        if device.type not in ("cpu", "meta"):
            most = int(MEMORY_SHARE * free_memory(device)) // (VALUE_BYTES * size)
        return max(1, min(HEAD_ROWS, most))


def sampled_tokens_of(
    sample: Sample, seed: bytes, places: NDArray[np.int64], temperature: int = PLAIN_TEMPERATURE
) -> SampledTokens:
    """Return the sampled tokens of a rollout; those that its environment gave have no score. `places`: place that
    predicts each of its tokens. `temperature`: temperature of the job."""
    number = np.repeat(np.arange(len(sample.turns)), sample.turns)
    positions = np.flatnonzero(number % 2 == 0)
    ids = np.asarray(sample.tokens, np.int64)[positions]
    return SampledTokens(seed, places[positions], positions, ids, temperature)
