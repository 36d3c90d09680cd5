"""Copies between the host and a device without a wait for the device.

1. `upload` copies through pinned memory, and returns before the copy is done: later work on the device comes after it.
   A copy from ordinary memory would wait for all work begun before.
2. `download` begins the copies and returns a function that waits for them, and not for work begun later. It is the one
   wait of a decode step; with `Backend.overlap` it lags a step behind.
3. Where a device has no pinned memory (MPS), copies go through its unified memory, and `download`'s function waits for
   all work begun before it is called.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PINNED_DEVICE_KINDS: Final = ("cuda", "xpu")
"""Kinds of devices that copy from pinned memory; PyTorch calls ROCm's GPUs cuda."""


def upload(values: Sequence[Any] | NDArray[Any], device: torch.device) -> Tensor:
    """Return a tensor of these numbers on the device (rule 1)."""
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else torch.tensor(values)
    if device.type == "cpu":
        return tensor
    source = tensor.pin_memory() if device.type in PINNED_DEVICE_KINDS else tensor
    return source.to(device, non_blocking=True)


def download(parts: Sequence[Tensor]) -> Callable[[], list[list[Any]]]:
    """Begin to copy tensors of one device; return a function that gives their values once they are here (rule 2)."""
    if parts[0].device.type not in PINNED_DEVICE_KINDS:
        return lambda: [part.tolist() for part in parts]
    copies = [torch.empty(part.shape, dtype=part.dtype, pin_memory=True) for part in parts]
    for copy, part in zip(copies, parts, strict=True):
        copy.copy_(part, non_blocking=True)
    done = torch.Event(device=parts[0].device.type)
    done.record()

    def read() -> list[list[Any]]:
        done.synchronize()
        return [copy.tolist() for copy in copies]

    return read
