"""Count what the learner's passes take of memory, by a pass of a model whose tensors have no content.

1. Kept for the backward pass are the tensors that autograd saves, each storage once, without the parameters. With
   layers that are computed again these are their inputs, and beside them one layer's own while that is computed.
2. The pass is one over one sequence, without a mask. Attention keeps queries, keys, values, its output and a sum per
   query, as the kernels of a card do; so it does in a packed pass there (engines/transformers/packed_flex.py).
3. Nothing is computed and nothing allocated, so a model of any size is counted in seconds.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, PreTrainedModel

from echo2.coordinator.learner.layers_made_again import layers_of, make_layers_again
from echo2.coordinator.learner.messages import MemoryCounted
from echo2.coordinator.learner.model import BadModelFolder, evaluating, head_of, parameter_count
from echo2.engines.transformers.attention_switch import AttentionSwitch

COUNTED_TOKENS: Final = 1024
_NAME: Final = "echo2_counted"
"""Name of the attention function in a model's configuration."""


class KeptBytes(NamedTuple):
    """Bytes that a pass keeps for its backward pass, per token. `layers`: bytes of all layers. `again`: bytes of
    all where they are computed again. `layer`: bytes of the largest one, while it is computed again."""

    layers: float
    again: float
    layer: float


def count_folder(folder: Path, compute: str) -> MemoryCounted:
    """Count for the model of a folder. `compute`: float32 or bfloat16. Raises BadModelFolder."""
    if not (folder / "config.json").is_file():
        raise BadModelFolder(f"{folder} has no config.json: name the folder of a model")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        with FakeTensorMode(allow_non_fake_inputs=True):
            return count_model(build(config, getattr(torch, compute)))
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise BadModelFolder(f"the memory for a model of {folder} cannot be counted: {error}") from error


def count_model(model: PreTrainedModel) -> MemoryCounted:
    """Count for a model without content. Its layers are computed again from then on."""
    kept = kept_bytes(model, COUNTED_TOKENS)
    words, width = head_of(model).linear.weight.shape
    return MemoryCounted(
        parameters=parameter_count(model), layers=kept.layers, again=kept.again, layer=kept.layer,
        layer_parameters=max(sum(one.numel() for one in layer.parameters()) for layer in layers_of(model)),
        words=words, width=width, card=_card(),
    )  # fmt: skip


def _card() -> int:
    """Return the bytes of this machine's smallest card, 0 where there is none."""
    cards = [torch.cuda.get_device_properties(number).total_memory for number in range(torch.cuda.device_count())]
    return min(cards, default=0)


def build(config: Any, kind: torch.dtype) -> PreTrainedModel:
    """Return a model of a configuration in a number format; under FakeTensorMode without content."""
    auto: Any = AutoModelForCausalLM  # its methods carry no types
    model: PreTrainedModel = auto.from_config(config, dtype=kind, attn_implementation="sdpa")
    return evaluating(model)


def kept_bytes(model: PreTrainedModel, tokens: int) -> KeptBytes:
    """Count what a pass over `tokens` tokens keeps, per token. The model's layers are computed again from then on."""
    layers = {id(layer): layer for layer in layers_of(model)}
    of_layer: dict[int, int] = {}
    inside: list[int] = []
    hooks = []
    for number, layer in layers.items():
        hooks.append(layer.register_forward_pre_hook(lambda *_, number=number: inside.append(number)))
        hooks.append(layer.register_forward_hook(lambda *_: inside.clear()))
    whole = _save_bytes(model, tokens, lambda size: _add(of_layer, inside, size))
    for hook in hooks:
        hook.remove()
    make_layers_again(model, "always", model.device)
    again = _save_bytes(model, tokens, lambda size: None)
    return KeptBytes(whole / tokens, again / tokens, max(of_layer.values(), default=0) / tokens)


def _add(of_layer: dict[int, int], inside: list[int], size: int) -> None:
    for number in inside:
        of_layer[number] = of_layer.get(number, 0) + size


def _save_bytes(model: PreTrainedModel, tokens: int, on_storage: Callable[[int], None]) -> int:
    """Return the bytes of the tensors that a forward pass saves. `on_storage`: called with those of each."""
    seen = {one.untyped_storage()._cdata for one in model.parameters()}
    storages, total = list[Any](), 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal total
        storage = tensor.untyped_storage()
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            storages.append(storage)  # as long as it lives, no other has its place
            total += storage.nbytes()
            on_storage(storage.nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward(model, tokens)
    return total


def forward(model: PreTrainedModel, tokens: int) -> Tensor:
    """Return the last hidden states of a pass over `tokens` tokens (rule 2)."""
    ids = torch.zeros((1, tokens), dtype=torch.int64, device=model.device)
    with AttentionSwitch(model).to(_NAME):
        hidden: Tensor = model.base_model(ids, use_cache=False).last_hidden_state
    return hidden


def _causal(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
    scaling: float | None = None, **others: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Compute attention as transformers' functions do, each token to those before it."""
    grouped = query.shape[1] != key.shape[1]
    output = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=grouped)
    return output.transpose(1, 2), None


AttentionInterface.register(_NAME, _causal)
