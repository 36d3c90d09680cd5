from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, Qwen3Config

from echo2.engines.transformers.unfilled_model import allocate, build_unfilled

CONFIG = Qwen3Config(
    vocab_size=2000, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, tie_word_embeddings=True,
)  # fmt: skip


class WrittenOnTheHost(TorchDispatchMode):
    """Counts the bytes of the processor's memory that operations give values."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        allocates = func.overloadpacket in (torch.ops.aten.empty, torch.ops.aten.empty_like)
        if isinstance(result, torch.Tensor) and result.device.type == "cpu" and not allocates:
            self.nbytes += result.nbytes
        return result


def written_by(work: Any) -> int:
    with WrittenOnTheHost() as written:
        work()
    return written.nbytes


def test_a_model_for_a_device_writes_none_of_its_weights_on_the_host() -> None:
    """The device meta stands in for a card."""

    def build() -> None:
        allocate(build_unfilled(CONFIG, torch.float32), "meta")

    weights = sum(one.nbytes for one in AutoModelForCausalLM.from_config(CONFIG).parameters())
    assert written_by(lambda: AutoModelForCausalLM.from_config(CONFIG)) >= weights
    assert written_by(build) < 0.02 * weights


def test_parameters_that_layers_share_are_one_after_they_got_memory() -> None:
    model: Any = build_unfilled(CONFIG, torch.bfloat16)
    allocate(model, "cpu")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert {(one.device.type, one.dtype) for one in model.parameters()} == {("cpu", torch.bfloat16)}


def test_buffers_have_the_values_of_the_library() -> None:
    model = build_unfilled(CONFIG, torch.float32)
    allocate(model, "cpu")
    theirs = dict(AutoModelForCausalLM.from_config(CONFIG).named_buffers())
    ours = dict(model.named_buffers())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
