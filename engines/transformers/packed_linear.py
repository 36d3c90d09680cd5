"""Compute linear layers on a CPU from weights in oneDNN's own layout: the same products, to rounding, in half the time
or less. PyTorch uses MKL for float32 products, which is slow with few rows and on processors not made by Intel; ADR 8
has the figures.

1. The plain weights stay: loading and patching write to them, and tied layers see the change. The packed copy takes as
   much memory again. It is made at the third product after a change: a version that scores one group, in two passes,
   does not repay it.
2. Layers are packed where that is faster: large ones, in float32, on an x86 processor. None are packed if the copies
   would take more than half of the free memory.
3. The operations are private ones of PyTorch's own compiler. Where they are missing, or give another product than the
   plain layer, no layer is packed.
"""

import platform
from typing import Final

import torch
from torch import Tensor, nn

from echo2.runtime.host_memory import available_memory
from echo2.weights.torch_io import published_tensors

LAYOUT_ROWS: Final = 8
"""Input rows that the layout is optimised for: those of a decode step. It serves one and hundreds as well (ADR 8)."""
LEAST_PACKED_WEIGHTS: Final = 1 << 16
"""Only layers of more weights are packed: a packed product costs 10 us more than a plain one, too much for small
layers."""
MOST_PLAIN_ROWS: Final = 96
"""Most rows after a change that the plain layer computes. Packing costs what it saves on 35 rows in a layer of 576 x
1,536, on 140 in one of 576 x 49,152."""
_TOLERANCE: Final = 1e-4


class PackedLinear(nn.Linear):
    """A linear layer that shares the parameters of `plain` and computes the same product."""

    def __init__(self, plain: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.weight, self.bias = plain.weight, plain.bias
        self.forget()

    def forget(self) -> None:
        """Drop the packed copies: the weights have changed."""
        self._packed: Tensor | None = None
        self._rows = 0

    def forward(self, rows: Tensor) -> Tensor:
        """Compute the product: [..., in_features] -> [..., out_features]."""
        if self._packed is None:
            self._rows += rows.numel() // self.in_features
            if self._rows <= MOST_PLAIN_ROWS:
                return super().forward(rows)
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), LAYOUT_ROWS)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self.bias, "none", [], "")
        return product


def pack(model: nn.Module) -> int:
    """Pack every layer that rules 2 and 3 allow; return their number."""
    plain = {name: module for name, module in model.named_modules() if type(module) is nn.Linear and _gains(module)}
    nbytes = sum(layer.weight.nbytes for layer in plain.values())
    if not plain or 2 * nbytes > available_memory() or not _right(next(iter(plain.values()))):
        return 0
    for name, layer in plain.items():
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, PackedLinear(layer))
    return len(plain)


def forget(model: nn.Module) -> None:
    """Drop the packed copies of the weights that a version writes, which have changed. Those of a frozen base stay."""
    written = {tensor.data_ptr() for tensor in published_tensors(model).values()}
    for module in model.modules():
        if isinstance(module, PackedLinear) and module.weight.data_ptr() in written:
            module.forget()


def _gains(layer: nn.Linear) -> bool:
    weight = layer.weight
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.numel() > LEAST_PACKED_WEIGHTS
        and platform.machine() in ("x86_64", "AMD64")
    )


@torch.inference_mode()
def _right(plain: nn.Linear) -> bool:
    """Return whether the packed product equals the plain one (rule 3)."""
    rows = torch.linspace(-1, 1, LAYOUT_ROWS * plain.in_features).view(LAYOUT_ROWS, -1)
    try:
        layer = PackedLinear(plain)
        product = [layer(rows) for _ in range(MOST_PLAIN_ROWS // LAYOUT_ROWS + 1)][-1]
    except (AttributeError, RuntimeError):  # the operation is missing, or not for this processor
        return False
    return torch.allclose(product, plain(rows), rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
