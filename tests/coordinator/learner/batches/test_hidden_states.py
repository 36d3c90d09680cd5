"""Hidden states by one pass with each prompt once are those of the model's own passes, with their gradients."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from echo2.coordinator.learner.batches import hidden_states
from echo2.coordinator.learner.batches.batch import MicroBatch, count_padded_tokens, pack, rows, shared
from echo2.coordinator.learner.batches.batch_groups import TrainBatch
from echo2.engines.transformers.packed_attention import PackedPass
from tests.support.tiny_learner import group

SMALL: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "initializer_range": 0.3,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
MODELS: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SMALL)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SMALL)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SMALL)),
    "gemma3, sliding": (Gemma3ForCausalLM, Gemma3TextConfig(**SMALL, sliding_window=4)),
    "qwen3 with experts": (Qwen3MoeForCausalLM, Qwen3MoeConfig(**SMALL, **EXPERTS)),
}


@pytest.fixture(params=MODELS.values(), ids=MODELS.keys())
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    torch.manual_seed(1)
    make, config = request.param
    return make(config).eval()


def micro_batch() -> MicroBatch:
    """Two groups, one of several turns."""
    chance = random.Random(4)
    groups = [group(chance, "g", turns=(3, 2, 2)), group(chance, "h", turns=(6,))]
    (micro,) = pack(rows(TrainBatch(step=1, groups=groups), "group").groups, 10_000)
    return micro


def of_each_row(model: PreTrainedModel, micro: MicroBatch) -> Tensor:
    """The model's own passes, one per rollout."""
    states = [
        model.base_model(torch.from_numpy(row.tokens).long()[None], use_cache=False).last_hidden_state[0]
        for row in micro.rows
    ]
    return torch.cat([state[row.targets - 1] for state, row in zip(states, micro.rows, strict=True)])


@pytest.mark.parametrize("packed", [True, False], ids=["each prompt once", "filled up"])
def test_states_and_gradients_are_those_of_the_models_own_passes(
    model: PreTrainedModel, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not packed:
        monkeypatch.setattr(PackedPass, "of", lambda model: None)
    micro = micro_batch()
    expected, ours = of_each_row(model, micro), hidden_states.predicting_states(model, micro)
    assert hidden_states.cost_of(model) is (shared if packed else count_padded_tokens)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
    for mine, theirs in zip(gradients(model, ours), gradients(model, expected), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4 * float(theirs.abs().max()) + 1e-6)


def gradients(model: PreTrainedModel, states: Tensor) -> list[Tensor]:
    weight = torch.linspace(-1, 1, states.numel()).reshape(states.shape)
    parameters = [one for name, one in model.named_parameters() if "lm_head" not in name]
    found = torch.autograd.grad((states * weight).sum(), parameters, allow_unused=True)
    return [torch.zeros(1) if one is None else one for one in found]


def test_the_prompt_of_a_group_is_fed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    model, micro, fed = LlamaForCausalLM(LlamaConfig(**SMALL)).eval(), micro_batch(), list[int]()
    hidden_states.cost_of(model)
    model.model.embed_tokens.register_forward_hook(lambda module, given, out: fed.append(given[0].numel()))
    hidden_states.predicting_states(model, micro)
    assert fed == [shared(micro.groups) - len(micro.rows)]  # the last token of a rollout predicts nothing
