"""Seeded sampling: the one right completion of a prompt and a seed, up to numerical margin.

    key    = blake2b(seed || position, digest_size 8), read as a little-endian u64; seed: 16 bytes; position: u32,
             little-endian: the index of the token within the rollout, tokens given by the environment counted
    word i = splitmix64's output for the state key + (i + 1) * 0x9E3779B97F4A7C15 mod 2^64, i = 0, 1, ...
    bits v = the low (v even) or high (v odd) 32 bits of word v // 2, without the top bit: 31 bits for token id v
    w      = (bits + 0.5) * 2^-31 in float32, at most 1 - 2^-24
    gumbel = -log(-log1p(-w)) in float32
    token  = argmax(logits + gumbel) in float32, the lowest id on a tie

Reasons: integers are the same on every machine, unlike a GPU's own generator. `-log(-log(u))` would lose the top tail
in float32; w near 0 keeps it. Without the bound w rounds to 1 and gumbel to minus infinity. `sampling_reference`
computes the same in plain Python; golden vectors pin it (tests/vectors/sampling.json).

Lazy logs (scorer): E = -log1p(-w) >= w, so exp(logit) / w is an upper bound of exp(logit) / E, by which tokens rank.
Logarithms are computed only where the bound reaches the best score found less `GAP_MOST`: about three tokens per row,
with the same result.
"""

import hashlib
import math
import sys
import threading
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from engines.engine import GAP_MOST

if sys.byteorder != "little":
    raise ImportError("seeded sampling reads 64-bit words as pairs of 32-bit ones: little-endian machines only")

W_MAX = 1 - 2.0**-24
# Relative margin above the float32 rounding of exp, of the bound and of logit + gumbel together, for |logit| < 1000.
_SLACK = 1e-3
_REACH = (1 - _SLACK) * math.exp(-GAP_MOST)
BLOCK = 2**19
"""Values that `margin` processes at a time on a CPU: four arrays of 2 MB each stay in its caches."""

_memory = threading.local()


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


