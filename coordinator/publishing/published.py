"""A published version, and its record in the store: the last document of a publication, read at a start.

record = version_hash (32 bytes) | index_hash (32 bytes) | root (32 bytes)
"""

from dataclasses import dataclass
from typing import Self

from echo2.weights.store import StoredDocument


@dataclass(frozen=True, slots=True)
class Published:
    """A published version. `root`: its content root. `version_hash`, `index_hash`: version hash and index hash of its
    Version and EdgeIndex."""

    era: int
    version: int
    root: bytes
    version_hash: bytes
    index_hash: bytes

    @classmethod
    def of(cls, stored: StoredDocument) -> Self:
        """Read the record of a version."""
        record = stored.sealed
        return cls(stored.era, stored.version, record[64:96], record[:32], record[32:64])

    def record(self) -> bytes:
        """Encode the record, 96 bytes."""
        return self.version_hash + self.index_hash + self.root
