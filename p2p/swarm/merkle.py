"""The project's one Merkle tree: the shape of RFC 6962 section 2.1, the hash function as an argument.

1. A leaf hashes as H(0x00 || leaf), a node as H(0x01 || left || right), so that no node passes for a leaf.
2. A tree of n leaves splits at the largest power of two below n. It is built from the bottom: neighbours are paired,
   and an odd one at the end rises unpaired.
3. The root of no leaves is H of the empty string.
4. A proof is the siblings from the leaf upwards. Its length follows from index and size alone; a proof of any other
   length is refused before any hashing.
"""

from collections.abc import Callable, Sequence

Hash = Callable[[bytes], bytes]
"""bytes -> digest, of one fixed length."""

LEAF = b"\x00"
_NODE = b"\x01"


def leaf_hash(leaf: bytes, hash: Hash) -> bytes:
    """Return the digest of `leaf` in the tree."""
    return hash(LEAF + leaf)


def root(leaves: Sequence[bytes], hash: Hash) -> bytes:
    """Return the Merkle tree hash of `leaves` in order."""
    return Tree.of([leaf_hash(leaf, hash) for leaf in leaves], hash).root


def proof(leaves: Sequence[bytes], index: int, hash: Hash) -> list[bytes]:
    """Return the audit path of leaf `index`, lowest sibling first. Raises `IndexError`."""
    return Tree.of([leaf_hash(leaf, hash) for leaf in leaves], hash).proof(index)


def verify(root: bytes, leaf: bytes, index: int, size: int, proof: Sequence[bytes], hash: Hash) -> bool:
    """Tell whether `leaf` is at `index` in the tree of `size` leaves that has this root."""
    climbed = climb(leaf_hash(leaf, hash), index, size, proof, hash)
    return climbed is not None and climbed[-1][2] == root


def depth(size: int) -> int:
    """Return the length of the longest proof in a tree of `size` leaves."""
    return max(size - 1, 0).bit_length()


def climb(
    digest: bytes, index: int, size: int, proof: Sequence[bytes], hash: Hash
) -> list[tuple[int, int, bytes]] | None:
    """Return every node that a proof states or implies, as (level, position, digest), the root last; None for a proof
    of the wrong shape. The nodes are true if and only if the last digest is the root."""
    if not 0 <= index < size or len(proof) != len(siblings(index, size)):
        return None
    if any(len(node) != len(digest) for node in proof):
        return None
    nodes, level, rest = [(0, index, digest)], 0, iter(proof)
    while size > 1:
        if index ^ 1 < size:
            sibling = next(rest)
            nodes.append((level, index ^ 1, sibling))
            digest = hash(_NODE + (sibling + digest if index & 1 else digest + sibling))
        index, size, level = index >> 1, (size + 1) >> 1, level + 1
        nodes.append((level, index, digest))
    return nodes


def siblings(index: int, size: int) -> list[tuple[int, int]]:
    """Return (level, position) of the siblings on the path up; a node that rises unpaired has none on that level."""
    if not 0 <= index < size:
        raise IndexError(f"leaf {index} of {size}")
    path = []
    level = 0
    while size > 1:
        if index ^ 1 < size:
            path.append((level, index ^ 1))
        index, size, level = index >> 1, (size + 1) >> 1, level + 1
    return path


class Tree:
    """The known nodes of a tree of `size` leaves: all of them, or those that verified proofs contain.

    `add` checks a proof and keeps its nodes if they lead to `root`; `proof` answers for every leaf added."""

    def __init__(self, root: bytes, size: int, hash: Hash) -> None:
        self.root = root
        self.size = size
        self._hash = hash
        self._nodes: dict[tuple[int, int], bytes] = {}

    @classmethod
    def of(cls, digests: Sequence[bytes], hash: Hash) -> "Tree":
        """Build the whole tree over leaf digests (see `leaf_hash`)."""
        tree = cls(hash(b""), len(digests), hash)
        level, row = 0, list(digests)
        while row:
            for position, digest in enumerate(row):
                tree._nodes[level, position] = digest
            if len(row) == 1:
                tree.root = row[0]
                break
            paired = [hash(_NODE + row[i] + row[i + 1]) for i in range(0, len(row) - 1, 2)]
            row, level = paired + row[len(paired) * 2 :], level + 1
        return tree

    def add(self, index: int, digest: bytes, proof: Sequence[bytes]) -> bool:
        """Check a proof, and keep its nodes if it leads to the root. Return whether it does."""
        nodes = climb(digest, index, self.size, proof, self._hash)
        if nodes is None or nodes[-1][2] != self.root:
            return False
        for level, position, node in nodes:
            self._nodes[level, position] = node
        return True

    def leaf(self, index: int) -> bytes:
        """Return the digest of a leaf. Raises `KeyError` for an unknown one."""
        return self._nodes[0, index]

    def proof(self, index: int) -> list[bytes]:
        """Return the audit path of a leaf. Raises `IndexError` outside the tree, `KeyError` for a leaf that was never
        added."""
        return [self._nodes[place] for place in siblings(index, self.size)]
