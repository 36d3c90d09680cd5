"""The weights that a node holds: one folder, which its engine steps from version to version in place.

    weights/held     a folder of weights.journaled: what the engine computes with
    weights/made     another, while it is made from a full payload

Rules
1. The engine alone writes to `held`; this process does so only while no engine computes with it.
2. What is made anew takes the place of `held` when it is whole and at its last version. A kill leaves the old one or
   the new one.
3. A lease is worked off under one version: `held` changes in a turn of the engine, when no lease is. So the version of
   before needs no copy.
"""

from collections.abc import Sequence
from pathlib import Path

from p2p.envelope import Verified
from weights.documents import Edge
from weights.errors import WeightsError
from weights.journaled import Rolling, finish_replace, remove, replace_folder


class InvalidChain(Exception):
    """Signed edges do not lead where they say, or their payloads are no such thing: the publisher's fault."""


class LocalWeights:
    """All methods block; none needs torch."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self._unpacked = folder / "held", folder / "made"

    def root(self) -> bytes | None:
        """Content root of what is here, None for nothing. Finishes what a kill has torn; removes what is damaged or
        half made."""
        try:
            remove(self._unpacked)
            finish_replace(self.path)
            return Rolling(self.path).root
        except FileNotFoundError:
            return None
        except WeightsError:
            self.drop()
            return None

    def make(self, chain: Sequence[tuple[Verified[Edge], Path]], most: int) -> None:
        """Weights of at most `most` bytes, by a chain of edges and payloads that begins with a full one, beside those
        held. Raises `InvalidChain`, `DiskFull`."""
        try:
            full, payload = chain[0]
            unpacked = Rolling.unpack(self._unpacked, payload, full.value.root, max_bytes=most)
            for edge, diff in chain[1:]:
                unpacked.apply(diff, edge.value.root)
        except WeightsError as error:
            raise InvalidChain(f"the payload of a signed edge: {error}") from error

    def swap_in(self) -> None:
        """Rule 2: what was made becomes what is held."""
        replace_folder(self._unpacked, self.path)

    def drop(self) -> None:
        """Hold nothing."""
        remove(self.path)

    def nbytes(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())
