"""A Merkle tree that grows by one leaf at a time: roots and proofs of any size it has had (RFC 9162, section 2.1).

Rules
1. The tree has the shape of p2p/swarm/merkle.py. A subtree over 2^k leaves is complete once its last leaf is there, and
   never changes again.
2. A leaf is stored with the digests of the subtrees that it completes, its own first: the `row` of the leaf. So nothing
   that was stored is written again, and an append reads one earlier row on the average.
3. Roots and proofs of a size up to the present one are computed from O(log n) rows.
4. A consistency proof shows that the tree of one size begins with all leaves of the tree of a smaller size.
"""

import functools
from collections.abc import Callable, Sequence

from echo2.p2p.swarm.merkle import Hash, leaf_hash, siblings

_NODE = b"\x01"

Rows = Callable[[int], bytes]
"""Index of a leaf -> its row: digests of one length, joined (rule 2)."""


def row(index: int, leaf: bytes, rows: Rows, hash: Hash) -> bytes:
    """Return the row of leaf `index`. `leaf`: its digest (`merkle.leaf_hash`). `rows`: rows of the leaves before it."""
    digests, digest, level = [leaf], leaf, 0
    while index >> level & 1:
        left = _stored_digest(level, (index >> level) - 1, len(leaf), rows)
        digest = hash(_NODE + left + digest)
        digests.append(digest)
        level += 1
    return b"".join(digests)


class MerkleLog:
    """The tree over stored rows."""

    def __init__(self, rows: Rows, hash: Hash) -> None:
        self._rows = rows
        self._hash = hash
        self._width = len(hash(b""))

    def root(self, size: int) -> bytes:
        """Return the root of the first `size` leaves."""
        return self._range(0, size) if size else self._hash(b"")

    def subtree(self, level: int, position: int) -> bytes:
        """Return the digest of complete subtree `position` of those over 2^`level` leaves. It reads one row."""
        return _stored_digest(level, position, self._width, self._rows)

    def inclusion(self, index: int, size: int) -> list[bytes]:
        """Return the audit path of leaf `index` in the tree of the first `size` leaves, lowest sibling first. Raises
        `IndexError`."""
        path = siblings(index, size)
        return [self._range(at << level, min((at + 1) << level, size)) for level, at in path]

    def consistency(self, earlier: int, size: int) -> list[bytes]:
        """Return the proof that the tree of `size` leaves begins with that of `earlier` ones (rule 4); it is empty for
        0 and for `size`. Raises `IndexError` unless 0 <= earlier <= size."""
        if not 0 <= earlier <= size:
            raise IndexError(f"{earlier} of {size} leaves")
        if earlier == 0:
            return []
        proof: list[bytes] = []
        start, end, whole = 0, size, True
        while earlier != end:
            middle = start + _split(end - start)
            if earlier <= middle:
                proof.append(self._range(middle, end))
                end = middle
            else:
                proof.append(self._range(start, middle))
                start, whole = middle, False
        return [*([] if whole else [self._range(start, end)]), *reversed(proof)]

    def _range(self, start: int, end: int) -> bytes:
        """Return the root over the leaves from `start` to before `end`. `start` is a multiple of the smallest power of
        two that is at least their number."""
        length = end - start
        if length & (length - 1) == 0:
            level = length.bit_length() - 1
            return _stored_digest(level, start >> level, self._width, self._rows)
        middle = start + _split(length)
        return self._hash(_NODE + self._range(start, middle) + self._range(middle, end))


class GrowingRoot:
    """The tree over leaves of which none is kept: the digests of its complete subtrees alone, the largest first."""

    def __init__(self, hash: Hash) -> None:
        self._hash, self._size, self._subtrees = hash, 0, list[bytes]()

    def append(self, leaf: bytes) -> None:
        """Add a leaf. It completes as many subtrees as its index has ones at the end, in binary."""
        digest, index = leaf_hash(leaf, self._hash), self._size
        while index & 1:
            digest = self._hash(_NODE + self._subtrees.pop() + digest)
            index >>= 1
        self._subtrees.append(digest)
        self._size += 1

    @property
    def root(self) -> bytes:
        """The root over the leaves so far."""
        if not self._subtrees:
            return self._hash(b"")
        return functools.reduce(lambda right, left: self._hash(_NODE + left + right), reversed(self._subtrees))


def verify_consistency(
    earlier: int, earlier_root: bytes, size: int, root: bytes, proof: Sequence[bytes], hash: Hash
) -> bool:
    """Tell whether a proof shows that the tree (`size`, `root`) begins with the tree (`earlier`, `earlier_root`):
    RFC 9162, section 2.1.4.2. The tree of no leaves has no later one: each would begin with it."""
    if earlier == size:
        return not proof and earlier_root == root and (size > 0 or root == hash(b""))
    if not 0 < earlier < size or any(len(digest) != len(root) for digest in proof):
        return False
    path = [earlier_root, *proof] if earlier & (earlier - 1) == 0 else list(proof)
    if not path:
        return False
    small, large = earlier - 1, size - 1
    while small & 1:
        small, large = small >> 1, large >> 1
    old = new = path[0]
    for digest in path[1:]:
        if large == 0:
            return False
        if small & 1 or small == large:
            old, new = hash(_NODE + digest + old), hash(_NODE + digest + new)
            while small and not small & 1:
                small, large = small >> 1, large >> 1
        else:
            new = hash(_NODE + new + digest)
        small, large = small >> 1, large >> 1
    return large == 0 and old == earlier_root and new == root


def _stored_digest(level: int, position: int, width: int, rows: Rows) -> bytes:
    """Return the digest of a complete subtree: it stands in the row of its last leaf."""
    return rows(((position + 1) << level) - 1)[width * level : width * (level + 1)]


def _split(length: int) -> int:
    """Return the largest power of two below `length`."""
    return 1 << ((length - 1).bit_length() - 1)
