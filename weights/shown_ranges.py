"""Show that one has the weights of a version: the hash of some of their bytes, chosen by a lease. Pure.

1. The data of a snapshot (weights/snapshot.py) is the same in each file of a version. `RANGES` ranges of it, each of
   `RANGE_BYTES` bytes (or all of it, if it has fewer), are hashed in their order, after the lease's id.
2. The places follow from the lease's id alone, which nobody knows before the lease is given. So an answer cannot be
   made before, and costs as many bytes of reading on both sides: half a MiB, whatever the model.
3. It shows that the bytes were at hand, not that the tokens were computed with them.
"""

from pathlib import Path
from typing import Final

import numpy as np
from blake3 import blake3

from echo2.weights.logged_weights import present_file
from echo2.weights.snapshot import Snapshot

RANGES: Final = 8
RANGE_BYTES: Final = 64 << 10
_DOMAIN: Final = b"echo2/shown-ranges/1\0"


def places(lease: bytes, nbytes: int) -> list[int]:
    """Return the first byte of each range, in data of `nbytes` bytes. `lease`: its id."""
    chosen = np.frombuffer(blake3(_DOMAIN + lease).digest(length=8 * RANGES), "<u8")
    return [int(one) % (max(0, nbytes - RANGE_BYTES) + 1) for one in chosen]


def shown_ranges(snapshot: Snapshot, lease: bytes) -> bytes:
    """Return the hash that answers a lease."""
    hasher = blake3(_DOMAIN + lease)
    length = min(RANGE_BYTES, snapshot.nbytes)
    for place in places(lease, snapshot.nbytes):
        hasher.update(snapshot.span(place, length, 1).tobytes())
    return hasher.digest()


def shown_of(weights: Path, lease: bytes) -> bytes:
    """Return the hash that answers a lease, by a snapshot file or a folder of weights.logged_weights that no one steps
    meanwhile. Raises `BadSnapshot`, `FileNotFoundError`."""
    return shown_ranges(Snapshot(present_file(weights)), lease)
