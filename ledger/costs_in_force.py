"""The Costs that are in force: a signed document, which an entry of the ledger puts in force from there on. Pure.

Rules
1. An entry `costs.set` has the sealed document and its SHA-256. Its Costs are in force for every later entry, until the
   next one. Without one there are none (protocol/group_weights.py, rule 4).
2. An entry that states a weight names the number of the `costs.set` by which it was computed; 0: none was in force.
   So ledger and export are enough to compute each weight again.
"""

from typing import NamedTuple

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.ledger.ledger_entries import Entry
from echo2.p2p.envelope import decode_unverified, seal, verify_envelope
from echo2.p2p.errors import Malformed
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.authority import RoleKeys
from echo2.protocol.group_weights import Costs


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
