"""Divide tensors among ranks by their rows. Pure.

Rule: a tensor of d rows is cut into pieces of ceil(d / n) rows, one per rank in order; the last ranks may have fewer
rows, or none. So PyTorch's FSDP2 cuts (`torch.chunk`), and a piece is one range of the tensor's bytes.
"""

from typing import NamedTuple


class RowRange(NamedTuple):
    """Rows `start` to `stop`, which may be none."""

    start: int
    stop: int


def rows_of_rank(rows: int, rank: int, ranks: int) -> RowRange:
    """Return the rows of one rank. `rows`: rows of the tensor."""
    size = -(-rows // ranks)
    return RowRange(min(rank * size, rows), min((rank + 1) * size, rows))
