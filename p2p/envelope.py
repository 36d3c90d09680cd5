"""Seal and open: signatures over bytes, with role, type, protocol and run bound in.

Rules
1. Signed bytes = "echo2/<protocol>/<kind>" || run id (32) || payload length (8, big-endian) || payload: no
   document passes for one of another kind, run or protocol.
2. A kind is signed by exactly one role (`ROLES`); a role's keys and threshold come from the signed Root.
3. `open_sealed` verifies the bytes received, never a re-serialisation, and returns the payload only when enough
   *distinct* keys of the role signed it.
"""

from collections.abc import Collection
from typing import Annotated

import blake3
import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from p2p.errors import BadSignature, Malformed
from p2p.identity import public_bytes

PROTOCOL = 1
ENVELOPE_LIMIT = 64 * 1024 * 1024
_MOST_SIGNATURES = 32

ROLES: dict[str, str] = {
    "root": "root",
    "runspec": "root",
    "version": "policy",
    "edge": "policy",
    "head": "channel",
    "lease": "channel",
    "calibration": "ledger",
    "received": "ledger",
    "receipt": "ledger",
    "ledgerhead": "ledger",
    "request": "node",
    "peer": "node",
}
"""Which role signs a kind of document."""


class Signature(msgspec.Struct, frozen=True, array_like=True):
    key: bytes
    signature: bytes


class Sealed(msgspec.Struct, frozen=True, array_like=True):
    """A payload with its signatures: what is stored, gossiped and hashed."""

    kind: str
    run: bytes
    payload: bytes
    signatures: Annotated[list[Signature], msgspec.Meta(max_length=_MOST_SIGNATURES)]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Sealed).decode


def signed_bytes(kind: str, run: bytes, payload: bytes) -> bytes:
    """What a signature covers (rule 1)."""
    if kind not in ROLES or len(run) != 32:
        raise ValueError(f"no such document: kind {kind!r}, run id of {len(run)} bytes")
    return b"echo2/%d/%s" % (PROTOCOL, kind.encode()) + run + len(payload).to_bytes(8, "big") + payload


def seal(kind: str, run: bytes, payload: bytes, *keys: Ed25519PrivateKey) -> bytes:
    """Sign `payload` with every key; the sealed document's bytes."""
    covered = signed_bytes(kind, run, payload)
    signatures = [Signature(public_bytes(key), key.sign(covered)) for key in keys]
    return _encode(Sealed(kind, run, payload, signatures))


def peek(data: bytes) -> Sealed:
    """Decode without verifying: to learn who claims to have signed. Raises `Malformed`."""
    if len(data) > ENVELOPE_LIMIT:
        raise Malformed(f"a sealed document of {len(data)} bytes")
    try:
        sealed = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"not a sealed document: {error}") from error
    if sealed.kind not in ROLES or len(sealed.run) != 32:
        raise Malformed("not a sealed document of this protocol")
    return sealed


def open_sealed(data: bytes, kind: str, run: bytes, keys: Collection[bytes], threshold: int = 1) -> bytes:
    """The payload, once `threshold` distinct keys out of `keys` have signed it for this kind and run.

    Raises `Malformed` for bytes that are no sealed document, `BadSignature` for everything else.
    """
    if threshold < 1:
        raise ValueError("a threshold is at least 1")
    sealed = peek(data)
    if sealed.kind != kind or sealed.run != run:
        raise BadSignature(f"a {sealed.kind} where a {kind} of this run was expected")
    covered = signed_bytes(kind, run, sealed.payload)
    signers = {s.key for s in sealed.signatures if s.key in keys and _verifies(s, covered)}
    if len(signers) < threshold:
        raise BadSignature(f"{kind}: {len(signers)} of {threshold} required signatures of role {ROLES[kind]}")
    return sealed.payload


def _verifies(signature: Signature, covered: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(signature.key).verify(signature.signature, covered)
    except (InvalidSignature, ValueError):
        return False
    return True


def document_hash(sealed: bytes) -> bytes:
    """The name of a sealed document: BLAKE3 of its bytes, 32 bytes."""
    return blake3.blake3(sealed).digest()
