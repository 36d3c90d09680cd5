"""Heads of versions, and the manifest of an edge's payload."""

from typing import Annotated

from msgspec import Meta

from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.wire_types import Address, Count, Hash, Milliseconds, Wire
from echo2.protocol.authority import MOST_ROOTS
from echo2.weights.documents import Edge


def head_topic(run: bytes) -> str:
    """Return the gossip topic of a run's Heads. `run`: its id."""
    return f"echo2/{run.hex()}/head"


class Head(Wire, frozen=True):
    """coordinator (channel) -> everyone, by gossip and on request. Announces the newest version. Ordered by (era,
    version, sequence). `index_hash`: index hash of the sealed EdgeIndex. `step`: the learner's."""

    era: Count
    version: Count
    version_hash: Hash
    index_hash: Hash
    step: Count
    sequence: Count
    addresses: Annotated[list[Address], Meta(max_length=16)]
    root_serial: Count
    issued: Milliseconds
    expires: Milliseconds
    finished: bool = False


class HeadRequest(Wire, frozen=True):
    """anyone -> anyone, method "head", unsealed. Asks for the newest Head that the peer holds. `root_serial`: serial
    number of the newest Root that the requester holds; None: no Roots are requested."""

    root_serial: Count | None = None


class HeadResponse(Wire, frozen=True):
    """anyone -> anyone, to "head". `head`: the newest one, sealed. `roots`: the sealed Roots after `root_serial` of the
    request, in order."""

    head: bytes | None
    roots: Annotated[list[bytes], Meta(max_length=MOST_ROOTS)] = []


def manifest_of_edge(edge: Edge) -> Manifest:
    """Return the manifest of an edge's payload: its hash, length, and chunks."""
    return Manifest(hash=edge.payload_hash, length=edge.length, chunk_size=edge.chunk_size, chunk_root=edge.chunk_root)
