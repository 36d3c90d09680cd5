"""Write weights into a model that vLLM runs: a backend of its weight transfer, which works in vLLM's worker process.

Rules
1. Patches are in the coordinates of the model's checkpoint (engines.batch.checkpoint_patches); vLLM's own loader of the
   model maps them to its fused and divided tensors. They are written in place: captured graphs stay valid.
2. A tensor that is sent whole is compared with what the model then has. Where vLLM keeps a rearranged copy of a
   layer's weights, a later change could not reach it, so such a model is refused.
3. An update that says at its end that it was whole must have set every parameter.
4. `keep_plain_weights` stops vLLM from packing weights on a CPU. Call it before the model is loaded.
"""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.checkpoint_weight_patch import (
    CheckpointWeightPatch,
    load_checkpoint_weight_patches,
)

from echo2.weights.torch_io import TORCH_DTYPES

BACKEND: Final = "echo2"


class WeightsElsewhere(RuntimeError):
    """vLLM does not compute with the tensors that its loader writes."""


@dataclass
class PatchTransferInit(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing is needed to begin."""


@dataclass
class PatchTransferUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """`patches`: each with `name`, `dtype` (safetensors'), `shape`, `values` (the bits, little-endian) and `index`
    (int64 flat positions, little-endian; None: the whole tensor). Bytes, or base64 where JSON carries them. `whole`:
    with these, every parameter was sent since the update began."""

    patches: list[dict[str, Any]] = field(default_factory=list)
    whole: bool = False


class PatchTransfer(WeightTransferEngine):  # type: ignore[misc]
    """See the rules."""

    init_info_cls = PatchTransferInit
    update_info_cls = PatchTransferUpdate
    supports_draft_weight_update = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._written: set[str] = set()
        """Parameters that were set since the update began."""

    def init_transfer_engine(self, init_info: PatchTransferInit) -> None:
        """Do nothing: there is no connection of its own."""

    def start_weight_update(self) -> None:
        """Begin to count what is written."""
        self._written = set()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Write patches."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: PatchTransferUpdate) -> None:
        """Write patches; compare those of whole tensors (rule 2), and look for lacking ones at the end of a whole
        update (rule 3). Raises ValueError, WeightsElsewhere."""
        patches = [_patch(one, self.device) for one in update_info.patches]
        self._written |= load_checkpoint_weight_patches(self.model, patches, validate_unique_indices=False)
        if patches and patches[0].indices is None:
            _compare(self.model, [(one.name, one.values.view(one.shape)) for one in patches])
        lacking = sorted(name for name, _ in self.model.named_parameters() if name not in self._written)
        if update_info.whole and lacking:
            raise ValueError(f"the weights lack {lacking[0]}, and {len(lacking) - 1} other parameters of the model")

    def finish_weight_update(self) -> None:
        """Do nothing: the weights are in place."""

    def shutdown(self) -> None:
        """Do nothing: it holds no resources."""


def register() -> None:
    """Make the backend known to vLLM in this process."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, PatchTransfer)


def keep_plain_weights() -> None:
    """Let linear layers on a CPU use their weights as they are (rule 4)."""
    from vllm import _custom_ops
    from vllm.model_executor.layers import utils

    _custom_ops._supports_onednn = False
    utils.check_cpu_sgl_kernel = lambda *sizes: False


def _patch(patch: dict[str, Any], device: torch.device) -> CheckpointWeightPatch:
    dtype = TORCH_DTYPES[patch["dtype"]]
    values = torch.frombuffer(bytearray(_bytes(patch["values"])), dtype=dtype).to(device)
    index = patch["index"]
    if index is not None:
        index = torch.from_numpy(np.frombuffer(_bytes(index), "<i8").copy()).to(device)
    return CheckpointWeightPatch(patch["name"], tuple(patch["shape"]), dtype, values, index)


def _bytes(data: bytes | str) -> bytes:
    return base64.b64decode(data, validate=True) if isinstance(data, str) else data


@torch.no_grad()
def _compare(model: Any, weights: list[tuple[str, Tensor]]) -> None:
    """Let the model's loader run again, comparing where it would write. Raises WeightsElsewhere."""
    with _comparing():
        model.load_weights(weights)


@contextmanager
def _comparing() -> Iterator[None]:
    original = Tensor.copy_

    def compare(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        source = source.to(target.device, target.dtype)
        same = target.shape == source.shape and bool(((target == source) | (target.isnan() & source.isnan())).all())
        if not same:
            raise WeightsElsewhere("vLLM keeps the weights of this model in another form than it loads them")
        return target

    Tensor.copy_ = compare  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        Tensor.copy_ = original  # type: ignore[method-assign]
