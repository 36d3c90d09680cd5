"""The growing Merkle tree: RFC 6962's own roots, every pair of small sizes, and proofs that must be refused."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.p2p.swarm import merkle
from echo2.p2p.swarm.merkle_log import GrowingRoot, MerkleLog, row, verify_consistency
from tests.support import paths

VECTORS = json.loads((paths.VECTORS / "merkle.json").read_text())
LEAVES = [bytes.fromhex(leaf) for leaf in VECTORS["leaves"]]
MOST = 34


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def grown(leaves: list[bytes]) -> list[bytes]:
    rows: list[bytes] = []
    for index, leaf in enumerate(leaves):
        rows.append(row(index, merkle.leaf_hash(leaf, sha256), rows.__getitem__, sha256))
    return rows


NUMBERED = [b"leaf %d" % number for number in range(MOST)]
ROWS = grown(NUMBERED)
LOG = MerkleLog(ROWS.__getitem__, sha256)


def test_roots_are_those_of_rfc_6962() -> None:
    log = MerkleLog(grown(LEAVES).__getitem__, sha256)
    assert [log.root(size).hex() for size in range(len(LEAVES) + 1)] == VECTORS["roots"]["sha256"]


@pytest.mark.parametrize("size", range(MOST + 1))
def test_each_size_it_has_had_has_the_root_and_the_proofs_of_a_tree_built_at_once(size: int) -> None:
    assert LOG.root(size) == merkle.root(NUMBERED[:size], sha256)
    for index in range(size):
        assert LOG.inclusion(index, size) == merkle.proof(NUMBERED[:size], index, sha256)


def test_a_root_that_grows_is_that_of_a_tree_built_at_once() -> None:
    tree = GrowingRoot(sha256)
    for size in range(MOST + 1):
        assert tree.root == merkle.root(NUMBERED[:size], sha256)
        tree.append(b"leaf %d" % size)


@pytest.mark.parametrize("size", range(1, MOST + 1))
def test_each_earlier_size_is_proved_and_no_other_root_or_size_is(size: int) -> None:
    root = LOG.root(size)
    for earlier in range(1, size):
        proof = LOG.consistency(earlier, size)
        assert verify_consistency(earlier, LOG.root(earlier), size, root, proof, sha256)
        assert not verify_consistency(earlier, bytes(32), size, root, proof, sha256)
        assert not verify_consistency(earlier, LOG.root(earlier), size, bytes(32), proof, sha256)
        for other in range(1, size):
            if other != earlier:
                assert not verify_consistency(other, LOG.root(earlier), size, root, proof, sha256)


def test_a_history_that_was_rewritten_has_no_proof() -> None:
    rewritten = MerkleLog(grown([*NUMBERED[:4], b"another", *NUMBERED[5:]]).__getitem__, sha256)
    for earlier in range(5, MOST):
        for proof in (rewritten.consistency(earlier, MOST), LOG.consistency(earlier, MOST)):
            assert not verify_consistency(earlier, LOG.root(earlier), MOST, rewritten.root(MOST), proof, sha256)


PROOF = LOG.consistency(5, 12)
REFUSED = {
    "an earlier tree that is larger": (13, 12, PROOF),
    "a negative size": (-1, 12, PROOF),
    "no proof": (5, 12, []),
    "a proof too short": (5, 12, PROOF[:-1]),
    "a proof too long": (5, 12, [*PROOF, PROOF[0]]),
    "a digest cut short": (5, 12, [PROOF[0][:31], *PROOF[1:]]),
    "digests in another order": (5, 12, PROOF[::-1]),
    "a proof for equal sizes": (12, 12, PROOF),
    "a proof for the empty tree": (0, 12, PROOF),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_malformed_proof_is_refused(why: str) -> None:
    earlier, size, proof = REFUSED[why]
    earlier_root = LOG.root(max(earlier, 0))
    assert not verify_consistency(earlier, earlier_root, size, LOG.root(size), proof, sha256)


def test_a_tree_begins_with_itself_and_no_proof_begins_at_the_empty_one() -> None:
    assert not verify_consistency(0, LOG.root(0), 7, LOG.root(7), LOG.consistency(0, 7), sha256)
    assert verify_consistency(7, LOG.root(7), 7, LOG.root(7), LOG.consistency(7, 7), sha256)
    with pytest.raises(IndexError):
        LOG.consistency(8, 7)


@given(st.integers(1, MOST - 1), st.integers(1, MOST), st.lists(st.binary(min_size=32, max_size=32), max_size=8))
def test_no_proof_at_random_verifies(earlier: int, size: int, proof: list[bytes]) -> None:
    if earlier < size:
        assert not verify_consistency(earlier, LOG.root(earlier), size, LOG.root(size), proof, sha256)


def test_an_append_reads_one_earlier_row_on_the_average() -> None:
    rows: list[bytes] = []
    reads = 0

    def counted(index: int) -> bytes:
        nonlocal reads
        reads += 1
        return rows[index]

    for index in range(1024):
        rows.append(row(index, sha256(b"%d" % index), counted, sha256))
    assert reads == 1023
