"""Codes of small numbers: Rice's, for those that fall off evenly, and Elias' gamma, for those with a long tail. Pure.

A number is a quotient, written in unary, and a field of bits:

    Rice(k)    quotient v >> k, field the low k bits of v
    Elias(k)   quotient q = place of the highest bit of v + 2^k, less k; field the q + k bits below that one

Sources: Golomb, Run-length encodings (1966); Rice, Some practical universal noiseless coding techniques (1979); Elias,
Universal codeword sets (1975). Rice code with k from the mean costs about 0.06 bits more than the entropy of a
geometric distribution.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
MAX_K: Final = 24
MAX_ELIAS: Final = 3


class Code(NamedTuple):
    k: int
    elias: bool = False

    def quotients(self, values: Numbers) -> Numbers:
        if not self.elias:
            return values >> self.k
        # frexp is exact below 2^53; its exponent is the length in bits.
        return np.frexp((values + (1 << self.k)).astype(np.float64))[1].astype(np.int64) - 1 - self.k

    def fields(self, values: Numbers) -> Numbers:
        """Of which the low bits count, `widths` of them."""
        return values + (1 << self.k) if self.elias else values

    def widths(self, quotients: Numbers) -> Numbers:
        return quotients + self.k if self.elias else np.full(len(quotients), self.k)

    def values(self, quotients: Numbers, fields: Numbers) -> Numbers:
        if self.elias:
            return (np.int64(1) << (quotients + self.k)) + fields - (1 << self.k)
        return quotients << self.k | fields

    def cost(self, values: Numbers) -> int:
        """Bits."""
        quotients = self.quotients(values)
        return int((quotients + self.widths(quotients)).sum()) + len(values)


def rice(values: Numbers) -> Code:
    """The largest k with 2^k <= 0.98 (mean + 1/2): no other costs less where values fall off geometrically."""
    count, total = len(values), int(values.sum())
    k = 0
    while k < MAX_K and (count << (k + 1)) * 100 <= 98 * total + 49 * count:
        k += 1
    return Code(k)


def cheapest(values: Numbers, cost: Callable[[Code, Numbers], int] = Code.cost) -> tuple[Code, int]:
    """Rice's code or Elias', and its bits; among equals Rice's, then the smallest k."""
    codes = [rice(values), *(Code(k, elias=True) for k in range(MAX_ELIAS + 1))]
    return min(((code, cost(code, values)) for code in codes), key=lambda costed: costed[1])
