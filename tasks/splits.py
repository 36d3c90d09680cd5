"""Train and held-out prompts that cannot overlap: two ends of one keyed permutation of the whole prompt space.

Rule: every prompt of a space has one number. A split is a range of places in the permutation, so a number is in exactly
one split, the same on every machine. The key holds the task's name and version. Prompts that teach one another's
answers, as 3 + 5 and 5 + 3 do, should share a number.
"""

import hashlib
from functools import lru_cache

from echo2.tasks.task import Split

HELDOUT_SHARE = 10
"""One number in `HELDOUT_SHARE` is held out, unless the task gives another share."""


@lru_cache(maxsize=32)
def _permutation(key: str, count: int) -> tuple[int, ...]:
    def rank(number: int) -> bytes:
        return hashlib.blake2b(number.to_bytes(8, "little"), key=key.encode(), digest_size=16).digest()

    return tuple(sorted(range(count), key=rank))


def size(count: int, split: Split, share: int = HELDOUT_SHARE) -> int:
    """Return the number of prompts of a split, out of `count` in the whole space; one in `share` is held out."""
    heldout = count // share
    return heldout if split == "heldout" else count - heldout


def number(key: str, count: int, split: Split, index: int, share: int = HELDOUT_SHARE) -> int:
    """Return the prompt's number, 0 .. count - 1. Raises IndexError for an index outside the split."""
    prompts = size(count, split, share)
    if not 0 <= index < prompts:
        raise IndexError(f"{key}: index {index} is outside {split}, which has {prompts} prompts")
    heldout = size(count, "heldout", share)
    return _permutation(key, count)[index if split == "heldout" else heldout + index]
