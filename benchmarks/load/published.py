"""Make the store of a long run: documents of every version, and files of the last versions.

Rules
1. Version and Edge are truly signed, since a coordinator verifies edges when it starts. An edge leads to each version
   from the one before, and to every 32nd also from version 0, as the learner makes them.
2. The last versions have real weights and payloads, from a version with an edge from version 0 on. So a node can join,
   and the scorer can step.
"""

import sqlite3
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from blake3 import blake3

from benchmarks.load.folder import write_weights
from benchmarks.load.rows import ERA, Shape
from echo2.coordinator.run.setup import Run
from echo2.p2p.envelope import seal
from echo2.p2p.swarm import manifest as chunks
from echo2.weights.codec import frames
from echo2.weights.diff import encode, encode_full
from echo2.weights.documents import Edge, EdgeIndex, Version
from echo2.weights.snapshot import Snapshot
from echo2.weights.store import Store

ANCHOR_EVERY: Final = 32
_REACH: Final = 128  # edges in an EdgeIndex
_FOLDER: Final = "making"  # of the run folder, for snapshots; removed in the end


@dataclass(frozen=True)
class VersionHistory:
    """The versions of a run. `roots`: content roots of all of them. `real`: the version from which on weights exist;
    those of version 0 exist too."""

    roots: list[bytes]
    real: int

    @classmethod
    def of(cls, run: Run, shape: Shape) -> "VersionHistory":
        """Draw random roots, write the snapshots of version 0 and the last versions, and use their roots."""
        random = np.random.default_rng(13).bytes(32 * shape.versions)
        roots = [random[at : at + 32] for at in range(0, len(random), 32)]
        real = max(0, (shape.versions - ANCHOR_EVERY - 1) // ANCHOR_EVERY * ANCHOR_EVERY)
        folder = run.folder.path / _FOLDER
        folder.mkdir()
        for version in (0, *range(max(1, real), shape.versions)):
            roots[version] = write_weights(_snapshot(folder, version), version).root
        return cls(roots, real)

    def exists(self, version: int) -> bool:
        """Tell whether the version's weights exist."""
        return version == 0 or version >= self.real


def write_store(run: Run, shape: Shape, history: VersionHistory) -> None:
    """Fill the store of `run`, and remove the snapshots that `VersionHistory.of` wrote."""
    folder, documents = run.folder.path / _FOLDER, list[tuple[bytes, str, int, int, bytes]]()
    with Store(run.folder.store) as store:
        recent, table = deque[bytes](maxlen=_REACH), Snapshot(_snapshot(folder, 0), root=history.roots[0])
        for version in range(shape.versions):
            edges = [_edge(run, store, folder, history, base, version) for base in _bases(version)]
            edge_rows = [(blake3(edge).digest(), "edge", ERA, version, edge) for edge in edges]
            recent.extend(row[0] for row in edge_rows)
            documents += [*edge_rows, *_rest(run, table, history, version, list(recent))]
        for version in (0, shape.versions - 1):
            store.put_snapshot(ERA, version, history.roots[version], _snapshot(folder, version))
    _write(run.folder.store / "index.sqlite", sorted(documents))
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def _bases(version: int) -> list[int | None]:
    if not version:
        return [None]
    return [version - 1, *([0] if version % ANCHOR_EVERY == 0 else [])]


def _edge(run: Run, store: Store, folder: Path, history: VersionHistory, base: int | None, version: int) -> bytes:
    """Return the sealed edge from `base`; where the weights of both its versions exist, put its payload into the
    store."""
    digest, length, size, root = blake3(b"%d/%d" % (version, base or 0)).digest(), 900, 1 << 14, bytes(32)
    if history.exists(version) and (base is None or history.exists(base)):
        path, new = folder / "payload", Snapshot(_snapshot(folder, version), root=history.roots[version])
        if base is None:
            encode_full(new, path)
        else:
            encode(Snapshot(_snapshot(folder, base), root=history.roots[base]), new, path)
        manifest = chunks.manifest_of(path)
        digest, length, size, root = manifest.hash, manifest.length, manifest.chunk_size, manifest.chunk_root
        store.put_payload(ERA, version, digest, path)
    edge = Edge(
        era=ERA,
        base=base,
        base_root=None if base is None else history.roots[base],
        version=version,
        root=history.roots[version],
        codec=frames.NAME,
        payload_hash=digest,
        length=length,
        chunk_size=size,
        chunk_root=root,
    )
    return seal("edge", run.id, edge.to_bytes(), run.keys.policy)


def _rest(
    run: Run, table: Snapshot, history: VersionHistory, version: int, edges: list[bytes]
) -> list[tuple[bytes, str, int, int, bytes]]:
    """Return the rows of the EdgeIndex, the Version, and the record that publishes it. `edges`: hashes of the edges."""
    index = EdgeIndex(era=ERA, version=version, edges=edges).to_bytes()
    policy = Version(
        era=ERA, version=version, root=history.roots[version], tensors=table.tensors, aliases=table.aliases
    )
    sealed = seal("version", run.id, policy.to_bytes(), run.keys.policy)
    published = blake3(sealed).digest() + blake3(index).digest() + history.roots[version]
    kinds = {"edgeindex": index, "version": sealed, "published": published}
    return [(blake3(data).digest(), kind, ERA, version, data) for kind, data in kinds.items()]


def _write(index: Path, documents: Sequence[tuple[bytes, str, int, int, bytes]]) -> None:
    connection = sqlite3.connect(index, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        insert = "INSERT OR IGNORE INTO documents (hash, kind, era, version, sealed) VALUES (?, ?, ?, ?, ?)"
        connection.executemany(insert, documents)
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()


def _snapshot(folder: Path, version: int) -> Path:
    return folder / f"v{version}.safetensors"
