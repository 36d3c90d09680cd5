"""Manifests: how a payload is cut into chunks, and the bounds of a manifest."""

import json

import pytest

from echo2.p2p.errors import LocalNetworkFault, Malformed
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.swarm import merkle
from echo2.p2p.swarm.manifest import check, chunk_count, chunk_size, chunk_span, digest, leaf_digest, manifest_of
from echo2.p2p.swarm.payload_file import PartialPayload
from tests.support import paths

VECTORS = json.loads((paths.VECTORS / "chunks.json").read_text())


KIB = 1 << 10


LENGTH = 100 * KIB + 5


@pytest.mark.parametrize(
    ("length", "size"),
    {
        "an empty payload": (0, 16 * KIB),
        "a small payload": (1, 16 * KIB),
        "the largest with the smallest chunks": (4096 * KIB, 16 * KIB),
        "one byte more": (4096 * KIB + 1, 16 * KIB + 1),
        "the smallest with the largest chunks": (256 * 1024 * KIB, 1024 * KIB),
        "a large payload": (1 << 40, 1024 * KIB),
    }.values(),
)
def test_a_chunk_is_a_256th_within_bounds(length, size):
    assert chunk_size(length) == size


def test_manifests_match_the_golden_vectors(tmp_path):
    for vector in VECTORS["manifests"]:
        (tmp_path / "p").write_bytes(bytes(i * 31 % 251 for i in range(vector["length"])))
        manifest = manifest_of(tmp_path / "p")
        assert (manifest.hash.hex(), manifest.chunk_size, manifest.chunk_root.hex()) == (
            vector["hash"],
            vector["chunk_size"],
            vector["chunk_root"],
        )


def test_the_spans_of_the_chunks_cover_the_payload():
    manifest = Manifest(hash=bytes(32), length=LENGTH, chunk_size=16 * KIB, chunk_root=bytes(32))
    spans = [chunk_span(manifest, index) for index in range(chunk_count(manifest))]
    assert spans[-1] == (96 * KIB, 4 * KIB + 5)
    assert sum(length for _, length in spans) == LENGTH


def test_a_manifest_of_a_missing_file_is_a_local_fault(tmp_path):
    with pytest.raises(LocalNetworkFault, match="No such file"):
        manifest_of(tmp_path / "none")


GOOD = {"hash": bytes(32), "length": 1 << 20, "chunk_size": 16 * KIB, "chunk_root": bytes(32)}


@pytest.mark.parametrize(
    "field",
    {
        "a short hash": {"hash": bytes(31)},
        "a long root": {"chunk_root": bytes(33)},
        "a chunk too small": {"chunk_size": 16 * KIB - 1},
        "a chunk too large": {"chunk_size": 1024 * KIB + 1},
        "no chunk size": {"chunk_size": 0},
        "a negative length": {"length": -1},
        "too many chunks": {"length": (16 * KIB << 20) + 1},
    }.values(),
)
def test_a_manifest_out_of_bounds_is_malformed(field, tmp_path):
    check(Manifest(**GOOD))
    with pytest.raises(Malformed):
        check(Manifest(**GOOD | field))
    with pytest.raises(Malformed):
        PartialPayload(Manifest(**GOOD | field), tmp_path / "p")
    assert list(tmp_path.iterdir()) == []


def test_a_leaf_is_hashed_as_the_tree_does():
    assert leaf_digest(b"chunk") == merkle.leaf_hash(b"chunk", digest)
