"""Change the weights that a transformers engine has loaded, in place, until it loads a version again."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Change = Callable[[NDArray[np.float32]], NDArray[np.float32]]


def altered(engine: Any, change: Change) -> None:
    """Replace each tensor of the loaded version by what `change` makes of it."""
    loaded = engine._live
    assert loaded is not None, "a version is loaded first"
    for parameter in loaded.model.parameters():
        bits = parameter.data.numpy()  # the tensor's own memory
        bits[...] = change(bits)


def to_three_bits(table: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a tensor rounded to three bits, with one scale: what a cheaper engine computes with."""
    scale = float(np.abs(table).max()) / 3 or 1.0
    return (np.round(table / scale) * scale).astype(np.float32)
