"""Compute passes in TF32: each product of matrices takes 10 bits of its factors' mantissas, and sums in float32.

1. NVIDIA's cards have it from Ampere on. Elsewhere a pass stays in float32.
2. It is set around a pass, here alone, and put back at the end, also after an error. So whatever else the process
   computes stays in float32, the passes of exact classes above all.
3. The angles of positions are no such product: a position above 2,048 has more bits than TF32 keeps. The library
   computes them element by element, and a test looks.
4. The roundings `tf32` and `tf32-cut` (engines/transformers/roundings.py) stand in for a card: `EmulatedTf32` changes
   what products take. Its process packs no layer, whose products could not be seen.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from echo2.engines.transformers.roundings import TF32_CUT, tf32_rounding

Tf32 = Callable[[], AbstractContextManager[Any]]
"""Lets products be computed in TF32 until the end of a block."""
AMPERE: Final = (8, 0)
_SPLIT: Final = 2.0**13 + 1
"""Veltkamp's constant for a float32 of which 11 bits are left, the hidden one among them."""
_LAST_BITS: Final = (1 << 13) - 1
_PRODUCTS: Final = frozenset(
    {linear, torch.matmul, torch.mm, torch.bmm, Tensor.matmul, Tensor.mm, Tensor.bmm, Tensor.__matmul__}
)


def tf32_of(device: torch.device, environ: Mapping[str, str]) -> Tf32 | None:
    """Return what computes in TF32 on a device; None: it has none (rule 1)."""
    if asked := tf32_rounding(environ):
        return partial(EmulatedTf32, cut_to_tf32 if asked == TF32_CUT else round_to_tf32)
    nvidia = device.type == "cuda" and torch.version.hip is None
    return tensor_cores if nvidia and torch.cuda.get_device_capability(device) >= AMPERE else None


@contextmanager
def tensor_cores() -> Iterator[None]:
    """Let NVIDIA's cards compute in TF32 until the end (rule 2)."""
    matmul = torch.backends.cuda.matmul
    # The older of PyTorch's switches sets both. After the newer one by itself, it is an error to read the older.
    before, newer = matmul.allow_tf32, getattr(matmul, "fp32_precision", None)
    matmul.allow_tf32 = True
    try:
        yield
    finally:
        matmul.allow_tf32 = before
        if newer is not None:
            matmul.fp32_precision = newer


class EmulatedTf32(TorchFunctionMode):
    """A mode in which products take their factors as `change` leaves them (rule 4)."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._change = change

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch's, with factors changed where it is a product."""
        if func is scaled_dot_product_attention:
            return _attend(self._change, *args, **(kwargs or {}))
        if func in _PRODUCTS:
            first, second, *others = args
            args = (self._change(first), self._change(second), *others)
        return func(*args, **(kwargs or {}))


def round_to_tf32(values: Tensor) -> Tensor:
    """Round float32 to the nearest numbers of 10 bits of mantissa; other types have no more."""
    if values.dtype != torch.float32:
        return values
    wide = values * _SPLIT
    return wide - (wide - values)


def cut_to_tf32(values: Tensor) -> Tensor:
    """Drop what float32 has beyond 10 bits of mantissa; other types have no more."""
    if values.dtype != torch.float32:
        return values
    return (values.contiguous().view(torch.int32) & ~_LAST_BITS).view(torch.float32)


def _attend(
    change: Callable[[Tensor], Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute attention as the function of torch does, by two products whose factors change."""
    if enable_gqa:
        key, value = (part.repeat_interleave(query.shape[-3] // part.shape[-3], -3) for part in (key, value))
    scores = change(query) @ change(key).transpose(-2, -1)
    scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None:
        seen = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if seen else scores + attn_mask
    return change(scores.softmax(-1)) @ change(value)
