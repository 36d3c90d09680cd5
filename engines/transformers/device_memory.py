"""Say how much memory a device of PyTorch has left, and free what PyTorch keeps for reuse.

CUDA (with it ROCm) and XPU are asked by PyTorch's module of the device, MPS by its own names. On a CPU it is the
machine's memory.
"""

import torch

from echo2.engines.devices.memory_reserve import less_reserve
from echo2.runtime.host_memory import available_memory


def free_memory(device: torch.device) -> int:
    """Return the free memory of a device, bytes, without the owner's reserve; on a GPU with what PyTorch keeps for
    reuse."""
    return less_reserve(_all_free(device))


def _all_free(device: torch.device) -> int:
    if device.type in ("cuda", "xpu"):
        module = torch.get_device_module(device)
        free, _ = module.mem_get_info(device)
        return int(free) + int(module.memory_reserved(device)) - int(module.memory_allocated(device))
    if device.type == "mps":
        return max(0, torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    return available_memory()


def release(device: torch.device) -> None:
    """Give memory that PyTorch keeps for reuse back to the device."""
    if device.type in ("cuda", "xpu"):
        torch.get_device_module(device).empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
