"""The weights that the store can give, as a snapshot or through payloads. No state."""

from collections.abc import Callable, Iterable
from pathlib import Path

from echo2.weights.documents import Edge
from echo2.weights.snapshot import Snapshot, WeightsSource
from echo2.weights.store import StoreReader
from echo2.weights.update_path import path_to, reachable
from echo2.weights.virtual_snapshot import VirtualSnapshot


class StoredWeights:
    """Reads weights by their content roots. `edges`: returns all signed edges."""

    def __init__(self, store: StoreReader, edges: Callable[[], Iterable[Edge]]) -> None:
        self._store, self._edges = store, edges

    def snapshots(self) -> dict[bytes, Path]:
        """Return the stored snapshots by content root."""
        return {file.hash: file.path for file in self._store.snapshots()}

    def payloads(self) -> dict[Edge, Path]:
        """Return the edges whose payloads are stored, with the files."""
        payloads = {file.hash: file.path for file in self._store.payloads()}
        return {edge: payloads[edge.payload_hash] for edge in self._edges() if edge.payload_hash in payloads}

    def roots(self) -> set[bytes]:
        """Return the roots of all weights that can be read."""
        return reachable(self.payloads(), self.snapshots().keys())

    def read(self, root: bytes) -> WeightsSource | None:
        """Open weights; None where nothing stored leads to them. They are not verified here: a damaged file gives
        others. Raises `WeightsError`, `FileNotFoundError`."""
        payloads, snapshots = self.payloads(), self.snapshots()
        chain = path_to(payloads, snapshots.keys(), root)
        if chain is None:
            return None
        begin = chain[0].base_root if chain else root
        start = None if begin is None else Snapshot(snapshots[begin], root=begin)
        return VirtualSnapshot(start, [payloads[edge] for edge in chain], root) if chain else start
