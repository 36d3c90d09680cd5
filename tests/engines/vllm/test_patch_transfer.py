"""The backend of vLLM's weight transfer, over a model of two fused tensors with a loader like vLLM's own."""

import base64
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.support import vllm_models

pytestmark = vllm_models.INTERFACES


class Fused(nn.Module):
    """`both` holds q over k. `packed`: whether it computes with a copy that its loader does not write."""

    def __init__(self, packed: bool = False) -> None:
        super().__init__()
        self.both = nn.Parameter(torch.zeros(4, 3), requires_grad=False)
        self.norm = nn.Parameter(torch.ones(3), requires_grad=False)
        self.packed = packed

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> set[str]:
        places = {"q": self.both.data[:2], "k": self.both.data[2:], "norm": self.norm.data}
        for name, tensor in weights:
            (places[name].clone() if self.packed else places[name]).copy_(tensor)
        return {"norm" if name == "norm" else "both" for name, _ in weights}


def transfer_to(model: nn.Module) -> Any:
    from echo2.engines.vllm.patch_transfer import PatchTransfer

    config = SimpleNamespace(parallel_config=None, model_config=None)
    return PatchTransfer(SimpleNamespace(backend="echo2"), config, torch.device("cpu"), model)


def carried(name: str, values: list[float], index: list[int] | None = None, shape: tuple[int, ...] = (2, 3)) -> Any:
    positions = None if index is None else base64.b64encode(np.array(index, "<i8").tobytes()).decode()
    bits = torch.tensor(values, dtype=torch.bfloat16).view(torch.int16).numpy().tobytes()
    return {"name": name, "dtype": "BF16", "shape": list(shape), "values": base64.b64encode(bits).decode(),
            "index": positions}  # fmt: skip


WHOLE = [carried("q", [1, 2, 3, 4, 5, 6]), carried("k", [7, 8, 9, 10, 11, 12]), carried("norm", [1, 2, 3], shape=(3,))]


def test_whole_tensors_and_then_single_elements_reach_the_fused_tensor() -> None:
    model = Fused()
    transfer = transfer_to(model)
    transfer.start_weight_update()
    transfer.update_weights({"patches": WHOLE[:1]})
    transfer.update_weights({"patches": WHOLE[1:], "whole": True})
    transfer.finish_weight_update()
    assert model.both.flatten().tolist() == [float(number) for number in range(1, 13)]
    transfer.update_weights({"patches": [carried("k", [0.5, -0.0], index=[1, 5])]})
    transfer.finish_weight_update()
    assert model.both.flatten().tolist() == [1, 2, 3, 4, 5, 6, 7, 0.5, 9, 10, 11, -0.0]


def test_a_whole_update_that_leaves_a_parameter_out_is_refused() -> None:
    transfer = transfer_to(Fused())
    transfer.update_weights({"patches": WHOLE})
    transfer.start_weight_update()
    transfer.update_weights({"patches": WHOLE[:2]})
    with pytest.raises(ValueError, match="the weights lack norm, and 0 other parameters"):
        transfer.update_weights({"whole": True})


def test_weights_that_the_model_does_not_compute_with_are_refused() -> None:
    from echo2.engines.vllm.patch_transfer import WeightsElsewhere

    with pytest.raises(WeightsElsewhere, match="keeps the weights of this model in another form"):
        transfer_to(Fused(packed=True)).update_weights({"patches": WHOLE})


def test_weights_that_are_not_a_number_arrive() -> None:
    model = Fused()
    transfer_to(model).update_weights({"patches": [carried("norm", [1, float("nan"), 3], shape=(3,))]})
    assert model.norm.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize(
    "patch",
    [
        carried("q", [1.0], index=[6]), carried("q", [1.0], index=[-1]), carried("q", [1.0, 2.0], index=[1]),
        carried("q", [1.0]), carried("q", [float("nan")], index=[1]), {**WHOLE[0], "values": "no base64"},
        {**WHOLE[0], "dtype": "BF17"},
    ],
)  # fmt: skip
def test_a_patch_that_does_not_fit_its_tensor_is_refused(patch: Any) -> None:
    with pytest.raises((ValueError, KeyError)):
        transfer_to(Fused()).update_weights({"patches": [patch]})


def test_it_is_registered_once() -> None:
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    from echo2.engines.vllm import patch_transfer

    patch_transfer.register()
    patch_transfer.register()
    assert WeightTransferEngineFactory._registry["echo2"]() is patch_transfer.PatchTransfer
