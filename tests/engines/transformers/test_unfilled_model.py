import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, Qwen3Config

from echo2.coordinator.learner import model as learner_model
from echo2.engines.transformers.unfilled_model import allocate, build_unfilled
from echo2.weights import safetensors_header
from echo2.weights.snapshot import Snapshot, header_metadata
from echo2.weights.torch_io import entries_of, load_into, published_tensors

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


QWEN3_4B = Qwen3Config(
    vocab_size=151_936, hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32,
    num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
)  # fmt: skip
MOST_HOST_BYTES = 1.5e9


class AliveOnTheHost(TorchDispatchMode):
    """Counts the most bytes of the processor's memory that tensors with values have at once. A copy to a device that
    also casts has its result on the host for a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten.copy_ and args[0].device != args[1].device:
            cast = args[1].numel() * args[0].itemsize if args[0].dtype != args[1].dtype else 0
            self.most = max(self.most, self.alive + cast)
        fresh = all(one.alias_info is None for one in func._schema.returns)
        allocates = func.overloadpacket in (torch.ops.aten.empty, torch.ops.aten.empty_like)
        if isinstance(result, torch.Tensor) and result.device.type == "cpu" and fresh and not allocates:
            self._add(result.nbytes)
            weakref.finalize(result, self._add, -result.nbytes)
        return result

    def _add(self, nbytes: int) -> None:
        self.alive += nbytes
        self.most = max(self.most, self.alive)


@pytest.fixture
def four_billion(tmp_path: Path) -> Path:
    """A folder of Qwen3-4B's shape. The file of weights is a hole: it takes no room on the disk."""
    model = build_unfilled(QWEN3_4B, torch.bfloat16)
    tensors = published_tensors(model)
    entries = entries_of(tensors, dtype=torch.bfloat16, aliases={"lm_head.weight": "model.embed_tokens.weight"})
    QWEN3_4B.save_pretrained(tmp_path)
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(safetensors_header.build(entries, header_metadata({})))
        file.truncate(file.tell() + sum(entry.nbytes for entry in entries))
    return tmp_path


def test_beside_a_devices_weights_the_host_needs_little_memory(four_billion: Path) -> None:
    with AliveOnTheHost() as engine:
        model = build_unfilled(QWEN3_4B, torch.float32)
        allocate(model, "meta")
        load_into(model, Snapshot(four_billion / "model.safetensors"))
    with AliveOnTheHost() as learner:
        learner_model._whole(four_billion, "meta", torch.float32)
    assert max(engine.most, learner.most) < MOST_HOST_BYTES


def test_the_learner_loads_what_the_library_loads(tmp_path: Path) -> None:
    AutoModelForCausalLM.from_config(CONFIG).save_pretrained(tmp_path)
    own, theirs = (learner_model.load(tmp_path, "cpu", by_library=by) for by in (False, True))
    assert type(own) is type(theirs)
    states = own.state_dict(), theirs.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
