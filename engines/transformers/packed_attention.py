"""Run a transformers model on a packed layout, by an attention function of our own.

1. The layout travels with the call, as a keyword that the library's layers pass on to the attention function. While a
   packed pass runs, the model's configuration names that function (engines.transformers.attention_switch).
2. Grouped queries, sliding windows, bounds of scores (Gemma 2) and sinks (gpt-oss) are computed as the library's own
   functions compute them; in one call the first two alone.
3. `PackedPass.of` compares a packed pass with the library's own passes on short groups. On a GPU it tries one call for
   all rows first (engines.transformers.packed_flex), then rows alike in length. It returns None for a model for which
   both differ, or that has layers of another kind. Masks beyond the length of that comparison rest on rule
   2: each layer that the configuration calls sliding must name its window.
"""

from collections.abc import Sequence
from typing import Any, Final

import structlog
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from echo2.engines.transformers import packed_flex
from echo2.engines.transformers.attention_switch import AttentionSwitch
from echo2.engines.transformers.packed_layout import PackedLayout, TokenGroup

NAME: Final = "echo2_packed"
"""The function's name in a model's configuration."""
_LAYERS: Final = {"full_attention", "sliding_attention"}
_ROPES_BY_LENGTH: Final = {"dynamic", "longrope"}
"""Rotary embeddings that depend on the longest sequence of a pass, so on other rollouts."""
_TOLERANCE: Final = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
UNGROUPED: Final = ("cuda", "xpu")
"""Kinds of devices whose kernels take no mask with grouped queries: PyTorch would compute whole squares of scores. Keys
and values are repeated for the queries there."""
_FOREIGN_ARGUMENTS: Final = ("position_bias",)
"""Arguments of some models' attention functions that this one does not compute."""

_log = structlog.get_logger("engines")


class UnknownAttention(Exception):
    """A model's attention has a part that packed attention does not compute."""


