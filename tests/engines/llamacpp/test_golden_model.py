from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from echo2.engines.engine import EngineError
from echo2.engines.llamacpp import backends, golden_model
from tests.support import llama_cpp


def test_the_golden_logits_are_those_of_transformers() -> None:
    weights, make = golden_model.GoldenWeights(), LlamaForCausalLM
    model: Any = make(LlamaConfig(**golden_model.CONFIG)).eval()
    tensors = {
        entry.name: torch.from_numpy(weights.bits(entry.name).view(np.float32)).reshape(entry.shape)
        for entry in weights.tensors
    }
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    with torch.no_grad():
        logits = model(torch.tensor([[*golden_model.PROMPT, golden_model.NEXT_TOKEN]])).logits[0, -1]
    assert logits[: len(golden_model.LOGITS)].tolist() == pytest.approx(golden_model.LOGITS, abs=2e-6)
    assert logits.std() > 0.5


def test_the_golden_weights_are_exact_in_every_type() -> None:
    weights = golden_model.GoldenWeights()
    for entry in weights.tensors:
        values = torch.from_numpy(weights.bits(entry.name).view(np.float32))
        assert torch.equal(values.to(torch.bfloat16).float(), values), entry.name
        assert torch.equal(values.to(torch.float16).float(), values), entry.name
        assert len(values.unique()) > 20, entry.name


@llama_cpp.needed
@pytest.mark.parametrize("dtype", golden_model.TOLERANCE)
def test_the_library_computes_the_golden_logits(dtype: Any) -> None:
    golden_model.check(backends.library(), llama_cpp.DEVICE, dtype, threads=1)


@llama_cpp.needed
def test_a_library_that_computes_falsely_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden_model, "LOGITS", (0.0, *golden_model.LOGITS[1:]))
    with pytest.raises(EngineError, match=r"computes falsely on .* in float32: .* off by 0\.066.*pip install mineru"):
        golden_model.check(backends.library(), llama_cpp.DEVICE, "float32", threads=1)
