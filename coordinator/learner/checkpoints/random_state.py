"""The state of PyTorch's random generators, as tensors of a checkpoint."""

from collections.abc import Mapping

import torch
from torch import Tensor

_CPU, _CUDA = "random.cpu", "random.cuda"


def random_tensors() -> dict[str, Tensor]:
    """Return the present state by name."""
    states = {_CPU: torch.get_rng_state()}
    return states | ({_CUDA: torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def restore_random(tensors: Mapping[str, Tensor]) -> None:
    """Restore the state that `random_tensors` returned."""
    torch.set_rng_state(tensors[_CPU])
    if _CUDA in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors[_CUDA])
