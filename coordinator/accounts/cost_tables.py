"""The Costs that are in force: a signed document, which an entry of the ledger puts in force from there on.

Rules
1. An entry `costs.set` has the sealed document and its SHA-256. Its Costs are in force for every later entry, until the
   next one. Without one there are none (protocol/group_weights.py, rule 4).
2. An entry that states a weight names the number of the `costs.set` by which it was computed; 0: none was in force.
   So ledger and export are enough to compute each weight again.
3. Costs are taken from files `*.costs` of `calibrations/`, signed by the ledger's key. They take the place of older
   ones alone (`Costs.at`), so a file that is copied back changes nothing.
4. A file that is no such document is left out, and logged once.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.accounts.ledger import Entry, Ledger
from echo2.p2p.envelope import decode_unverified, seal, verify_envelope
from echo2.p2p.errors import Malformed, PeerFault
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.authority import RoleKeys
from echo2.protocol.group_weights import Costs

SUFFIX: Final = ".costs"
MOST_BYTES: Final = 1 << 14
"""Of one document: the ledger keeps it for good."""
_PREFIX: Final = "costs:"

log = structlog.get_logger("coordinator")


class CostsSet(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `costs.set`. `costs`: SHA-256 of `sealed`, the sealed Costs."""

    rules: int = 1
    costs: bytes
    sealed: bytes


class CostsInForce(NamedTuple):
    """The Costs that count now, and the number of their entry; 0: there are none."""

    entry: int = 0
    costs: Costs | None = None


def seal_costs(costs: Costs, key: Ed25519PrivateKey) -> bytes:
    """Sign Costs by the ledger key."""
    return seal("costs", costs.run, encode(costs), key)


def verify_costs(sealed: bytes, run: bytes, ledger: RoleKeys) -> Costs:
    """Verify sealed Costs by the ledger role of the Root, and return them. Raises `PeerFault`."""
    costs = decode(verify_envelope(sealed, "costs", run, ledger.keys, ledger.threshold), Costs)
    if costs.run != run:
        raise Malformed("the Costs are of another run")
    return costs


def stated_costs(entry: Entry) -> Costs:
    """Return the Costs that a `costs.set` puts in force, whose signature was verified before it was written."""
    fact = msgspec.msgpack.decode(entry.facts, type=CostsSet)
    return decode(decode_unverified(fact.sealed).payload, Costs)


class CostTables:
    """The Costs of a run's ledger. `now`: those in force."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._seen: set[Path] = set()
        self.now = _latest(ledger.keyed(_PREFIX))

    def read(self, folder: Path, run: bytes, keys: RoleKeys, at: int) -> list[Costs]:
        """Put the Costs of files that are new in a folder in force (rule 3), and return them. `at`: ms."""
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
