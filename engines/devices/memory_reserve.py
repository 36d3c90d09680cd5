"""The memory of a device that its owner keeps for other programs."""

import os
from typing import Final

RESERVE_VARIABLE: Final = "ECHO2_ENGINE_RESERVE"
"""Name of the variable with the reserve of an engine's process, in bytes."""


def less_reserve(free: int) -> int:
    """Return the free bytes of a device that an engine may take. `free`: all of them."""
    text = os.environ.get(RESERVE_VARIABLE, "")
    return max(0, free - int(text)) if text.isdecimal() else free
