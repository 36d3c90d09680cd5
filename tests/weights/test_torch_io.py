"""Snapshots in and out of torch modules."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from echo2.weights.diff import encode
from echo2.weights.documents import DTYPES
from echo2.weights.errors import BadSnapshot
from echo2.weights.snapshot import BITS, Snapshot
from echo2.weights.torch_io import TORCH_DTYPES, load_into, patch, save_model, save_tensors, tensor_of
from tests.support.diff_changes import changed


class Tied(nn.Module):
    """An embedding tied to a head, a norm, a buffer of integers, and a weight stored transposed."""

    def __init__(self, *, tie: bool = True, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embed = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.norm = nn.LayerNorm(6)
        self.turned = nn.Parameter(torch.empty(6, 4).t())
        self.register_buffer("position", torch.arange(5))
        if tie:
            self.head.weight = self.embed.weight
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))


def bits_of(model: nn.Module) -> dict[str, list[Any]]:
    return {name: tensor.to(torch.bfloat16).tolist() for name, tensor in model.state_dict().items()}


def test_a_saved_model_is_rounded_to_nearest_even_once(tmp_path: Path) -> None:
    # Halfway between two bf16 values: to the even one. Just above: up.
    tensors = {"w": torch.tensor([0x3F808000, 0x3F818000, 0x3F808001, 0x80000000], dtype=torch.int64)}
    floats = tensors["w"].to(torch.uint32).view(torch.float32)
    snapshot = save_tensors({"w": floats}, tmp_path / "s", aliases={})
    assert [hex(bits) for bits in snapshot.bits("w")] == ["0x3f80", "0x3f82", "0x3f81", "0x8000"]


def test_tied_weights_are_stored_once_and_integers_as_they_are(tmp_path: Path) -> None:
    snapshot = save_model(Tied(), tmp_path / "s")
    assert snapshot.aliases == {"head.weight": "embed.weight"}
    assert [(entry.name, entry.dtype) for entry in snapshot.tensors] == [
        ("embed.weight", "BF16"),
        ("norm.bias", "BF16"),
        ("norm.weight", "BF16"),
        ("position", "I64"),
        ("turned", "BF16"),
    ]


def test_the_name_that_the_model_calls_the_source_is_the_stored_one(tmp_path: Path) -> None:
    model = Tied()
    model.all_tied_weights_keys = {"embed.weight": "head.weight"}
    assert save_model(model, tmp_path / "s").aliases == {"embed.weight": "head.weight"}


def test_equal_weights_that_are_not_tied_are_both_stored(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(3), "b": torch.ones(3)}
    assert len(save_tensors(tensors, tmp_path / "s", aliases={}).tensors) == 2


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_loaded_model_has_the_saved_weights(tmp_path: Path, tie: bool, dtype: torch.dtype) -> None:
    saved = Tied(seed=1)
    snapshot = save_model(saved, tmp_path / "s")
    model = Tied(tie=tie, seed=2).to(dtype)
    places = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    load_into(model, Snapshot(snapshot.path))
    assert bits_of(model) == bits_of(saved)
    assert {name: tensor.data_ptr() for name, tensor in model.state_dict().items()} == places


def test_saving_what_was_loaded_gives_the_same_root(tmp_path: Path) -> None:
    snapshot = save_model(Tied(seed=1), tmp_path / "s")
    model = Tied(seed=2)
    load_into(model, snapshot)
    assert save_model(model, tmp_path / "again").root == snapshot.root


def test_a_snapshot_without_the_alias_loads_into_a_model_that_ties(tmp_path: Path) -> None:
    """Files from hubs are like this: the tied name is simply absent."""
    state = Tied(seed=1).state_dict()
    del state["head.weight"]
    model = Tied(seed=2)
    load_into(model, save_tensors(state, tmp_path / "s", aliases={}))
    assert bits_of(model) == bits_of(Tied(seed=1))
    with pytest.raises(BadSnapshot, match=r"head\.weight"):
        load_into(Tied(tie=False), Snapshot(tmp_path / "s"))


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_patched_model_equals_one_that_was_loaded(tmp_path: Path, tie: bool, dtype: torch.dtype) -> None:
    learner = Tied(seed=1)
    old = save_model(learner, tmp_path / "old")
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter[::2] *= 1.02
    new = save_model(learner, tmp_path / "new")
    payload = encode(old, new, tmp_path / "p")
    live = Tied(tie=tie, seed=3).to(dtype)
    load_into(live, old)
    before = [parameter.data_ptr() for parameter in live.parameters()]
    written = patch(live, changed(old, payload.path), new.aliases)
    assert written == sum(int((old.bits(e.name) != new.bits(e.name)).sum()) for e in old.tensors) > 0
    assert bits_of(live) == bits_of(learner)
    assert [parameter.data_ptr() for parameter in live.parameters()] == before


def test_nan_payloads_and_signed_zeros_reach_a_bf16_model_bit_by_bit(tmp_path: Path) -> None:
    patterns = torch.arange(1 << 16, dtype=torch.int64).to(torch.uint16).view(torch.bfloat16)
    old = save_tensors({"weight": torch.zeros(1 << 16)}, tmp_path / "old", aliases={})
    new = save_tensors({"weight": patterns}, tmp_path / "new", aliases={})
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(1 << 16, dtype=torch.bfloat16))
    patch(model, changed(old, encode(old, new, tmp_path / "p").path), {})
    assert (model.weight.detach().view(torch.uint16).numpy() == new.bits("weight")).all()
    with torch.no_grad():
        model.weight.zero_()
    load_into(model, new)
    assert (model.weight.detach().view(torch.uint16).numpy() == np.arange(1 << 16)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_of_a_snapshot_is_read_by_torch(dtype: str) -> None:
    torch_dtype = TORCH_DTYPES[dtype]
    bits = np.array([0, 1, 1, 0], BITS[torch_dtype.itemsize])
    tensor = tensor_of(bits, dtype)
    assert (tensor.dtype, tensor.shape) == (torch_dtype, (4,))
    assert tensor.view(torch.uint8).numpy().tobytes() == bits.tobytes()


WRONG: dict[str, dict[str, torch.Tensor]] = {
    "a tensor is missing": {"weight": torch.zeros(2, 3)},
    "a tensor is too many": {"weight": torch.zeros(2, 3), "bias": torch.zeros(2), "more": torch.zeros(1)},
    "a tensor has another name": {"weight": torch.zeros(2, 3), "offset": torch.zeros(2)},
    "a tensor has another shape": {"weight": torch.zeros(3, 2), "bias": torch.zeros(2)},
}


@pytest.mark.parametrize("case", WRONG)
def test_a_snapshot_of_another_model_is_refused_before_anything_is_written(tmp_path: Path, case: str) -> None:
    model = nn.Linear(3, 2)
    before = bits_of(model)
    snapshot = save_tensors(WRONG[case], tmp_path / "s", aliases={})
    with pytest.raises(BadSnapshot):
        load_into(model, snapshot)
    assert bits_of(model) == before


def test_a_complex_tensor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSnapshot, match="complex"):
        save_tensors({"w": torch.zeros(2, dtype=torch.complex64)}, tmp_path / "s", aliases={})
