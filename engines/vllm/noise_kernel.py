"""The noise of seeded sampling (engines.sampling.sampling) in one Triton kernel, where PyTorch takes some 27 operations
and 238 bytes per logit. It reads each logit once and writes it once.

Rules
1. The bits are the same. The two logarithms are float32's own, as in any implementation: `log1p(-w)` is
   `log(u) * -w / (u - 1)` with u = 1 - w rounded, which loses no more than the rounding of each operation.
2. It is used only where it gives what PyTorch's operations give on the device at hand (`working_kernel`); else these
   are used.
"""

from collections.abc import Callable
from typing import Any

import structlog
import torch
import triton
import triton.language as tl
from torch import Tensor

from echo2.engines.sampling import sampling

BLOCK: tl.constexpr = tl.constexpr(1024)
_GOLDEN_RATIO: tl.constexpr = tl.constexpr(0x9E3779B97F4A7C15)
_FIRST_FACTOR: tl.constexpr = tl.constexpr(0xBF58476D1CE4E5B9)
_SECOND_FACTOR: tl.constexpr = tl.constexpr(0x94D049BB133111EB)
_W_MAX: tl.constexpr = tl.constexpr(1 - 2.0**-24)
ROUNDING = 1e-5
"""By how much noise of the kernel may differ from PyTorch's, relative to its size and at least 1."""

AddNoise = Callable[[Tensor, Tensor, Tensor], Tensor]
_log = structlog.get_logger("engines")


@triton.jit  # type: ignore[untyped-decorator]
def _noise_kernel(logits: Any, stride: Any, keys: Any, rows: Any, vocabulary: Any, size: tl.constexpr) -> None:
    number = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * size + tl.arange(0, size)
    inside = column < vocabulary
    place = logits + tl.load(rows + number) * stride + column
    x = tl.load(keys + number).to(tl.uint64) + (column // 2 + 1).to(tl.uint64) * _GOLDEN_RATIO
    x = (x ^ (x >> 30)) * _FIRST_FACTOR
    x = (x ^ (x >> 27)) * _SECOND_FACTOR
    x = x ^ (x >> 31)
    bits = tl.where(column % 2 == 0, x, x >> 32) & 0x7FFFFFFF
    w = tl.minimum((bits.to(tl.int32).to(tl.float32) + 0.5) * 4.656612873077393e-10, _W_MAX)
    u = 1.0 - w
    log1p = tl.where(u == 1.0, -w, tl.log(u) * (-w / tl.where(u == 1.0, 1.0, u - 1.0)))
    noise = -tl.log(-log1p)
    tl.store(place, tl.load(place, mask=inside) + noise, mask=inside)


def add_noise(logits: Tensor, key: Tensor, rows: Tensor) -> Tensor:
    """Do what `sampling.add_noise_of` does. `rows`: int64."""
    vocabulary = logits.shape[1]
    grid = (len(key), triton.cdiv(vocabulary, BLOCK.value))
    _noise_kernel[grid](logits, logits.stride(0), key, rows, vocabulary, size=BLOCK.value)
    return logits


def working_kernel(device: torch.device) -> AddNoise | None:
    """Return `add_noise` if it works on the device and gives what PyTorch gives (rule 2)."""
    key = sampling.keys([(bytes([row]) * 16, 3 * row) for row in range(4)], device)
    rows = torch.arange(4, device=device)
    plain = sampling.add_noise_of(torch.zeros(4, 4097, device=device), key)
    try:
        ours = add_noise(torch.zeros(4, 4097, device=device), key, rows)
        off = float(((ours - plain).abs() / plain.abs().clamp(min=1.0)).max())
    except Exception as error:  # the compiler's, the driver's: of any kind
        _log.warning("the kernel of noise cannot be used", reason=str(error).splitlines()[0] if str(error) else "")
        return None
    if not off <= ROUNDING:
        _log.warning("the kernel of noise differs from PyTorch's operations", most=off)
        return None
    return add_noise
