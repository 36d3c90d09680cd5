"""The Merkle tree: RFC 6962's own vectors, every proof of every small tree, and proofs that must be refused."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.p2p.swarm import merkle
from echo2.p2p.swarm.manifest import digest
from tests.support import paths

VECTORS = json.loads((paths.VECTORS / "merkle.json").read_text())


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


HASHES = {"sha256": sha256, "blake3": digest}
LEAVES = [bytes.fromhex(leaf) for leaf in VECTORS["leaves"]]


@pytest.mark.parametrize("name", HASHES)
def test_roots_match_the_golden_vectors(name):
    for size, root in enumerate(VECTORS["roots"][name]):
        assert merkle.root(LEAVES[:size], HASHES[name]).hex() == root


def test_proofs_are_those_of_rfc_6962():
    for vector in VECTORS["proofs"]:
        proof = merkle.proof(LEAVES[: vector["size"]], vector["index"], sha256)
        assert [node.hex() for node in proof] == vector["proof"]


@pytest.mark.parametrize("size", range(1, 34))
def test_every_leaf_of_every_small_tree_is_proved_and_no_other_bytes_are(size):
    leaves = [b"leaf %d" % number for number in range(size)]
    root = merkle.root(leaves, sha256)
    for index, leaf in enumerate(leaves):
        proof = merkle.proof(leaves, index, sha256)
        assert len(proof) == len(merkle.siblings(index, size)) <= merkle.depth(size)
        assert merkle.verify(root, leaf, index, size, proof, sha256)
        assert not merkle.verify(root, leaf + b"x", index, size, proof, sha256)
        for other in range(size):
            if other != index:
                assert not merkle.verify(root, leaf, other, size, proof, sha256)


FOUR = [b"a", b"b", b"c", b"d"]
PROOF = merkle.proof(FOUR, 1, sha256)
REFUSED = {
    "an index beyond the end": (4, 4, PROOF),
    "a negative index": (-1, 4, PROOF),
    "an empty tree": (0, 0, []),
    "a proof too short": (1, 4, PROOF[:1]),
    "a proof too long": (1, 4, [*PROOF, PROOF[0]]),
    "a sibling cut short": (1, 4, [PROOF[0][:31], PROOF[1]]),
    "a sibling too long": (1, 4, [PROOF[0] + b"\x00", PROOF[1]]),
    "siblings in the wrong order": (1, 4, PROOF[::-1]),
    "another size with a proof as long": (1, 3, PROOF),
}


@pytest.mark.parametrize(("index", "size", "proof"), REFUSED.values(), ids=REFUSED.keys())
def test_a_proof_of_the_wrong_shape_is_refused(index, size, proof):
    root = merkle.root(FOUR if size != 3 else FOUR[:3], sha256)
    assert not merkle.verify(root, b"b", index, size, proof, sha256)


def test_an_inner_node_does_not_pass_for_a_leaf():
    node = b"".join(merkle.leaf_hash(leaf, sha256) for leaf in FOUR[:2])
    assert not merkle.verify(merkle.root(FOUR, sha256), node, 0, 2, PROOF[1:], sha256)


def test_a_proof_of_a_leaf_that_is_not_there_is_an_index_error():
    with pytest.raises(IndexError):
        merkle.proof(FOUR, 4, sha256)


@given(st.lists(st.binary(max_size=4), min_size=1, max_size=70), st.data())
def test_a_tree_filled_by_proofs_gives_the_same_proofs(leaves, data):
    whole = merkle.Tree.of([merkle.leaf_hash(leaf, sha256) for leaf in leaves], sha256)
    known = merkle.Tree(whole.root, len(leaves), sha256)
    for index in data.draw(st.sets(st.integers(0, len(leaves) - 1))):
        assert known.add(index, merkle.leaf_hash(leaves[index], sha256), whole.proof(index))
        assert known.proof(index) == whole.proof(index)
        assert known.leaf(index) == whole.leaf(index)


def test_a_tree_keeps_no_node_of_a_false_proof():
    tree = merkle.Tree(merkle.root(FOUR, sha256), 4, sha256)
    assert not tree.add(0, merkle.leaf_hash(b"x", sha256), PROOF)
    with pytest.raises(KeyError):
        tree.leaf(0)
    with pytest.raises(KeyError):
        tree.proof(0)
