"""The node's weights on disk: one folder, which the engine steps from version to version in place.

    weights/held     a folder of weights.journaled, loaded by the engine
    weights/made     another such folder, only while it is built from a full payload, or from a copy of the base

Rules
1. Engines write to `held`, one at a time, or this process in their place (engines/process/engine_fleet.py): never while
   an engine reads it.
2. `made` replaces `held` once the last edge of its chain is applied. A kill leaves either the old or the new folder.
3. A group is generated under one version: an engine changes its own copy in memory only between groups. `held` may be
   at the next version before that. An engine that dies meanwhile loses its groups.
4. Weights and payloads together take at most twice the weights, and three times while weights are made anew: then there
   are `held`, `made`, and the full payload. So payloads, which only other nodes may still need, get what `held` leaves.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from echo2.node.versions.base_copies import BaseCopy
from echo2.p2p.envelope import Verified
from echo2.weights.documents import Edge, Version
from echo2.weights.errors import BadSnapshot, WeightsError
from echo2.weights.hf_import import import_model
from echo2.weights.journaled import Rolling, finish_replace, remove, replace_folder

LEAST_PAYLOADS: Final = 1 << 20
"""Bytes that payloads may take beside weights of any size."""


class InvalidChain(Exception):
    """Signed edges or their payloads do not produce the roots that the edges name: the publisher's fault."""


class LocalWeights:
    """The two folders of the weights. All methods block; none needs torch."""

    def __init__(self, folder: Path, *, quota: int) -> None:
        """`quota`: bytes that weights and payloads together may take on disk, set by the owner."""
        folder.mkdir(parents=True, exist_ok=True)
        self.quota = quota
        self.path, self._unpacked = folder / "held", folder / "made"

    def root(self) -> bytes | None:
        """Return the content root of the weights on disk, None without any. Finish a replacement that a kill
        interrupted; remove damaged or incomplete weights."""
        try:
            remove(self._unpacked)
            finish_replace(self.path)
            return Rolling(self.path).root
        except FileNotFoundError:
            return None
        except WeightsError:
            self.drop()
            return None

    def adopt(self, copy: BaseCopy, version: Version) -> None:
        """Make the weights of a copy those in `held`. `version`: any of the run, for its tensors. Raises `BadSnapshot`
        where they are not those of the copy's root any more, `DiskFull`."""

        def write(path: Path) -> bytes:
            written = import_model(copy.folder, path, version.tensors, version.aliases).root
            if written != copy.root:
                raise BadSnapshot(f"{copy.folder} changed while it was read")
            return written

        Rolling.write(self._unpacked, write)
        self.swap_in()

    def make(self, chain: Sequence[tuple[Verified[Edge], Path]]) -> None:
        """Build weights within the quota in `made`, from a chain of edges and payloads that begins with a full one.
        Raises `InvalidChain`, `DiskFull`."""
        try:
            full, payload = chain[0]
            unpacked = Rolling.unpack(self._unpacked, payload, full.value.root, max_bytes=self.quota)
            for edge, diff in chain[1:]:
                unpacked.apply(diff, edge.value.root)
        except WeightsError as error:
            raise InvalidChain(f"the payload of a signed edge: {error}") from error

    def swap_in(self) -> None:
        """Replace `held` by `made` (rule 2)."""
        replace_folder(self._unpacked, self.path)

    def drop(self) -> None:
        """Remove the weights in `held`."""
        remove(self.path)

    def room(self) -> int:
        """Return the bytes that the quota and rule 4 leave for payloads beside `held`; below 0 when that exceeds
        them."""
        nbytes = self._nbytes()
        return min(self.quota, nbytes + max(nbytes, LEAST_PAYLOADS)) - self._used_bytes()

    def room_beside_made(self, arriving: int) -> int:
        """Return the bytes left for other payloads while weights are made anew of payloads of which `arriving` bytes
        are yet to come; below 0 as in `room`."""
        nbytes = self._nbytes()
        return min(self.quota, 2 * nbytes + max(nbytes, LEAST_PAYLOADS)) - self._used_bytes() - nbytes - arriving

    def _nbytes(self) -> int:
        """Return the bytes of the snapshot in `held`; 0 without one."""
        path = self.path / "snapshot.safetensors"
        return path.stat().st_size if path.is_file() else 0

    def _used_bytes(self) -> int:
        """Return the bytes of `held`, journals included."""
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())
