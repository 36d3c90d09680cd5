"""The statement by which a node's old key names the one that replaces it. Pure.

Rules
1. Both keys sign it, for one run: the old one passes its standing on, and the new one takes it. No third signature
   counts.
2. The coordinator decides what follows from it (coordinator/accounts/key_successor.py).
"""

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.p2p.envelope import decode_unverified, seal, verify_envelope
from echo2.p2p.errors import BadSignature
from echo2.p2p.identity import public_bytes
from echo2.p2p.wire_types import Key, Milliseconds, Wire, decode, encode

KIND = "succession"


class Succession(Wire, frozen=True):
    """node -> coordinator, in a Hello. `old`, `new`: the node's keys. `at`: when it was written."""

    old: Key
    new: Key
    at: Milliseconds


def make(run: bytes, old: Ed25519PrivateKey, new: Ed25519PrivateKey, now: int) -> bytes:
    """Return the sealed statement. `now`: ms."""
    statement = Succession(old=public_bytes(old), new=public_bytes(new), at=now)
    return seal(KIND, run, encode(statement), old, new)


def open_succession(sealed: bytes, run: bytes, sender: bytes) -> Succession:
    """Verify a statement (rule 1) that `sender` brought, and return it. Raises `Malformed`, `BadSignature`."""
    envelope = decode_unverified(sealed)
    keys = {one.key for one in envelope.signatures}
    if len(envelope.signatures) != 2 or len(keys) != 2:
        raise BadSignature("a succession has two signatures, of two keys")
    statement = decode(verify_envelope(sealed, KIND, run, keys, 2), Succession)
    if {statement.old, statement.new} != keys or statement.new != sender:
        raise BadSignature("the succession is not signed by the keys that it names, or not the sender's")
    return statement
