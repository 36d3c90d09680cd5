"""Roundings of other kernels: the same function, with errors of the same size."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.plays.direct import generate
from echo2.coordinator.verification.mixed_machines import OTHER_KERNELS
from echo2.engines.engine import Dtype
from echo2.engines.transformers.engine import TransformersEngine
from echo2.engines.transformers.roundings import (
    EAGER_ATTENTION,
    FUSED_NORMS,
    ROUNDING_VARIABLE,
    SPLIT_SUMS,
    FusedNorm,
    SplitLinear,
    round_as_asked,
)
from tests.support import tiny_model
from tests.support.tiny_model import job

ALL = (SPLIT_SUMS, EAGER_ATTENTION, FUSED_NORMS)
IDS = torch.arange(40)[None] % 37


def make(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = Qwen3Config(
        vocab_size=64, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        intermediate_size=128, max_position_embeddings=64, tie_word_embeddings=True, initializer_range=0.15,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).eval().requires_grad_(False)
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.copy_(0.5 + torch.rand(weight.shape))
    return model.to(dtype)


def logits(dtype: torch.dtype, *asked: str) -> Tensor:
    model = make(dtype)
    round_as_asked(model, {ROUNDING_VARIABLE: ",".join(asked)})
    found: Tensor = model(IDS).logits
    return found.float()


@pytest.mark.parametrize("asked", [*((one,) for one in ALL), ALL])
def test_the_function_is_the_same_and_its_rounding_another_of_the_same_size(asked: tuple[str, ...]) -> None:
    exact = logits(torch.float32)
    torch.testing.assert_close(logits(torch.float32, *asked), exact, rtol=1e-4, atol=1e-4)
    plain, other = (logits(torch.bfloat16, *names) - exact for names in ((), asked))
    assert not torch.equal(plain, other)
    assert 0.5 < float(other.std() / plain.std()) < 1.7


def test_without_the_variable_nothing_changes() -> None:
    model = make()
    before = [type(module) for module in model.modules()]
    round_as_asked(model, {})
    assert [type(module) for module in model.modules()] == before


def test_parameters_are_shared_and_the_head_stays_whole() -> None:
    model = make()
    names, places = list(model.state_dict()), [tensor.data_ptr() for tensor in model.state_dict().values()]
    round_as_asked(model, {ROUNDING_VARIABLE: ",".join(ALL)})
    assert list(model.state_dict()) == names
    assert [tensor.data_ptr() for tensor in model.state_dict().values()] == places
    assert type(model.lm_head) is nn.Linear
    kinds = [type(one) for one in model.modules()]
    assert (kinds.count(SplitLinear), kinds.count(FusedNorm)) == (3 * 7, 3 * 4 + 1)
    assert model.config._attn_implementation == "eager"


def test_the_machines_of_a_calibration_ask_for_these() -> None:
    assert [dict(one.env) for one in OTHER_KERNELS.values()] == [{ROUNDING_VARIABLE: name} for name in ALL]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("asked", ALL)
def test_an_engine_generates_by_it_what_the_scorer_takes_for_honest(
    asked: str, dtype: Dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk = tiny_model.make(tmp_path)
    exact = TransformersEngine("cpu", "float32")
    exact.load(on_disk.folder, on_disk.snapshot)
    monkeypatch.setenv(ROUNDING_VARIABLE, asked)
    engine = TransformersEngine("cpu", dtype)
    engine.load(on_disk.folder, on_disk.snapshot)
    samples = generate(engine, job(samples=16))
    scores = exact.score(job(samples=16), samples)
    claimed, scored = (np.concatenate([one.logprobs for one in of]) for of in (samples, scores))
    assert 0 < np.abs(claimed - scored).mean() < 0.05
