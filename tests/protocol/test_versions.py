"""The gossip topic of Heads, and the manifest of an edge's payload."""

from echo2.p2p.payload_manifest import Manifest
from echo2.protocol.versions import head_topic, manifest_of_edge
from echo2.weights.documents import Edge


def test_the_topic_of_heads_names_the_run() -> None:
    run = bytes(range(32))
    assert head_topic(run) == f"echo2/{run.hex()}/head"
    assert head_topic(bytes(32)) != head_topic(run)


def test_the_manifest_of_an_edge_has_the_edges_payload_hash_length_and_chunks() -> None:
    edge = Edge(
        era=0, version=1, root=b"r" * 32, codec="full/1",
        payload_hash=b"p" * 32, length=657, chunk_size=16_384, chunk_root=b"c" * 32,
    )  # fmt: skip
    expected = Manifest(hash=b"p" * 32, length=657, chunk_size=16_384, chunk_root=b"c" * 32)
    assert manifest_of_edge(edge) == expected
