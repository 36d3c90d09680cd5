"""The work that the first hello of a new key shows (hashcash). Pure; the hour is that of the coordinator's clock.

Rules
1. The work is 8 bytes for which SHA-256(run || node's key || hour || work) begins with `BITS` zero bits. `hour`: hours
   since the Unix epoch, 8 bytes, big-endian; the run's id and the key have 32 bytes each.
2. Work of this hour or of the last is valid, for one key and one run. It may be computed ahead for an hour to come:
   what a key costs is the same then, and many may come at once. So nothing else may rest on the work of a hello.
3. A key whose hello the coordinator stores already shows none. So an honest node computes some 2^20 hashes, about a
   second, once.
4. The coordinator checks it before it writes anything and before it verifies the node's record: two hashes at most.
"""

import hashlib
import itertools
from collections.abc import Callable
from typing import Final

BITS = 20
"""Of zeros; tests compute with fewer."""
SIZE: Final = 8
"""Bytes of the work."""
_HOUR: Final = 3_600_000
_AT_ONCE: Final = 4096
"""Hashes between two questions whether to stop."""


def hour_of(now: int) -> int:
    """Return the hour of a time in milliseconds."""
    return now // _HOUR


def is_shown(run: bytes, node: bytes, work: bytes | None, now: int) -> bool:
    """Tell whether a hello shows the work that is due at `now`, ms, on the coordinator's clock (rules 1 and 2)."""
    hour = hour_of(now)
    return work is not None and len(work) == SIZE and any(_is_valid(run, node, one, work) for one in (hour, hour - 1))


def compute(run: bytes, node: bytes, hour: int, stopped: Callable[[], bool] = lambda: False) -> bytes | None:
    """Compute the work of a key for an hour; None if `stopped` told to stop. Takes some 2^`BITS` hashes: call it in a
    thread."""
    begun = hashlib.sha256(run + node + hour.to_bytes(8))
    for first in itertools.count(0, _AT_ONCE):
        if stopped():
            return None
        for number in range(first, first + _AT_ONCE):
            tried = begun.copy()
            tried.update(work := number.to_bytes(SIZE))
            if _begins_with_zeros(tried.digest()):
                return work
    raise AssertionError("unreachable")


def _is_valid(run: bytes, node: bytes, hour: int, work: bytes) -> bool:
    return hour >= 0 and _begins_with_zeros(hashlib.sha256(run + node + hour.to_bytes(8) + work).digest())


def _begins_with_zeros(digest: bytes) -> bool:
    return int.from_bytes(digest[:4]) < 1 << (32 - BITS)
