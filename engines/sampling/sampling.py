"""Seeded sampling: the one right completion of a prompt and a seed, up to numerical margin.

    key    = blake2b(seed || position, digest_size 8), read as a little-endian u64; seed: 16 bytes; position: u32,
             little-endian: the index of the token within the rollout, tokens given by the environment counted
    word i = splitmix64's output for the state key + (i + 1) * 0x9E3779B97F4A7C15 mod 2^64, i = 0, 1, ...
    bits v = the low (v even) or high (v odd) 32 bits of word v // 2, without the top bit: 31 bits for token id v
    w      = (bits + 0.5) * 2^-31 in float32, at most 1 - 2^-24
    gumbel = -log(-log1p(-w)) in float32
    token  = argmax(logits + gumbel) in float32, the lowest id on a tie

At another temperature than 1 `temper` multiplies the logits before, and nothing else differs: so a bound by logits is
one by tempered logits.

Reasons: integers are the same on every machine, unlike a GPU's own generator. `-log(-log(u))` would lose the top tail
in float32; w near 0 keeps it. Without the bound w rounds to 1 and gumbel to minus infinity. `sampling_reference`
computes the same in plain Python; golden vectors pin it (tests/vectors/sampling.json).

Lazy logs (scorer): E = -log1p(-w) >= w, so exp(logit) / w is an upper bound of exp(logit) / E, by which tokens rank.
Logarithms are computed only where the bound reaches the best score found less `GAP_MOST` of about three tokens per row,
with the same result. engines.sampling.noise_bits computes the integers.
"""

import hashlib
import math
import sys
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from echo2.engines.devices.host_transfers import upload
from echo2.engines.engine import GAP_MOST
from echo2.engines.sampling import noise_bits
from echo2.engines.temperature import PLAIN_TEMPERATURE, factor_of

if sys.byteorder != "little":
    raise ImportError("seeded sampling reads 64-bit words as pairs of 32-bit ones: little-endian machines only")

W_MAX = 1 - 2.0**-24
# Relative margin above the float32 rounding of exp, of the bound and of logit + gumbel together, for |logit| < 1000.
_ROUNDING_SLACK = 1e-3
_GUMBEL_REACH = (1 - _ROUNDING_SLACK) * math.exp(-GAP_MOST)
BLOCK = 2**19
"""Values that `margin` processes at a time on a CPU: four arrays of 2 MB each stay in its caches."""


def keys(pairs: Iterable[tuple[bytes, int]], device: torch.device | str = "cpu") -> Tensor:
    """Return the key of each (seed, position): int64 [R], the bits of a u64; on MPS their halves, int32 [R, 2]. Raises
    ValueError for a seed that is not 16 bytes."""
    digests = bytearray()
    for seed, position in pairs:
        if len(seed) != 16:
            raise ValueError(f"a seed must have 16 bytes, this one has {len(seed)}")
        digests += hashlib.blake2b(seed + position.to_bytes(4, "little"), digest_size=8).digest()
    return noise_bits.keys_of(np.frombuffer(digests, dtype="<i8").copy(), device)


def temper(logits: Tensor, temperatures: Sequence[int]) -> Tensor:
    """Bring the logits of each row to its temperature, in thousandths (engines.temperature), float32 [R, V], in
    place where they change; return them. Log-probabilities and choices of such rows are those at that temperature."""
    distinct = set(temperatures)
    if distinct <= {PLAIN_TEMPERATURE}:
        return logits
    if len(distinct) == 1:
        return logits.mul_(factor_of(distinct.pop()))
    return logits.mul_(upload([[factor_of(one)] for one in temperatures], logits.device))


