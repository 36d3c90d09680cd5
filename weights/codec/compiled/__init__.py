"""The loops of `weights.codec.exponent_classes` compiled by numba: what `weights.codec.rank_select` and
`weights.codec.bitstream` do, about 5 times as fast.

Importing this takes half a second, and the first call of each kernel on a machine some more; hence only `codec` imports
it, and only for frames that are worth it. Kernels let go of the interpreter's lock, and are kept on disk where numba
finds a folder to write to.
"""

from typing import Final

from weights.codec.compiled import bits, scan
from weights.codec.exponent_classes import Loops

LOOPS: Final = Loops(scan.listed, scan.merged, scan.write, bits.CompiledBitWriter, bits.CompiledBitReader, bits.cost)
