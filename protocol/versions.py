"""What both sides read out of a version's documents."""

from p2p.network import Manifest
from weights.documents import Edge


def manifest_of_edge(edge: Edge) -> Manifest:
    """Return how the payload of an edge is cut and checked."""
    return Manifest(hash=edge.payload_hash, length=edge.length, chunk_size=edge.chunk_size, chunk_root=edge.chunk_root)
