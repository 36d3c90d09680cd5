"""The chain of a run's Roots, and the RunSpec under it. Pure.

Rules
1. The first Root has serial 1; each later one follows the one before by protocol/authority.py.
2. The RunSpec must be signed by the newest Root's `root` role: a thief of an old root key could sign another one.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

from echo2.p2p.envelope import verify_envelope
from echo2.p2p.errors import PeerFault
from echo2.p2p.wire_types import decode
from echo2.protocol.authority import Root, RunSpec, verify_root
from echo2.runtime.errors import LocalFault

ROOT: Final = "root"


class Untrusted(LocalFault):
    """A signed document of the run does not verify: altered, of another run, or expired."""


def check_chain(roots: Sequence[bytes]) -> list[Root]:
    """Verify that each Root follows the one before (rule 1), and return them decoded. Raises `Untrusted`."""
    chain: list[Root] = []
    for sealed in roots:
        serial = len(chain) + 1
        try:
            chain.append(verify_root(sealed, chain[-1] if chain else None))
        except PeerFault as error:
            raise Untrusted(f"Root {serial} is damaged or not signed by the Root before ({error})") from error
        if chain[0].serial != 1:
            raise Untrusted("the first Root does not have serial 1")
    if not chain:
        raise Untrusted("the run has no Root")
    return chain


def check_runspec(sealed: bytes, root: Root) -> RunSpec:
    """Verify the RunSpec by the root role of the newest Root (rule 2) and return it. Raises `Untrusted`."""
    signers = root.roles[ROOT]
    try:
        spec = decode(verify_envelope(sealed, "runspec", root.run, signers.keys, signers.threshold), RunSpec)
    except PeerFault as error:
        raise Untrusted("the RunSpec is not signed by this run's root key") from error
    if spec.run != root.run:
        raise Untrusted("the RunSpec belongs to another run")
    return spec


def root_hash(sealed: bytes) -> bytes:
    """Return the hash that invites pin: SHA-256 of the first sealed Root, 32 bytes."""
    return hashlib.sha256(sealed).digest()
