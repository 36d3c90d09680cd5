"""The numbers of the protocol that a run needs and that a node speaks, and the release of this build.

Rules
1. Number 1 is that of all formats and signed bytes (p2p/envelope.py).
2. Number 2 has the same formats. Its nodes also end a turn at each of `TaskReference.other_ends`, where a node of
   number 1 would sample on. A run with such tokens speaks number 2 alone, so that a node of number 1 is refused at its
   hello; any other run speaks number 1.
3. Number 3 has the same formats too. Its nodes choose tokens at `RunSpec.temperature`. A run with another temperature
   than 1 speaks number 3 alone.
"""

from collections.abc import Sequence
from typing import Final

from echo2.runtime.declared_requirements import version_of

OLDEST_NUMBER: Final = 1
SEVERAL_ENDS: Final = 2
TEMPERED: Final = 3
SPOKEN_NUMBERS: Final = (OLDEST_NUMBER, TEMPERED)
"""Lowest and highest number that this build's nodes speak."""


def number_range(other_ends: Sequence[int], *, tempered: bool = False) -> tuple[int, int]:
    """Return the lowest and highest number of a run. `other_ends`: those of its tasks. `tempered`: its temperature is
    not 1."""
    number = TEMPERED if tempered else SEVERAL_ENDS if other_ends else OLDEST_NUMBER
    return number, number


def spoken(low: int, high: int) -> str:
    """Return a range of protocol numbers in words."""
    return f"protocol {low}" if low == high else f"protocol {low} to {high}"


def build() -> str:
    """Return the release of echo2 and the numbers that it speaks, as a line for people."""
    return f"echo2 {version_of('echo2') or 'from source, not installed'}, {spoken(*SPOKEN_NUMBERS)}"
