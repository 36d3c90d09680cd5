"""Proofs of others: the test data of transparency-dev/merkle, good and bad, judged as RFC 9162 does."""

import hashlib
import json

import pytest

from echo2.p2p.swarm.merkle import climb
from echo2.p2p.swarm.merkle_log import verify_consistency
from tests.support.paths import VECTORS

KNOWN = json.loads((VECTORS / "merkle_proofs.json").read_text())
EMPTY = hashlib.sha256(b"").hexdigest()


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def of(proof: list[str]) -> list[bytes]:
    return [bytes.fromhex(digest) for digest in proof]


@pytest.mark.parametrize("case", KNOWN["consistency"], ids=lambda case: case[0])
def test_a_consistency_proof_is_judged_as_its_author_does(case: list[object]) -> None:
    _, earlier, size, first, second, proof, holds = case
    assert isinstance(earlier, int)
    assert isinstance(size, int)
    told = verify_consistency(earlier, bytes.fromhex(str(first)), size, bytes.fromhex(str(second)), of(proof), sha256)  # type: ignore[arg-type]
    assert told == holds


@pytest.mark.parametrize("case", [case for case in KNOWN["inclusion"] if case[4]], ids=lambda case: case[0])
def test_an_inclusion_proof_is_judged_as_its_author_does(case: list[object]) -> None:
    """All but that of a digest without bytes: ours are those of leaves."""
    _, index, size, root, digest, proof, holds = case
    assert isinstance(index, int)
    assert isinstance(size, int)
    nodes = climb(bytes.fromhex(str(digest)), index, size, of(proof), sha256)  # type: ignore[arg-type]
    assert (nodes is not None and nodes[-1][2].hex() == root) == holds


@pytest.mark.parametrize("root", [EMPTY, sha256(b"another tree").hex()])
def test_the_tree_of_no_leaves_continues_itself_alone(root: str) -> None:
    told = verify_consistency(0, bytes.fromhex(EMPTY), 0, bytes.fromhex(root), [], sha256)
    assert told == (root == EMPTY)
