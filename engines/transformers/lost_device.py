"""Tell the errors of a device that failed: a card that fell off its bus, or a driver that gave it up. PyTorch raises
them from whatever touches the device next, and the process cannot use it any more."""

from typing import Final

import torch

_LOST_GPU_ERRORS: Final = ("CUDA error", "HIP error", "UR_RESULT_ERROR")
"""Errors of a GPU that PyTorch gives no class: XPU's, and those of builds without `torch.AcceleratorError`."""


def lost_device(error: Exception) -> str:
    """Return a sentence about the device that an error says has failed; "": it says nothing of one."""
    lost = isinstance(error, torch.AcceleratorError) or any(text in str(error) for text in _LOST_GPU_ERRORS)
    if not isinstance(error, RuntimeError) or isinstance(error, torch.OutOfMemoryError) or not lost:
        return ""
    return f"the device failed: {str(error).partition(chr(10))[0]}"
