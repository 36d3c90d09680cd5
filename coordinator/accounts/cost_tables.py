"""The Costs of a run's ledger, and the files from which they are put in force.

Rules
1. Costs in force follow from the entries (ledger/costs_in_force.py).
2. Costs are taken from files `*.costs` of `calibrations/`, signed by the ledger's key. They take the place of older
   ones alone (`Costs.at`), so a file that is copied back changes nothing.
3. A file that is no such document is left out, and logged once.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import structlog

from echo2.coordinator.accounts.ledger import Ledger
from echo2.ledger.costs_in_force import CostsInForce, CostsSet, stated_costs, verify_costs
from echo2.ledger.ledger_entries import Entry
from echo2.p2p.errors import Malformed, PeerFault
from echo2.protocol.authority import RoleKeys
from echo2.protocol.group_weights import Costs

SUFFIX: Final = ".costs"
MOST_BYTES: Final = 1 << 14
"""Of one document: the ledger keeps it for good."""
_PREFIX: Final = "costs:"

log = structlog.get_logger("coordinator")


class CostTables:
    """The Costs of a run's ledger. `now`: those in force."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._seen: set[Path] = set()
        self.now = _latest(ledger.entries_with_prefix(_PREFIX))

    def read(self, folder: Path, run: bytes, keys: RoleKeys, at: int) -> list[Costs]:
        """Put the Costs of files that are new in a folder in force (rule 2), and return them. `at`: ms."""
        taken = []
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            if path in self._seen:
                continue
            self._seen.add(path)
            try:
                with path.open("rb") as file:
                    sealed = file.read(MOST_BYTES + 1)
                if len(sealed) > MOST_BYTES:
                    raise Malformed(f"more than {MOST_BYTES} bytes")
                if self.take(sealed, run, keys, at):
                    taken.append(verify_costs(sealed, run, keys))
            except (OSError, PeerFault) as error:
                log.warning("no costs of this run", file=path.name, reason=str(error))
        return taken

    def take(self, sealed: bytes, run: bytes, keys: RoleKeys, at: int) -> bool:
        """Put sealed Costs in force if they are newer than those that are; tell whether. Raises `PeerFault`."""
        costs = verify_costs(sealed, run, keys)
        if self.now.costs is not None and costs.at <= self.now.costs.at:
            return False
        digest = hashlib.sha256(sealed).digest()
        fact = CostsSet(costs=digest, sealed=sealed)
        entry = self._ledger.append(at, "costs.set", f"{_PREFIX}{digest.hex()}", fact)
        self.now = CostsInForce(entry.seq, costs)
        return True


def _latest(entries: Iterable[Entry]) -> CostsInForce:
    in_force = CostsInForce()
    for entry in entries:
        in_force = CostsInForce(entry.seq, stated_costs(entry))
    return in_force
