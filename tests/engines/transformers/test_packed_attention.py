"""Packed passes give what each model's own passes give, or are not taken."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from echo2.engines.transformers import packed_attention, packed_flex
from echo2.engines.transformers.packed_attention import PackedPass
from echo2.engines.transformers.packed_layout import PackedLayout, TokenGroup

SHAPE: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "head_dim": 16, "max_position_embeddings": 256, "initializer_range": 0.15,
    "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1,
}  # fmt: skip
GROUPS = [
    TokenGroup([3, 1, 4, 1, 5, 9, 2], [[6, 5, 3], [], [5] * 30, [8, 9, 7, 9, 3, 2]]),
    TokenGroup([2, 7, 1], [[8, 2, 8, 1], [8, 2, 8, 2]]),
    TokenGroup(list(range(20)), [list(range(40)), list(range(7, 19))]),
]


def llama(**changes: Any) -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE | changes))


def qwen3(**changes: Any) -> Any:
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SHAPE | changes))


def gemma3(**changes: Any) -> Any:
    """Return a model with sliding layers, whose window is shorter than prompts and rollouts."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    sliding = {"sliding_window": 6, "layer_types": kinds, "query_pre_attn_scalar": 16}
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**SHAPE | sliding | changes))


def qwen3_moe(**changes: Any) -> Any:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**SHAPE | experts | changes))


def mistral(**changes: Any) -> Any:
    return transformers.MistralForCausalLM(transformers.MistralConfig(**SHAPE | {"sliding_window": 5} | changes))


def gemma2(**changes: Any) -> Any:
    """Return a model that bounds its attention scores, so closely that it shows."""
    bounded = {"query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0, "sliding_window": 6}
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**SHAPE | bounded | changes))


def gpt_oss(**changes: Any) -> Any:
    """Return a model with sinks."""
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6}
    return transformers.GptOssForCausalLM(transformers.GptOssConfig(**SHAPE | experts | changes))


def built(make: Callable[..., Any], **changes: Any) -> Any:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return make(**changes).eval()


def worst(model: Any, packed: PackedPass) -> float:
    """Return the largest difference of a hidden state from the model's own pass over the same rollout."""
    layout = packed.layout(GROUPS)
    hidden = packed.hidden_states(layout)
    apart = 0.0
    for number, group in enumerate(GROUPS):
        for index, tokens in enumerate(group.rollouts):
            own = model.base_model(torch.tensor([[*group.prompt, *tokens]])).last_hidden_state[0]
            places = [layout.before(number, index, place) for place in range(len(tokens) + 1)]
            apart = max(apart, float((hidden[places] - own[len(group.prompt) - 1 :]).abs().max()))
    return apart


@pytest.mark.parametrize("make", [llama, qwen3, gemma2, gemma3, gpt_oss, qwen3_moe, mistral])
def test_a_packed_pass_gives_the_hidden_states_of_each_rollout_alone(make: Callable[..., Any]) -> None:
    model = built(make)
    own = model.config._attn_implementation
    packed = PackedPass.of(model)
    assert packed is not None
    with torch.inference_mode():
        assert worst(model, packed) <= 2e-5
    assert model.config._attn_implementation == own == ("eager" if make in (gemma2, gpt_oss) else "sdpa")


def test_a_card_gets_no_mask_with_grouped_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    own, asked = packed_attention.scaled_dot_product_attention, set[tuple[bool, bool]]()

    def noted(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
        asked.add((options["attn_mask"] is not None, options["enable_gqa"]))
        return own(*tensors, **options)

    monkeypatch.setattr(packed_attention, "scaled_dot_product_attention", noted)
    monkeypatch.setattr(packed_attention, "UNGROUPED", ("cpu",))
    model = built(mistral)
    with torch.inference_mode():
        assert worst(model, PackedPass(model)) <= 2e-5
    assert (True, False) in asked
    assert (True, True) not in asked


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-5), (torch.float16, 2e-2)])
@pytest.mark.parametrize("make", [llama, qwen3, gemma3, mistral])
@pytest.mark.slow_but("qwen3-dtype0-2e-05", "qwen3-dtype1-0.02")
def test_one_call_for_all_rows_gives_the_same(make: Callable[..., Any], dtype: torch.dtype, bound: float) -> None:
    """As on a GPU, where it is compiled; not shown there."""
    model = built(make).to(dtype)
    packed = PackedPass(model, one_call=True)
    with torch.inference_mode():
        assert worst(model, packed) <= bound
    assert packed.equals_own()
    assert packed.layout(GROUPS).rows == []


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_where_one_call_fails_rows_are_computed_alike_in_length(monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(llama)
    monkeypatch.setattr(packed_flex, "DEVICES", ("cpu",))
    for fault in (RuntimeError("no kernel"), ImportError("no Triton")):

        def failing(compiled: bool, fault: Exception = fault) -> Any:
            raise fault

        monkeypatch.setattr(packed_flex, "_kernel", failing)
        packed = PackedPass.of(model)
        assert packed.layout(GROUPS).masks is None
    monkeypatch.setattr(packed_flex, "_kernel", lambda compiled: packed_flex.flex_attention)
    packed = PackedPass.of(model)
    assert packed.layout(GROUPS).masks is not None
    for other in (gemma2, gpt_oss):
        packed = PackedPass.of(built(other))
        assert packed.layout(GROUPS).masks is None


def test_gradients_are_those_of_the_rollouts_alone() -> None:
    """So the learner may take the same layout."""
    model = built(llama)
    packed = PackedPass.of(model)
    assert packed is not None
    layout = PackedLayout(GROUPS[:1], torch.device("cpu"))
    group = GROUPS[0]
    places = [layout.before(0, index, place) for index in (0, 2) for place in range(len(group.rollouts[index]))]
    packed.hidden_states(layout)[places].square().sum().backward()
    together = [parameter.grad.clone() for parameter in model.base_model.parameters()]
    model.zero_grad()
    for index in (0, 2):
        ids = torch.tensor([[*group.prompt, *group.rollouts[index]]])
        own = model.base_model(ids).last_hidden_state[0, len(group.prompt) - 1 : -1]
        own.square().sum().backward()
    for parameter, gradient in zip(model.base_model.parameters(), together, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-3, atol=1e-4)


ROPE = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}


def test_a_model_whose_rotary_positions_depend_on_the_longest_sequence_has_no_packed_pass() -> None:
    model = built(llama, rope_parameters=ROPE)
    before = model.config._attn_implementation
    assert PackedPass.of(model) is None
    assert model.config._attn_implementation == before


def test_a_sliding_layer_that_does_not_name_its_window_has_no_packed_pass() -> None:
    model = built(gemma3)
    model.model.layers[2].self_attn.sliding_window = None
    assert PackedPass.of(model) is None


def test_a_model_that_attends_otherwise_than_it_says_has_no_packed_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(qwen3)
    own = type(model.model.layers[0].self_attn).forward

    def halved(self: Any, *args: Any, **kwargs: Any) -> Any:
        output, weights = own(self, *args, **kwargs)
        return (output if "packed_layout" in kwargs else output / 2), weights

    monkeypatch.setattr(type(model.model.layers[0].self_attn), "forward", halved)
    assert PackedPass.of(model) is None


def test_weights_that_are_not_finite_do_not_speak_against_packed_passes() -> None:
    model = built(qwen3)
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    assert PackedPass.of(model) is not None
