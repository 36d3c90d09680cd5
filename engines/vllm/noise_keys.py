"""The keys of seeded noise, hashed ahead and kept on the device: a step that chooses tokens waits for no copy of them.

Rules
1. Each place of a request has a ring of `2 * AHEAD` keys on the device, indexed there by the number of the token. Once
   the numbers reach its second half, the next `AHEAD` are hashed and written over the first, and so on.
2. A ring is written by a copy from pinned memory, in the order of the device's work: steps that were begun before read
   the keys that were there (engines/devices/host_transfers.py). So keys may be written while steps are under way.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from echo2.engines.devices.host_transfers import upload
from echo2.engines.vllm.noise_request import MOST_TOKEN_NUMBER, NoiseRequest

AHEAD: Final = 128
"""Keys that are hashed at a time: 0.1 ms."""


class NoiseKeys:
    """`places`: number of requests at a time. A place without a request has no noise."""

    def __init__(self, places: int, device: torch.device) -> None:
        self._device = device
        self._table = torch.zeros(places, 2 * AHEAD, dtype=torch.int64, device=device)
        self._firsts = torch.zeros(places, dtype=torch.int64, device=device)
        self._requests: dict[int, NoiseRequest] = {}
        self.has_noise = np.zeros(places, bool)
        """By place, whether its request asks for noise."""
        self._hashed = np.zeros(places, np.int64)
        """By place, how many of its request's keys were hashed so far."""

    def begin(self, place: int, noise: NoiseRequest | None) -> None:
        """Give a place to a request, whose next token has the number `noise.first`; None: it asks for no noise."""
        self._requests.pop(place, None)
        self.has_noise[place] = noise is not None
        self._hashed[place] = 0
        if noise is not None:
            self._requests[place] = noise
            self._firsts[place] = noise.first
            self._hash(place)
            self._hash(place)

    def hash_ahead(self, places: Sequence[int] | NDArray[np.int64], tokens: NDArray[np.int64]) -> None:
        """Hash what the next steps need (rule 1). `tokens`: how many tokens the request of each place has generated;
        the number jumps where vLLM had dropped a request from its memory and computes it again."""
        near = self.has_noise[places] & (tokens >= self._hashed[places] - AHEAD)
        for place, number in zip(np.asarray(places)[near].tolist(), tokens[near].tolist(), strict=True):
            self._hashed[place] = max(self._hashed[place], number)
            while number >= self._hashed[place] - AHEAD:
                self._hash(place)

    def keys(self, places: Tensor, tokens: Tensor) -> Tensor:
        """Return the key of the next token of each place, int64, on the device. `places`, `tokens`: int64, there; as
        in `hash_ahead`."""
        return self._table[places, (self._firsts[places] + tokens) % (2 * AHEAD)]

    def _hash(self, place: int) -> None:
        noise, done = self._requests[place], int(self._hashed[place])
        numbers = range(noise.first + done, noise.first + done + AHEAD)
        digests = b"".join(
            hashlib.blake2b(noise.seed + (number & MOST_TOKEN_NUMBER).to_bytes(4, "little"), digest_size=8).digest()
            for number in numbers
        )
        ring = upload(np.arange(numbers.start, numbers.stop) % (2 * AHEAD), self._device)
        self._table[place].index_copy_(0, ring, upload(np.frombuffer(digests, "<i8").copy(), self._device))
        self._hashed[place] = done + AHEAD
