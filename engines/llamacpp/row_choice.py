"""The choice of tokens from llama.cpp's logits, rows divided among the engine's threads.

A row of 152,000 logits takes a millisecond of one thread: sixteen rows would cost as many beside a pass of a card of 30
to 80. numpy computes without Python's lock, and each thread has buffers of its own (sampling_numpy.py, rule 3),
so each row gives what it gives alone.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from echo2.engines.sampling import sampling_numpy
from echo2.engines.temperature import PLAIN_TEMPERATURE

Floats = NDArray[np.float32]


class RowChoice:
    """Chooses a token per row on `threads` threads."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "rows") if threads > 1 else None

    def choose(
        self, logits: Floats, pairs: Sequence[tuple[bytes, int]], *, greedy: bool, temperature: int = PLAIN_TEMPERATURE
    ) -> tuple[list[int], list[float]]:
        """Return the tokens of rows [R, V] and their log-probabilities. `pairs`: seed and number of each.
        `temperature`: that of them all, in thousandths."""
        keys = None if greedy else sampling_numpy.keys(pairs)
        if self._pool is None or len(logits) < 2:
            return _choose(logits, keys, temperature)
        bounds = np.linspace(0, len(logits), min(self._threads, len(logits)) + 1).astype(int)
        parts = [slice(*one) for one in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]
        chosen = self._pool.map(
            lambda part: _choose(logits[part], None if keys is None else keys[part], temperature), parts
        )
        done = list(chosen)
        return [token for tokens, _ in done for token in tokens], [one for _, logprobs in done for one in logprobs]


def _choose(logits: Floats, keys: NDArray[np.uint64] | None, temperature: int) -> tuple[list[int], list[float]]:
    logits = sampling_numpy.temper(logits, temperature)
    tokens, logprobs = sampling_numpy.greedy(logits) if keys is None else sampling_numpy.choose(logits, keys)
    return tokens.tolist(), logprobs.tolist()
