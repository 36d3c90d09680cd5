"""Versions that a run has published, without a learner."""

from pathlib import Path

import numpy as np

from echo2.coordinator.run.setup import Run
from echo2.p2p.envelope import seal
from echo2.weights.documents import Version
from echo2.weights.snapshot import Snapshot, writing_snapshot
from echo2.weights.store import Store


def changed(source: Snapshot, path: Path) -> Snapshot:
    """Write weights of which every 50th element has another last bit."""
    with writing_snapshot(path, source.tensors, source.aliases) as writer:
        for entry in source.tensors:
            bits = source.bits(entry.name)
            writer.write(bits ^ (np.arange(len(bits)) % 50 == 0).astype(bits.dtype))
        writer.finish()
    return Snapshot(path)


def publish(run: Run, version: int, snapshot: Snapshot) -> None:
    """Store a version as a publisher does."""
    document = Version(era=1, version=version, root=snapshot.root, tensors=snapshot.tensors, aliases=snapshot.aliases)
    with Store(run.folder.store) as store:
        store.put_document("version", 1, version, seal("version", run.id, document.to_bytes(), run.keys.policy))
        store.put_snapshot(1, version, snapshot.root, snapshot.path)
