"""Round a model's pass as other kernels do: for Calibrations, which need more than one honest rounding of a device.

The variable `ECHO2_ROUNDING` of an engine's process names them, with commas between.

1. `split-sums`: a product of a linear layer is the sum of four parts, each rounded to the model's type. GPUs do so
   where few rows leave their cores idle.
2. `eager-attention`: scores and weights of attention are rounded to the model's type, as no fused kernel does.
3. `fused-norms`: a norm multiplies by its weight before it rounds, as kernels do that compute a norm in one.
4. The same function but for rounding: parameters are shared, so that patches reach them.
5. `tf32` is for the process of a scorer: its passes in TF32 are emulated (engines/transformers/tf32.py), with factors
   rounded to the nearest; by `tf32-cut` their last bits are dropped.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from echo2.engines.transformers.attention_switch import AttentionSwitch
from echo2.engines.transformers.output_layer import OutputLayer

ROUNDING_VARIABLE: Final = "ECHO2_ROUNDING"
SPLIT_SUMS: Final = "split-sums"
EAGER_ATTENTION: Final = "eager-attention"
FUSED_NORMS: Final = "fused-norms"
TF32: Final = "tf32"
TF32_CUT: Final = "tf32-cut"
PARTS: Final = 4


class SplitLinear(nn.Linear):
    """A linear layer that shares the parameters of `plain` (rule 1)."""

    def __init__(self, plain: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.weight, self.bias = plain.weight, plain.bias

    def forward(self, rows: Tensor) -> Tensor:
        """Compute the product: [..., in_features] -> [..., out_features]."""
        columns = zip(rows.chunk(PARTS, -1), self.weight.chunk(PARTS, -1), strict=True)
        sums = [nn.functional.linear(part, weight) for part, weight in columns]
        whole = sums[0]
        for part in sums[1:]:
            whole = whole + part
        bias: Tensor | None = self.bias
        return whole if bias is None else whole + bias


class FusedNorm(nn.Module):
    """A root-mean-square norm that shares the weight of `plain`, a norm of transformers' (rule 3)."""

    def __init__(self, plain: Any) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = plain.weight, plain.variance_epsilon

    def forward(self, hidden: Tensor) -> Tensor:
        """Norm the hidden states: [..., size] -> [..., size]."""
        wide = hidden.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        normed: Tensor = (scaled * self.weight.float()).to(hidden.dtype)
        return normed


def round_as_asked(model: Any, environ: Mapping[str, str]) -> None:
    """Let a model, whose methods carry no types, round as the variable says."""
    asked = _roundings(environ)
    if SPLIT_SUMS in asked:
        head = OutputLayer.of(model).linear
        _replace(model, lambda one: type(one) is nn.Linear and one is not head, SplitLinear)
    if FUSED_NORMS in asked:
        _replace(model, _is_plain_norm, FusedNorm)
    if EAGER_ATTENTION in asked:
        AttentionSwitch(model).set_all("eager")


def tf32_rounding(environ: Mapping[str, str]) -> str:
    """Return which of the two of rule 5 the variable names; empty: neither."""
    return next((name for name in (TF32, TF32_CUT) if name in _roundings(environ)), "")


def _roundings(environ: Mapping[str, str]) -> list[str]:
    return environ.get(ROUNDING_VARIABLE, "").split(",")


def _is_plain_norm(module: nn.Module) -> bool:
    """Tell whether a module norms as Llama's does: other families add 1 to the weight."""
    kind = type(module).__name__
    return kind.endswith("RMSNorm") and not kind.startswith("Gemma") and hasattr(module, "variance_epsilon")


def _replace(model: nn.Module, wanted: Any, kind: Any) -> None:
    for name, module in list(model.named_modules()):
        if wanted(module):
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, kind(module))
