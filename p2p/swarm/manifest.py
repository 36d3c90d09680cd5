"""Compute and check manifests: the cut of a payload into chunks, and the hashes that verify it.

1. A chunk has W/256 bytes (rounded up) for a payload of W bytes, but at least 16 KiB and at most 1 MiB; the last one
   may be shorter. (With W/64, a chain of 16 peers would take (64 + 15) / 64 = 1.23 times the ideal.)
2. The chunk root is the Merkle root over the chunks in order, BLAKE3 with 32 bytes.
3. A manifest is checked against these bounds before any memory or disk is allocated for it.
4. A `HashedManifest` has the digests of the chunks too. The process that writes a payload computes this manifest once.
   The signed document takes its fields from the manifest, and p2p/swarm/open_files.py builds the tree from its digests
   without another pass over the file.
"""

from functools import partial
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from echo2.p2p.errors import LocalNetworkFault, Malformed
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.swarm import merkle
from echo2.p2p.swarm.messages import CHUNK_SIZE_MAX, CHUNK_SIZE_MIN, CHUNKS_MAX


class HashedManifest(Manifest, frozen=True, kw_only=True):
    """The manifest of a payload that this program has just written (rule 4). `leaves`: the `leaf_digest` of each chunk,
    in order."""

    leaves: list[bytes]


def digest(data: bytes) -> bytes:
    """Return BLAKE3 of `data`, 32 bytes."""
    return blake3(data).digest()


def leaf_digest(chunk: bytes | memoryview) -> bytes:
    """Return `merkle.leaf_hash` of a chunk, without copying the chunk."""
    return blake3(merkle.LEAF).update(chunk).digest()


def chunk_size(length: int) -> int:
    """Return the chunk size for a payload of `length` bytes, by rule 1."""
    return min(max(-(-length // 256), CHUNK_SIZE_MIN), CHUNK_SIZE_MAX)


def chunk_count(manifest: Manifest) -> int:
    """Return the number of chunks; 0 for an empty payload."""
    return -(-manifest.length // manifest.chunk_size)


def chunk_span(manifest: Manifest, index: int) -> tuple[int, int]:
    """Return (offset, length) of a chunk in the payload, in bytes."""
    offset = index * manifest.chunk_size
    return offset, min(manifest.chunk_size, manifest.length - offset)


def check(manifest: Manifest) -> None:
    """Raise `Malformed` for a manifest that exceeds the bounds."""
    if len(manifest.hash) != 32 or len(manifest.chunk_root) != 32:
        raise Malformed("a manifest's hash and chunk root have 32 bytes")
    if not CHUNK_SIZE_MIN <= manifest.chunk_size <= CHUNK_SIZE_MAX:
        raise Malformed(f"a chunk size of {manifest.chunk_size} bytes is not in {CHUNK_SIZE_MIN}..{CHUNK_SIZE_MAX}")
    if not 0 <= manifest.length <= CHUNKS_MAX * manifest.chunk_size:
        raise Malformed(f"a payload of {manifest.length} bytes has more than {CHUNKS_MAX} chunks")


def manifest_of(path: Path) -> Manifest:
    """Read a payload once, in chunks, and compute its manifest. Blocking. Raises `LocalNetworkFault`."""
    return bare(hash_payload(path))


def bare(manifest: Manifest) -> Manifest:
    """Return a plain `Manifest`, with the four signed fields alone."""
    return Manifest(
        hash=manifest.hash, length=manifest.length, chunk_size=manifest.chunk_size, chunk_root=manifest.chunk_root
    )


def hash_payload(path: Path, whole: bytes | None = None) -> HashedManifest:
    """Read a payload once, in chunks, and compute its manifest with the chunk digests. Blocking. `whole`: BLAKE3 of the
    payload, if it was computed while the file was written; then only the chunks are hashed. Raises
    `LocalNetworkFault`."""
    try:
        length = path.stat().st_size
        size = chunk_size(length)
        with path.open("rb") as file:
            if whole is None:
                leaves, whole, length = scan(file, size)
            else:
                leaves = [leaf_digest(chunk) for chunk in iter(partial(file.read, size), b"")]
    except OSError as error:
        raise LocalNetworkFault(f"cannot read {path}: {error.strerror}") from error
    root = merkle.Tree.of(leaves, digest).root
    return HashedManifest(hash=whole, length=length, chunk_size=size, chunk_root=root, leaves=leaves)


def scan(file: BinaryIO, size: int) -> tuple[list[bytes], bytes, int]:
    """Return (leaf digests, BLAKE3 of the whole, length in bytes) of a file cut at `size` bytes. Raises `OSError`."""
    leaves, whole, length = [], blake3(), 0
    while chunk := file.read(size):
        leaves.append(leaf_digest(chunk))
        whole.update(chunk)
        length += len(chunk)
    return leaves, whole.digest(), length
