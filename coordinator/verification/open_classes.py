"""Engine classes that are open: the exact ones, and those of whose rounding this run has a signed Calibration.

Rules
1. The engine's row says which classes are exact (engines/registry.py). Their tokens are checked one by one
   (coordinator/verification/verification.py), and they are open from the start.
2. A class is open while the folder holds a Calibration of its rounding, signed by the ledger key. The newest counts, by
   era and version, then by time: one that was made while the clock was ahead would count for ever by time alone. Leases
   that name an older one are judged by that.
3. A key of an earlier Root counts as long as no Root revokes it: a Calibration stays when the ledger key is rotated.
4. A Calibration counts once the version that it names is published, and if that has its content root: bounds that were
   measured on other weights say nothing about this run's nodes.
5. A file that is no such document is left out, and logged once.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

from echo2.coordinator.verification.calibration import Calibration, tables_of, verify_calibration
from echo2.coordinator.verification.evidence import Tables
from echo2.engines.registry import rounding_of
from echo2.p2p.envelope import document_hash
from echo2.p2p.errors import Malformed, PeerFault
from echo2.protocol.authority import RoleKeys, Root

MOST_BYTES: Final = 1 << 20
"""Of one Calibration."""

RootOf = Callable[[int, int], bytes | None]
"""Returns the content root of the version (era, number); None: it is not published."""

log = structlog.get_logger("coordinator")


def ledger_keys(chain: Sequence[Root]) -> RoleKeys:
    """Return the keys that may have signed a Calibration (rule 3)."""
    revoked = chain[-1].revoked
    keys = {key: None for root in chain for key in root.roles["ledger"].keys if key not in revoked}
    return RoleKeys(keys=list(keys)[-32:], threshold=1)


class OpenClasses:
    """The Calibrations of a run that were read. `waiting`: whether one names a version that is not published yet."""

    def __init__(self) -> None:
        self.waiting = False
        self._calibrations: dict[bytes, Calibration] = {}
        self._newest: dict[str, bytes] = {}
        self._seen: set[Path] = set()

    def read(self, folder: Path, run: bytes, ledger: RoleKeys, root_of: RootOf | None = None) -> list[str]:
        """Read the files that are new in a folder; return the roundings of those that are Calibrations of `run` and
        count (rule 4). `root_of`: None where the run has checked that before."""
        opened, self.waiting = [], False
        for path in sorted(folder.glob("*.calibration")):
            if path in self._seen:
                continue
            try:
                with path.open("rb") as file:
                    sealed = file.read(MOST_BYTES)
                calibration = verify_calibration(sealed, run, ledger)
                if root_of is not None and not _is_due(calibration, root_of):
                    self.waiting = True
                    continue
                opened.append(self.add(sealed, run, ledger))
            except (OSError, PeerFault) as error:
                log.warning("no calibration of this run", file=path.name, reason=str(error))
            self._seen.add(path)
        return opened

    def add(self, sealed: bytes, run: bytes, ledger: RoleKeys) -> str:
        """Add a sealed Calibration; return its rounding. Raises `PeerFault`."""
        calibration = verify_calibration(sealed, run, ledger)
        digest, name = document_hash(sealed), calibration.rounding
        self._calibrations[digest] = calibration
        newest = self._newest.get(name)
        if newest is None or _age(self._calibrations[newest]) <= _age(calibration):
            self._newest[name] = digest
        return name

    @property
    def names(self) -> list[str]:
        """Return the roundings that a Calibration opens, in alphabetical order."""
        return sorted(self._newest)

    def of(self, engine_class: str) -> bytes | None:
        """Return the hash of the Calibration that leases of a class name now; None: there is none."""
        return self._newest.get(rounding_of(engine_class))

    def newer(self, digest: bytes) -> bytes | None:
        """Return the hash of the Calibration that took the place of this one; None: it is the newest, or unknown."""
        calibration = self._calibrations.get(digest)
        newest = None if calibration is None else self._newest[calibration.rounding]
        return None if newest == digest else newest

    def rounding(self, digest: bytes) -> str | None:
        """Return the rounding of a Calibration; None: it was never read."""
        calibration = self._calibrations.get(digest)
        return None if calibration is None else calibration.rounding

    def newest(self) -> list[Calibration]:
        """Return the Calibration of each rounding that leases name now."""
        return [self._calibrations[digest] for digest in self._newest.values()]

    def tables(self, digest: bytes) -> Tables | None:
        """Return the tables of a Calibration; None if it was never read."""
        calibration = self._calibrations.get(digest)
        return None if calibration is None else tables_of(calibration)


def _age(calibration: Calibration) -> tuple[int, int, int]:
    return calibration.era, calibration.version, calibration.at


def _is_due(calibration: Calibration, root_of: RootOf) -> bool:
    """Tell whether a Calibration's version is published. Raises `Malformed` if that has another root (rule 4)."""
    published = root_of(calibration.era, calibration.version)
    if published is not None and published != calibration.root:
        raise Malformed(f"it was measured with other weights than those of version {calibration.version}")
    return published is not None
