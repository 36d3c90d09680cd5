"""Choose codes of small numbers: Rice for geometric distributions, Elias gamma for those with a long tail. Pure.

A number is a quotient, written in unary, and a field of bits:

    Rice(k)    quotient v >> k, field the low k bits of v
    Elias(k)   quotient q = place of the highest bit of v + 2^k, less k; field the q + k bits below that one

Sources: Golomb, Run-length encodings (1966); Rice, Some practical universal noiseless coding techniques (1979); Elias,
Universal codeword sets (1975). A Rice code with k from the mean costs about 0.06 bits per number more than the entropy
of a geometric distribution.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int32]
Sums = NDArray[np.int64]
MAX_K: Final = 24
MAX_ELIAS: Final = 3


class Code(NamedTuple):
    """Rice(k), or Elias(k) where `elias`."""

    k: int
    elias: bool = False

    def quotients(self, values: Numbers) -> Numbers:
        if not self.elias:
            return values >> self.k
        # frexp is exact below 2^53; its exponent is the length in bits.
        return np.frexp((values + (1 << self.k)).astype(np.float64))[1] - np.int32(1 + self.k)

    def cost(self, values: Numbers) -> int:
        """Return the number of bits that `values` take."""
        return int(self._costs(values).sum())

    def _costs(self, values: Numbers) -> Sums:
        quotients = self.quotients(values).astype(np.int64)
        return quotients * 2 + (self.k + 1) if self.elias else quotients + (self.k + 1)


def rice(values: Numbers) -> Code:
    """Return the Rice code with the largest k such that 2^k <= 0.98 (mean + 1/2).

    No other k costs less where values fall off geometrically.
    """
    count, total = len(values), int(values.sum(dtype=np.int64))
    k = 0
    while k < MAX_K and (count << (k + 1)) * 100 <= 98 * total + 49 * count:
        k += 1
    return Code(k)


def cheapest(values: Numbers) -> tuple[Code, int]:
    """Return the cheaper of Rice's code and Elias', and its bits; among equals Rice's, then that with the smallest
    k."""
    if not len(values):
        return rice(values), 0
    codes = [rice(values), *(Code(k, elias=True) for k in range(MAX_ELIAS + 1))]
    distinct, counts = np.unique(values, return_counts=True)
    return min(((code, int(code._costs(distinct) @ counts)) for code in codes), key=lambda costed: costed[1])
