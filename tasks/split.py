"""Train and held-out prompts that cannot overlap: two ends of one keyed permutation of the whole prompt space.

Rule: every prompt of a space has one number; a split is a range of places in the permutation, so that a number is in
exactly one split, and the same one on every machine. The key holds the task's name and version.
"""

import hashlib
from functools import lru_cache

from tasks.task import Split

HELDOUT_SHARE = 10  # one prompt in ten is held out


@lru_cache(maxsize=32)
def _permutation(key: str, count: int) -> tuple[int, ...]:
    def rank(number: int) -> bytes:
        return hashlib.blake2b(number.to_bytes(8, "little"), key=key.encode(), digest_size=16).digest()

    return tuple(sorted(range(count), key=rank))


def size(count: int, split: Split) -> int:
    """Prompts of a split, out of `count` in the whole space."""
    heldout = count // HELDOUT_SHARE
    return heldout if split == "heldout" else count - heldout


def number(key: str, count: int, split: Split, index: int) -> int:
    """The prompt's number, 0 .. count - 1. Raises IndexError for an index outside the split."""
    if not 0 <= index < size(count, split):
        raise IndexError(f"{key}: index {index} is outside {split}, which has {size(count, split)} prompts")
    heldout = size(count, "heldout")
    return _permutation(key, count)[index if split == "heldout" else heldout + index]
