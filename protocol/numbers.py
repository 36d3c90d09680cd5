"""The numbers of the protocol that a run needs and that a node speaks, and the release of this build.

Rules
1. Number 1 is that of all formats and signed bytes (p2p/envelope.py).
2. Number 2 has the same formats. Its nodes also end a turn at each of `TaskReference.other_ends`, where a node of
   number 1 would sample on. A run with such tokens speaks number 2 alone, so that a node of number 1 is refused at its
   hello; any other run speaks number 1.
"""

import importlib.metadata
from collections.abc import Sequence
from typing import Final

OLDEST_NUMBER: Final = 1
SEVERAL_ENDS: Final = 2
SPOKEN_NUMBERS: Final = (OLDEST_NUMBER, SEVERAL_ENDS)
"""Lowest and highest number that this build's nodes speak."""


def number_range(other_ends: Sequence[int]) -> tuple[int, int]:
    """Return the lowest and highest number of a run. `other_ends`: those of its tasks."""
    return (SEVERAL_ENDS, SEVERAL_ENDS) if other_ends else (OLDEST_NUMBER, OLDEST_NUMBER)


def spoken(low: int, high: int) -> str:
    """Return a range of protocol numbers in words."""
    return f"protocol {low}" if low == high else f"protocol {low} to {high}"


def build() -> str:
    """Return the release of echo2 and the numbers that it speaks, as a line for people."""
    try:
        release = importlib.metadata.version("echo2")
    except importlib.metadata.PackageNotFoundError:
        release = "from source, not installed"
    return f"echo2 {release}, {spoken(*SPOKEN_NUMBERS)}"