class PackedPass:
    """Forward passes of a model on packed layouts."""

    def __init__(self, model: Any, *, one_call: bool = False) -> None:
        """`model`: a transformers.PreTrainedModel, whose methods carry no types. `one_call`: attention by flex
        attention."""
        self._model, self._one_call = model, one_call
        self._attention = AttentionSwitch(model)

    @classmethod
    def of(cls, model: Any) -> "PackedPass | None":
        """Return packed passes of `model`, None if they would not equal its own (rule 3)."""
        ways = (True, False) if model.device.type in packed_flex.DEVICES else (False,)
        candidates = (cls(model, one_call=one_call) for one_call in ways)
        return next((packed for packed in candidates if packed._is_supported() and packed.equals_own()), None)

    def layout(self, groups: Sequence[TokenGroup]) -> PackedLayout:
        """Lay groups out for `hidden`."""
        return PackedLayout(groups, self._model.device, one_call=self._one_call)

    def hidden_states(self, layout: PackedLayout) -> Tensor:
        """Return the last hidden state of each token: [N, D]."""
        with self._attention.to(NAME):
            output = self._model.base_model(
                layout.ids, position_ids=layout.positions, use_cache=False, packed_layout=layout
            )
        hidden: Tensor = output.last_hidden_state
        return hidden[0]

    def _is_supported(self) -> bool:
        config = self._model.config.get_text_config()
        ropes = getattr(config, "rope_parameters", None) or {}
        kinds = {rope.get("rope_type") for rope in (ropes, *ropes.values()) if isinstance(rope, dict)}
        return set(getattr(config, "layer_types", None) or ()) <= _LAYERS and not kinds & _ROPES_BY_LENGTH

    @torch.no_grad()
    def equals_own(self, tolerance: float | None = None) -> bool:
        """Compare hidden states with those of the library's own pass over each rollout. `tolerance`: None: that of the
        model's type."""
        most = self._model.config.get_text_config().vocab_size
        groups = [
            TokenGroup(
                [(7 * number + 3) % most for number in range(prompt)],
                [[(5 * number + length) % most for number in range(length)] for length in lengths],
            )
            for prompt, lengths in ((5, (4, 0, 9)), (3, (1, 6)))
        ]
        try:
            layout = self.layout(groups)
            hidden = self.hidden_states(layout)
        except (UnknownAttention, TypeError, RuntimeError, ValueError):
            return False
        except Exception as error:  # a compiler's, of which there are many
            if not self._one_call:
                raise
            _log.warning("attention is computed row by row", reason=f"{type(error).__name__}: {error}"[:300])
            return False
        bound = _TOLERANCE[hidden.dtype] if tolerance is None else tolerance
        return all(self._alike(layout, hidden, groups, number, bound) for number in range(len(groups)))

    def _alike(self, layout: PackedLayout, hidden: Tensor, groups: list[TokenGroup], number: int, bound: float) -> bool:
        group = groups[number]
        for index, tokens in enumerate(group.rollouts):
            ids = torch.tensor([[*group.prompt, *tokens]], device=self._model.device)
            own = self._model.base_model(ids, use_cache=False).last_hidden_state[0, len(group.prompt) - 1 :]
            places = layout.places(number, index)
            if not torch.allclose(
                hidden[places], own, rtol=bound, atol=bound * float(own.nan_to_num().abs().max()), equal_nan=True
            ):
                return False
        return True


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packed_layout: PackedLayout | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute attention as transformers' functions do: query [1, H, N, D], key and value [1, Hk, N, D] ->
    [1, N, H, D]. `softcap`: bound of the scores. `s_aux`: sinks, [H]: the score of a key without a value."""
    _check(module, attention_mask, sliding_window, kwargs)
    if packed_layout is None:
        raise UnknownAttention("the model does not pass the layout on to its attention")
    if packed_layout.masks is not None:
        if softcap is not None or s_aux is not None:
            raise UnknownAttention("attention in one call bounds no scores, and has no sinks")
        masks = packed_layout.masks
        return packed_flex.attend(masks, query, key, value, scaling=scaling, window=sliding_window), None
    q, k, v = query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1)  # [N, heads, D]
    output = q.new_empty((*q.shape[:2], v.shape[-1]))
    for rows in packed_layout.rows:
        keys, values = (states[rows.keys].transpose(1, 2) for states in (k, v))
        for asked, seen in rows.blocks():
            mask = rows.mask(asked, seen, sliding_window)
            places = rows.queries[:, asked]
            asking = q[places].transpose(1, 2)
            part = _attend(asking, keys[:, :, seen], values[:, :, seen], mask, scaling, softcap, s_aux).transpose(1, 2)
            if rows.own is None:
                output[places] = part
            else:
                own = rows.own[:, asked]
                output[places[own]] = part[own]
    return output[None], None


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Compute one product: query [R, H, L, D], key and value [R, Hk, K, D] -> [R, H, L, D]. `mask`: bool [L, K]; None:
    as many keys as queries, each of which attends to those up to its own place."""
    shared = query.shape[1] // key.shape[1]
    if softcap is None and sinks is None:
        if mask is not None and query.device.type in UNGROUPED:
            key, value, shared = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1), 1
        return scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scaling, is_causal=mask is None, enable_gqa=shared > 1
        )
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = query @ key.repeat_interleave(shared, 1).transpose(2, 3) * factor
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    seen = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).tril() if mask is None else mask
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    return weights[..., : key.shape[2]] @ value.repeat_interleave(shared, 1)


def _check(module: Any, attention_mask: Tensor | None, window: int | None, others: dict[str, Any]) -> None:
    foreign = [name for name in _FOREIGN_ARGUMENTS if others.get(name) is not None]
    if attention_mask is not None or foreign:
        raise UnknownAttention(f"packed attention computes no {', '.join(foreign) or 'attention mask'}")
    kinds = getattr(module.config, "layer_types", None)
    if kinds and kinds[module.layer_idx] == "sliding_attention" and window is None:
        raise UnknownAttention("a sliding layer does not name its window")


AttentionInterface.register(NAME, packed_attention)
