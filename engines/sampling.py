"""Seeded sampling: the one right completion of a prompt and a seed, up to numerical margin.

    key    = blake2b(seed || position, digest_size 8), read as a little-endian u64; seed: 16 bytes; position: u32,
             little-endian: the index of the token within the rollout, tokens given by the environment counted
    word i = splitmix64's output for the state key + (i + 1) * 0x9E3779B97F4A7C15 mod 2^64, i = 0, 1, ...
    bits v = the low (v even) or high (v odd) 32 bits of word v // 2, without the top bit: 31 bits for token id v
    w      = (bits + 0.5) * 2^-31 in float32, at most 1 - 2^-24
    gumbel = -log(-log1p(-w)) in float32
    token  = argmax(logits + gumbel) in float32, the lowest id on a tie

Why so: integers are the same on every machine, a GPU's own generator is not. `-log(-log(u))` would lose the top tail in
float32; w near 0 keeps it. Without the bound w rounds to 1 and gumbel to minus infinity. `sampling_reference` says the
same in plain Python; golden vectors pin it (tests/vectors/sampling.json).

Lazy logs (scorer): E = -log1p(-w) >= w, so exp(logit) / w bounds a token's chance to win from above, and logarithms are
taken only where the bound reaches the best score found: about one token a row, with the same result.
"""

import hashlib
import sys
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

if sys.byteorder != "little":
    raise ImportError("seeded sampling reads 64-bit words as pairs of 32-bit ones: little-endian machines only")

W_MAX = 1 - 2.0**-24
# Relative. Above the float32 rounding of exp, of the bound and of logit + gumbel together, for |logit| < 1000.
_SLACK = 1e-3


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


_GOLDEN, _MIX_1, _MIX_2 = (_signed(w) for w in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def keys(pairs: Iterable[tuple[bytes, int]], device: torch.device | str = "cpu") -> Tensor:
    """Key of each (seed, position): int64 [R], the bits of a u64. Raises ValueError for a seed that is not 16 bytes."""
    digests = bytearray()
    for seed, position in pairs:
        if len(seed) != 16:
            raise ValueError(f"a seed has 16 bytes, not {len(seed)}")
        digests += hashlib.blake2b(seed + position.to_bytes(4, "little"), digest_size=8).digest()
    return torch.from_numpy(np.frombuffer(digests, dtype="<i8").copy()).to(device)


def choose(logits: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """logits: float32 [R, V]; key: int64 [R]. (tokens int64 [R], log softmax(logits) of each, float32 [R], <= 0)."""
    tokens = _gumbel(_w(_bits(key, logits.shape[1]))).add_(logits).argmax(-1)
    return tokens, logprobs(logits, tokens)


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """As `choose`, without noise."""
    tokens = logits.argmax(-1)
    return tokens, logprobs(logits, tokens)


def logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """log softmax(logits) [R, V] of tokens [R]: float32 [R], never above 0."""
    return (_at(logits, tokens) - logits.logsumexp(-1)).clamp_(max=0.0)


def margin(logits: Tensor, key: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """How much the seeded choice beats each of `tokens` [R], in nats, 0.0 where it is that token; and their
    log-probabilities as in `choose`. Both float32 [R]."""
    rows = logits.shape[0]
    w = _w(_bits(key, logits.shape[1]))
    top = logits.amax(-1, keepdim=True)
    e = (logits - top).exp_()
    log_z = e.sum(-1).log_() + top[:, 0]
    bound = e.div_(w)
    first = bound.argmax(-1)
    best = _at(bound, first) * _at(w, first) / -torch.log1p(-_at(w, first))
    row, column = (bound >= (best * (1 - _SLACK))[:, None]).nonzero(as_tuple=True)
    score = logits[row, column] + _gumbel(w[row, column])
    winner_score = torch.full((rows,), -torch.inf, device=logits.device).scatter_reduce_(0, row, score, "amax")
    is_winner = score == winner_score[row]
    # The lowest id among equals, as argmax takes it.
    winner = torch.full_like(tokens, logits.shape[1])
    winner.scatter_reduce_(0, row[is_winner], column[is_winner], "amin")
    gap = winner_score - (_at(logits, tokens) + _gumbel(_at(w, tokens)))
    gap = torch.where(winner == tokens, 0.0, gap.clamp_(min=0.0))
    return gap, (_at(logits, tokens) - log_z).clamp_(max=0.0)


def _at(values: Tensor, index: Tensor) -> Tensor:
    return values.gather(1, index[:, None])[:, 0]


@lru_cache(maxsize=8)
def _increments(words: int, device: torch.device) -> Tensor:
    return (torch.arange(1, words + 1, dtype=torch.int64) * _GOLDEN).to(device)


def _bits(key: Tensor, vocabulary: int) -> Tensor:
    """int32 [R, V], the top bit not yet taken off. Shifts are arithmetic in torch, hence the masks."""
    x = _increments((vocabulary + 1) // 2, key.device) + key[:, None]
    shifted = torch.bitwise_right_shift(x, 30).bitwise_and_((1 << 34) - 1)
    x.bitwise_xor_(shifted).mul_(_MIX_1)
    torch.bitwise_right_shift(x, 27, out=shifted).bitwise_and_((1 << 37) - 1)
    x.bitwise_xor_(shifted).mul_(_MIX_2)
    torch.bitwise_right_shift(x, 31, out=shifted).bitwise_and_((1 << 33) - 1)
    return x.bitwise_xor_(shifted).view(torch.int32)[:, :vocabulary]


def _w(bits: Tensor) -> Tensor:
    return bits.bitwise_and(0x7FFFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-31).clamp_(max=W_MAX)


def _gumbel(w: Tensor) -> Tensor:
    return w.neg().log1p_().neg_().log_().neg_()
