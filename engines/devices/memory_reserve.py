"""The memory of a device that its owner keeps for other programs."""

import os
from collections.abc import MutableMapping
from typing import Final

from echo2.engines.devices.devices import value_for

RESERVE_VARIABLE: Final = "ECHO2_ENGINE_RESERVE"
"""Name of the variable with the reserves of a node's devices, in bytes, as in =1000 of all and cuda:1=2000 of one; once
the device of an engine's process is known, with its reserve as a number."""


def settle_reserve(device: str, environ: MutableMapping[str, str]) -> None:
    """Keep the reserve of this device from now on, which this process computes on."""
    reserves = dict(word.rpartition("=")[::2] for word in environ.get(RESERVE_VARIABLE, "").split())
    if (own := value_for(reserves, device)) is not None:
        environ[RESERVE_VARIABLE] = own


def less_reserve(free: int) -> int:
    """Return the free bytes of a device that an engine may take. `free`: all of them."""
    text = os.environ.get(RESERVE_VARIABLE, "")
    return max(0, free - int(text)) if text.isdecimal() else free
