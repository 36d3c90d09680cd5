"""Meaning of a refused request for a lease: how long to wait, and whether a newer version is out. Pure."""

from collections.abc import Sequence
from typing import Final

from echo2.engines.process.versioned import LoadedVersion
from echo2.protocol import refusals
from echo2.protocol.requests import Refusal
from echo2.protocol.versions import Head

MOST_WAIT: Final = 1800.0
"""Longest wait after a refusal, seconds: no `retry_after` can stop a node for good."""
LEAST_WAIT: Final = 0.1
"""Shortest wait after a refusal, seconds: no `retry_after` keeps this node asking without a pause."""
DEFAULT_RETRY_SECONDS: Final = 30.0
"""Seconds to wait after a refusal that names no time."""


def retry_seconds(refusal: Refusal) -> float:
    """Return the seconds for which a node requests nothing."""
    wait = DEFAULT_RETRY_SECONDS if refusal.retry_after is None else refusal.retry_after / 1000
    return min(MOST_WAIT, max(LEAST_WAIT, wait))


def is_newer_named(refused: Sequence[Refusal], current: LoadedVersion | None, newest: Head | None) -> bool:
    """Tell whether the last refusal names a version that this node has not heard of: gossip does not reach it then.
    `current`: the loaded version. `newest`: the newest Head heard."""
    if current is None or newest is None or not refused or refusals.then(refused[-1]) != "other version":
        return False
    return (newest.era, newest.version) == (current.era, current.version)
