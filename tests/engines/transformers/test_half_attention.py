"""Decode attention in 16 bits on a CPU equals exact attention, rounded once."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from echo2.engines.transformers import half_attention as module
from echo2.engines.transformers.attention_switch import AttentionSwitch
from echo2.engines.transformers.decoder import Decoder
from echo2.engines.transformers.half_attention import half_attention, serves

HALVES = [torch.float16, torch.bfloat16]
CPU = torch.device("cpu")
SHAPE: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 64, "head_dim": 8, "max_position_embeddings": 64,
}  # fmt: skip


class Step(NamedTuple):
    query: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor


def step(dtype: torch.dtype, rows: int = 5, groups: int = 3, tokens: int = 40) -> Step:
    """Rows of several lengths, whose keys and values are the beginnings of larger buffers, as a RowCache gives them."""
    chance = torch.Generator().manual_seed(4)
    query = torch.randn(rows, 2 * groups, 1, 8, generator=chance).to(dtype)
    keys, values = (torch.randn(rows + 3, 2, tokens + 9, 8, generator=chance).to(dtype) for _ in range(2))
    hidden = torch.arange(tokens)[None] > torch.randint(tokens, (rows, 1), generator=chance)
    mask = torch.zeros(rows, tokens, dtype=dtype).masked_fill_(hidden, -torch.inf)[:, None, None]
    return Step(query, keys[:rows, :, :tokens], values[:rows, :, :tokens], mask)


def exact(one: Step, scaling: float) -> Tensor:
    """Attention in float64, from its definition: [R, 1, H, D]."""
    groups = one.query.shape[1] // one.keys.shape[1]
    keys, values = (states.double().repeat_interleave(groups, 1) for states in (one.keys, one.values))
    weights = (one.query.double() @ keys.transpose(2, 3) * scaling + one.mask.double()).softmax(-1)
    return (weights @ values).transpose(1, 2)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("block", [1, 900, 1 << 19])
def test_the_result_is_exact_attention_rounded_once(
    dtype: torch.dtype, groups: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of one row's head, of two and of all, with groups of queries and without."""
    monkeypatch.setattr(module, "BLOCK", block)
    one = step(dtype, groups=groups)

    output, weights = half_attention(torch.nn.Module(), *one, scaling=0.3)

    assert output.dtype == dtype
    assert weights is None
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(output.double(), exact(one, 0.3), rtol=rounding, atol=1e-5)


def test_a_row_is_computed_alike_beside_other_rows() -> None:
    one = step(torch.bfloat16)

    whole, _ = half_attention(torch.nn.Module(), *one, scaling=0.3)
    alone, _ = half_attention(torch.nn.Module(), *(part[2:3] for part in one), scaling=0.3)

    assert torch.equal(whole[2:3], alone)


def test_memory_of_a_step_in_inference_mode_serves_one_outside_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_room", module._Room())
    one = step(torch.float16)
    with torch.inference_mode():
        first, _ = half_attention(torch.nn.Module(), *one, scaling=0.3)
    second, _ = half_attention(torch.nn.Module(), *one, scaling=0.3)
    assert torch.equal(first, second)


def test_a_longer_step_after_a_shorter_one_gets_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 64)
    monkeypatch.setattr(module, "_room", module._Room())
    for tokens in (3, 70, 5):
        one = step(torch.float16, tokens=tokens)
        output, _ = half_attention(torch.nn.Module(), *one, scaling=0.3)
        torch.testing.assert_close(output.double(), exact(one, 0.3), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("argument", [{"is_causal": False}, {"position_bias": torch.ones(1, 1, 1, 40)}])
def test_other_arguments_reach_the_librarys_function(argument: dict[str, Any]) -> None:
    """The library computes in bfloat16, so its result is another one."""
    one = step(torch.bfloat16, groups=1)

    output, _ = half_attention(torch.nn.Module(), *one, scaling=0.3, **argument)

    library, _ = module.sdpa_attention_forward(torch.nn.Module(), *one, scaling=0.3, **argument)
    assert torch.equal(output, library)


def test_several_queries_per_row_reach_the_librarys_function() -> None:
    one = step(torch.bfloat16, groups=1)
    query = one.query.repeat(1, 1, 4, 1)

    output, _ = half_attention(torch.nn.Module(), query, one.keys, one.values, None, scaling=0.3)

    library, _ = module.sdpa_attention_forward(torch.nn.Module(), query, one.keys, one.values, None, scaling=0.3)
    assert torch.equal(output, library)


def test_it_serves_halves_on_cpus_where_the_library_would_compute_by_sdpa() -> None:
    model = LlamaForCausalLM(LlamaConfig(**SHAPE))

    assert [serves(model, CPU, dtype) for dtype in (*HALVES, torch.float32)] == [True, True, False]
    assert not serves(model, torch.device("cuda"), torch.bfloat16)
    with AttentionSwitch(model).to("eager"):
        assert not serves(model, CPU, torch.bfloat16)
    assert serves(model, CPU, torch.bfloat16)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_a_decode_step_computes_by_it_and_a_prompt_does_not(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE)).eval().to(dtype)
    queries: list[int] = []
    inner = module.scaled_dot_product_attention

    def counted(query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        queries.append(len(query))
        return inner(query, *args, **kwargs)

    monkeypatch.setattr(module, "scaled_dot_product_attention", counted)

    Decoder(model, CPU).check()

    two_layers_of_two_rows_of_two_heads = [4, 4]
    assert queries == ([] if dtype == torch.float32 else two_layers_of_two_rows_of_two_heads)
    assert AttentionSwitch(model).names == {"sdpa"}
