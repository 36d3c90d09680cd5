"""Roots and proofs of the growing Merkle tree are those of pymerkle 7, a library of another author.

pymerkle is under the GPL 3, so it is in no lock of this project: `pip install pymerkle==7.0.0` before this test.
"""

import hashlib

import pytest

from echo2.p2p.swarm import merkle
from echo2.p2p.swarm.merkle_log import MerkleLog, row, verify_consistency

pymerkle = pytest.importorskip("pymerkle", reason="pip install pymerkle==7.0.0 (GPL 3, so in no lock)")

SIZES = [*range(1, 34), 63, 64, 65, 100, 127, 128, 129]
LEAVES = [b"entry %d" % number for number in range(max(SIZES))]


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


ROWS: list[bytes] = []
for number, leaf in enumerate(LEAVES):
    ROWS.append(row(number, merkle.leaf_hash(leaf, sha256), ROWS.__getitem__, sha256))
LOG = MerkleLog(ROWS.__getitem__, sha256)
ORACLE = pymerkle.InmemoryTree(algorithm="sha256")
for leaf in LEAVES:
    ORACLE.append_entry(leaf)


@pytest.mark.parametrize("size", SIZES)
def test_roots_and_inclusion_proofs_are_the_same(size: int) -> None:
    assert LOG.root(size) == ORACLE.get_root(size)
    for index in range(size):
        proof = ORACLE.prove_inclusion(index + 1, size)
        leaf, *path = proof.path
        assert leaf == merkle.leaf_hash(LEAVES[index], sha256)
        assert LOG.inclusion(index, size) == path


@pytest.mark.parametrize("size", SIZES)
def test_each_side_proves_the_consistency_of_the_others_roots(size: int) -> None:
    for earlier in range(1, size):
        proof = ORACLE.prove_consistency(earlier, size)
        pymerkle.verify_consistency(ORACLE.get_root(earlier), LOG.root(size), proof)
        ours = LOG.consistency(earlier, size)
        assert verify_consistency(earlier, ORACLE.get_root(earlier), size, ORACLE.get_root(size), ours, sha256)
