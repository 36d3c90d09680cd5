"""The output layer of a model: from its last hidden states to logits.

Rules
1. It is a linear map. Some families scale its result (Granite, Cohere), and some cap it softly (Gemma 2): what they do
   is read from the config, and `check` compares the whole with the model's own logits. So the learner and the scorer,
   which run the output layer by themselves, compute what the model computes.
2. In 16-bit formats its products are summed and kept in float32. A logit of 20 rounded to bfloat16 has steps of 0.125,
   which would be a third of all noise of a pass (ADR 95). CUDA and ROCm have one product for it; elsewhere parts of
   the weights are widened, on a CPU as many as stay in its cache.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

CPU_WEIGHTS: Final = 1 << 19
"""Weights that are widened at once on a CPU: 2 MB in float32."""
DEVICE_WEIGHTS: Final = 1 << 26
"""The same on another device: 256 MB in float32, and few products."""
_TOLERANCE: Final = 1e-4


class UnknownOutput(Exception):
    """A model's logits are none that `OutputLayer` computes; the message is a sentence for its owner."""


class OutputLayer(NamedTuple):
    """logits = cap * tanh(scale * linear(hidden) / cap); `cap` None: scale * linear(hidden). `factor`: what they are
    multiplied by then (engines.temperature)."""

    linear: nn.Linear
    scale: float = 1.0
    cap: float | None = None
    factor: float = 1.0

    @classmethod
    def of(cls, model: Any) -> "OutputLayer":
        """Return the layer of a transformers.PreTrainedModel, whose methods carry no types. Raises UnknownOutput."""
        linear, config = model.get_output_embeddings(), model.config.get_text_config()
        if not isinstance(linear, nn.Linear):
            raise UnknownOutput(f"{type(model).__name__} has no linear output layer: use a model that generates text")
        scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1)
        return cls(linear, scale, getattr(config, "final_logit_softcapping", None))

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return logits, float32 (rule 2)."""
        narrow = hidden.dtype == self.linear.weight.dtype and hidden.dtype.itemsize == 2
        logits: Tensor = _wide_product(self.linear, hidden) if narrow else self.linear(hidden).float()
        return self.change(logits)

    def change(self, logits: Tensor) -> Tensor:
        """Return what becomes of the linear map's result."""
        scaled = logits if self.scale == 1.0 else logits * self.scale
        capped = scaled if self.cap is None else torch.tanh(scaled / self.cap) * self.cap
        return capped if self.factor == 1.0 else capped * self.factor

    @property
    def changes(self) -> bool:
        """Tell whether `change` changes anything."""
        return self.scale != 1.0 or self.cap is not None or self.factor != 1.0

    def slope(self, logits: Tensor) -> Tensor | float:
        """Return the derivative of `change` where it gave these logits."""
        steepest = self.scale * self.factor
        return steepest if self.cap is None else steepest * (1.0 - (logits / (self.factor * self.cap)) ** 2)


def _wide_product(linear: nn.Linear, hidden: Tensor) -> Tensor:
    """Return the product of 16-bit factors in float32: [..., in_features] -> [..., out_features]."""
    weight, bias = linear.weight, linear.bias
    rows = hidden.reshape(-1, linear.in_features)
    if rows.is_cuda:
        product = torch.mm(rows, weight.t(), out_dtype=torch.float32)
    else:
        most = CPU_WEIGHTS if rows.device.type == "cpu" else DEVICE_WEIGHTS
        wide, size = rows.float(), max(1, most // linear.in_features)
        product = torch.cat([wide @ part.float().t() for part in torch.split(weight, size)], 1)
    if bias is not None:
        product += bias
    return product.view(*hidden.shape[:-1], linear.out_features)


@torch.no_grad()
def check(model: Any, within: Callable[[Callable[[], Tensor]], Tensor] = lambda work: work()) -> None:
    """Compare the layer's logits with the model's own. `within`: runs work with the model's parameters at hand. Raises
    UnknownOutput."""
    size = model.config.get_text_config().vocab_size
    compute_checked(model, torch.arange(min(4, size), device=model.device)[None], within)


@torch.no_grad()
def compute_checked(
    model: Any, ids: Tensor, within: Callable[[Callable[[], Tensor]], Tensor] = lambda work: work()
) -> Tensor:
    """Return the model's own logits of a pass over `ids`, once they are those of the layer. Raises UnknownOutput."""
    layer, states = OutputLayer.of(model), list[Tensor]()
    hook = model.base_model.register_forward_hook(lambda module, _, output: states.append(output.last_hidden_state))
    try:
        own: Tensor = model(ids, use_cache=False).logits
    finally:
        hook.remove()
    by_hand = within(lambda: layer(states[0] if states else model.base_model(ids, use_cache=False).last_hidden_state))
    bound = _TOLERANCE if model.dtype == torch.float32 else 2e-2
    if not torch.allclose(by_hand, own.float(), rtol=bound, atol=bound, equal_nan=True):
        raise UnknownOutput(
            f"{type(model).__name__} changes its logits after the output layer in a form that is not known here: use "
            "another model"
        )
    return own
