"""Name the command that adds an extra to this installation, with the build of PyTorch that fits this machine.

On Linux an index's own PyTorch is the one for CUDA, 5.8 GB of it. Without an NVIDIA card the build for CPUs is named
instead: AMD's and Intel's cards work by llama.cpp, which is installed with echo2 (engines/devices/gpu_remedies.py, rule
2).
"""

import sys
from collections.abc import Sequence

from echo2.engines.devices.system_gpus import SystemGpu, system_gpus
from echo2.runtime.installation import command_adding


def command_for_extra(extra: str) -> str:
    """Return the shell command that adds an extra that has PyTorch."""
    return command_adding(extra, torch_build(sys.platform, system_gpus()))


def torch_build(platform: str, gpus: Sequence[SystemGpu]) -> str:
    """Return the build as its index names it; empty: what an index gives by itself."""
    return "cpu" if platform == "linux" and not any(gpu.vendor == "nvidia" for gpu in gpus) else ""