def choose(logits: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Choose a token per row. logits: float32 [R, V]; key: int64 [R]. Return (tokens int64 [R], log softmax(logits) of
    each, float32 [R], <= 0)."""
    w, spare = _noise(key, logits.shape[1])
    tokens = _argmax(_gumbel(w).add_(logits))
    return tokens, logprobs_of(logits, tokens, spare)


def add_noise_of(logits: Tensor, key: Tensor, rows: Tensor | None = None) -> Tensor:
    """Add noise to float32 logits [R, V], in place, and return them: the argmax of such a row is the choice of
    `choose`. `key`: keys of the rows. `rows`: their places, int64; None: each row has one."""
    w, _ = _noise(key, logits.shape[1])
    if rows is None:
        return logits.add_(_gumbel(w))
    return logits.index_add_(0, rows, _gumbel(w))


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Choose as `choose` does, without noise."""
    tokens = _argmax(logits)
    return tokens, logprobs_of(logits, tokens, torch.empty_like(logits))


def margin(logits: Tensor, key: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return by how many nats the seeded choice beats each of `tokens` [R], their log-probabilities as in `choose`, and
    by how many nats, at most `GAP_MOST`, the seeded choice beats its runner-up. All float32 [R] on the CPU; the margin
    is 0.0 where the token is the seeded choice."""
    rows = max(1, BLOCK // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    blocks = zip(*(torch.split(part, rows) for part in (logits, key, tokens)), strict=True)
    parts = [_rivals(*block, start=rows * number) for number, block in enumerate(blocks)]
    # A few values per row: not every device can sort them out.
    row, column, score, own, logprobs = (torch.cat(part).cpu() for part in zip(*parts, strict=True))
    tokens = tokens.cpu()
    winner_score = torch.full_like(own, -torch.inf).scatter_reduce_(0, row, score, "amax")
    is_winner = score == winner_score[row]
    # The lowest id among equals, as argmax takes it.
    winner = torch.full_like(tokens, logits.shape[1])
    winner.scatter_reduce_(0, row[is_winner], column[is_winner], "amin")
    is_other = column != winner[row]
    runner_up = torch.full_like(own, -torch.inf)
    runner_up.scatter_reduce_(0, row[is_other], score[is_other], "amax")
    gap = (winner_score - runner_up).clamp_(max=GAP_MOST)
    return torch.where(winner == tokens, 0.0, (winner_score - own).clamp_(min=0.0)), logprobs, gap


def _rivals(
    logits: Tensor, key: Tensor, tokens: Tensor, *, start: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the tokens that may be a row's best or its runner-up: row, counted from `start`, token id, and logit plus
    noise; then logit plus noise of `tokens`, and their log-probabilities."""
    halves, spare = _halves(key, logits.shape[1])
    logprobs = logprobs_of(logits, tokens, spare)  # leaves exp(logits - top) in `spare`
    bound = spare.div_(halves)  # exp(logit) / w, less its factor of 2^31
    first = _argmax(bound)
    best = _at(bound, first) * _at(halves, first) / -torch.log1p(-_w(_at(halves, first)))
    row, column = _reaching(bound, best * (_GUMBEL_REACH * 2.0**-31))
    score = logits[row, column] + _gumbel(_w(halves[row, column]))
    own = _at(logits, tokens) + _gumbel(_w(_at(halves, tokens)))
    return row + start, column, score, own, logprobs


def _argmax(values: Tensor) -> Tensor:
    """Return the place of the greatest value of each row. On a CPU numpy takes a twelfth of PyTorch's time for it."""
    return torch.from_numpy(values.numpy().argmax(-1)) if values.device.type == "cpu" else values.argmax(-1)


def _reaching(values: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
    """Return row and column of the values that reach the `least` of their row. On a CPU by numpy, as in `_argmax`."""
    if values.device.type != "cpu":
        row, column = (values >= least[:, None]).nonzero(as_tuple=True)
        return row, column
    places = np.flatnonzero(values.numpy() >= least.numpy()[:, None])
    row_places, column_places = np.divmod(places, values.shape[1])
    return torch.from_numpy(row_places), torch.from_numpy(column_places)


def logprobs_of(logits: Tensor, tokens: Tensor, out: Tensor) -> Tensor:
    """Return log softmax(logits) [R, V] of tokens [R]: float32 [R], never above 0. `out` becomes exp(logits - max)."""
    top = logits.amax(-1, keepdim=True)
    z = torch.sub(logits, top, out=out).exp_().sum(-1)
    return (_at(logits, tokens) - top[:, 0] - z.log_()).clamp_(max=0.0)


def _at(values: Tensor, index: Tensor) -> Tensor:
    return values.gather(1, index[:, None])[:, 0]


def _noise(key: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return (w, room for as many values): float32 [R, V], both valid until the next call in this thread."""
    halves, spare = _halves(key, vocabulary)
    return halves.mul_(2.0**-31).clamp_(max=W_MAX), spare


def _w(halves: Tensor) -> Tensor:
    """Return w of each value of `_halves`."""
    return (halves * 2.0**-31).clamp_(max=W_MAX)


def _halves(key: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return (bits + 0.5, room for as many values), as `_noise` does."""
    bits, spare = noise_bits.bits(key, vocabulary)
    halves = spare.view(torch.float32)
    halves.copy_(bits).add_(0.5)
    return halves[:, :vocabulary], bits.view(torch.float32)[:, :vocabulary]


def _gumbel(w: Tensor) -> Tensor:
    """Turn the uniform values `w` into Gumbel noise, in place."""
    return w.neg_().log1p_().neg_().log_().neg_()