_GOLDEN, _MIX_1, _MIX_2 = (_signed(w) for w in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def keys(pairs: Iterable[tuple[bytes, int]], device: torch.device | str = "cpu") -> Tensor:
    """Return the key of each (seed, position): int64 [R], the bits of a u64. Raises ValueError for a seed that is not
    16 bytes."""
    digests = bytearray()
    for seed, position in pairs:
        if len(seed) != 16:
            raise ValueError(f"a seed must have 16 bytes, this one has {len(seed)}")
        digests += hashlib.blake2b(seed + position.to_bytes(4, "little"), digest_size=8).digest()
    return torch.from_numpy(np.frombuffer(digests, dtype="<i8").copy()).to(device)


def choose(logits: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Choose a token per row. logits: float32 [R, V]; key: int64 [R]. Return (tokens int64 [R], log softmax(logits) of
    each, float32 [R], <= 0)."""
    w, spare = _noise(key, logits.shape[1])
    tokens = _gumbel(w).add_(logits).argmax(-1)
    return tokens, _logprobs(logits, tokens, spare)


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Choose as `choose` does, without noise."""
    tokens = logits.argmax(-1)
    return tokens, _logprobs(logits, tokens, torch.empty_like(logits))


def margin(logits: Tensor, key: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return by how many nats the seeded choice beats each of `tokens` [R], their log-probabilities as in `choose`, and
    by how many nats, at most `GAP_MOST`, the seeded choice beats its runner-up. All float32 [R]; the margin is 0.0
    where the token is the seeded choice."""
    rows = max(1, BLOCK // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    blocks = zip(*(torch.split(part, rows) for part in (logits, key, tokens)), strict=True)
    margins, logprobs, gaps = zip(*(_margin(*block) for block in blocks), strict=True)
    return torch.cat(margins), torch.cat(logprobs), torch.cat(gaps)


def _margin(logits: Tensor, key: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    w, spare = _noise(key, logits.shape[1])
    logprobs = _logprobs(logits, tokens, spare)  # leaves exp(logits - top) in `spare`
    bound = spare.div_(w)
    first = bound.argmax(-1)
    best = _at(bound, first) * _at(w, first) / -torch.log1p(-_at(w, first))
    row, column = (bound >= (best * _REACH)[:, None]).nonzero(as_tuple=True)
    score = logits[row, column] + _gumbel(w[row, column])
    winner_score = torch.full_like(logprobs, -torch.inf).scatter_reduce_(0, row, score, "amax")
    is_winner = score == winner_score[row]
    # The lowest id among equals, as argmax takes it.
    winner = torch.full_like(tokens, logits.shape[1])
    winner.scatter_reduce_(0, row[is_winner], column[is_winner], "amin")
    is_other = column != winner[row]
    runner_up = torch.full_like(logprobs, -torch.inf)
    runner_up.scatter_reduce_(0, row[is_other], score[is_other], "amax")
    gap = (winner_score - runner_up).clamp_(max=GAP_MOST)
    missed = winner_score - (_at(logits, tokens) + _gumbel(_at(w, tokens)))
    return torch.where(winner == tokens, 0.0, missed.clamp_(min=0.0)), logprobs, gap


def _logprobs(logits: Tensor, tokens: Tensor, out: Tensor) -> Tensor:
    """Return log softmax(logits) [R, V] of tokens [R]: float32 [R], never above 0. `out` becomes exp(logits - max)."""
    top = logits.amax(-1, keepdim=True)
    z = torch.sub(logits, top, out=out).exp_().sum(-1)
    return (_at(logits, tokens) - top[:, 0] - z.log_()).clamp_(max=0.0)


def _at(values: Tensor, index: Tensor) -> Tensor:
    return values.gather(1, index[:, None])[:, 0]


def _noise(key: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return (w, room for as many values): float32 [R, V], both valid until the next call in this thread."""
    x, spare = _bits(key, vocabulary)
    w = spare.view(torch.float32)
    w.copy_(x.view(torch.int32).bitwise_and_(0x7FFFFFFF)).add_(0.5).mul_(2.0**-31).clamp_(max=W_MAX)
    return w[:, :vocabulary], x.view(torch.float32)[:, :vocabulary]


def _bits(key: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return (splitmix64's words, room for as many): int64 [R, ceil(V / 2)]. torch shifts arithmetically, hence the
    masks."""
    x, shifted = _scratch(len(key), (vocabulary + 1) // 2, key.device)
    torch.add(_increments(x.shape[1], key.device), key[:, None], out=x)
    torch.bitwise_right_shift(x, 30, out=shifted).bitwise_and_((1 << 34) - 1)
    x.bitwise_xor_(shifted).mul_(_MIX_1)
    torch.bitwise_right_shift(x, 27, out=shifted).bitwise_and_((1 << 37) - 1)
    x.bitwise_xor_(shifted).mul_(_MIX_2)
    torch.bitwise_right_shift(x, 31, out=shifted).bitwise_and_((1 << 33) - 1)
    return x.bitwise_xor_(shifted), shifted


def _gumbel(w: Tensor) -> Tensor:
    """Turn the uniform values `w` into Gumbel noise, in place."""
    return w.neg_().log1p_().neg_().log_().neg_()


@lru_cache(maxsize=8)
def _increments(words: int, device: torch.device) -> Tensor:
    return (torch.arange(1, words + 1, dtype=torch.int64) * _GOLDEN).to(device)


def _scratch(rows: int, words: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return two int64 [rows, words] of this thread, used again at each step: fresh memory would cost more than the
    noise."""
    buffer: Tensor | None = getattr(_memory, "buffer", None)
    size = 2 * rows * words
    if buffer is None or buffer.device != device or buffer.numel() < size:
        with torch.inference_mode(False):  # else it could only be written to by callers in inference mode
            buffer = _memory.buffer = torch.empty(size, dtype=torch.int64, device=device)
    first, second = buffer[:size].view(2, rows, words)
    return first, second
