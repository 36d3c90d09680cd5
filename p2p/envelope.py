"""Seal and verify documents: signatures over bytes, bound to role, kind, protocol and run.

Rules
1. Signed bytes = "echo2/<protocol>/<kind>" || run id (32) || payload length (8, big-endian) || payload: no
   document passes for one of another kind, run or protocol.
2. A kind is signed by exactly one role (`ROLES`); a role's keys and threshold come from the signed Root.
3. `verify_envelope` verifies the bytes received, never a re-serialisation, and returns the payload only when enough
   *distinct* keys of the role signed it.
4. Only `verify` and `verify_named` create a `Verified`. It keeps the verified bytes and the value decoded from them:
   no payload is decoded twice, and none before its signatures are verified.
5. No field stands twice in a map of a document that a role of the Root signs: two programs would read two documents.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Generic, TypeVar

import blake3
import msgpack
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.p2p.errors import BadSignature, Malformed
from echo2.p2p.identity import public_bytes
from echo2.p2p.signatures import verifies
from echo2.p2p.wire_types import encode

PROTOCOL = 1
ENVELOPE_LIMIT = 64 * 1024 * 1024
"""Bytes of the largest sealed document."""
_MOST_SIGNATURES = 32
_CHECK: Final = object()
T = TypeVar("T")

_KINDS: Final = {
    "root": ("root", "runspec", "log.restored"),
    "policy": ("version", "edge"),
    "channel": ("head", "lease"),
    "ledger": ("calibration", "costs", "received", "receipt", "ledgerhead"),
    "payout": ("payout",),
    "node": ("request", "peer", "succession"),
}
ROLES: Final[dict[str, str]] = {kind: role for role, kinds in _KINDS.items() for kind in kinds}
"""The role that signs each kind of document."""


class Signature(msgspec.Struct, frozen=True, array_like=True):
    """A key and its signature."""

    key: bytes
    signature: bytes


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A payload with its signatures: the form in which a document is stored, gossiped and hashed."""

    kind: str
    run: bytes
    payload: bytes
    signatures: Annotated[list[Signature], msgspec.Meta(max_length=_MOST_SIGNATURES)]


@dataclass(frozen=True, slots=True)
class Verified(Generic[T]):
    """A verified document (rule 4): its value, and the sealed bytes as received."""

    value: T
    sealed: bytes
    _check: object = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self._check is not _CHECK:
            raise TypeError("only verify and verify_named create a Verified")


_decode = msgspec.msgpack.Decoder(Envelope).decode


def signed_bytes(kind: str, run: bytes, payload: bytes) -> bytes:
    """Return the bytes that a signature covers (rule 1). Raises `ValueError` for an unknown kind, or a run id that
    has not 32 bytes."""
    if kind not in ROLES or len(run) != 32:
        raise ValueError(f"cannot seal kind {kind!r} for a run id of {len(run)} bytes")
    return b"echo2/%d/%s" % (PROTOCOL, kind.encode()) + run + len(payload).to_bytes(8, "big") + payload


def seal(kind: str, run: bytes, payload: bytes, *keys: Ed25519PrivateKey) -> bytes:
    """Sign `payload` with every key; return the sealed document's bytes."""
    covered = signed_bytes(kind, run, payload)
    signatures = [Signature(public_bytes(key), key.sign(covered)) for key in keys]
    return encode(Envelope(kind, run, payload, signatures))


def decode_unverified(data: bytes) -> Envelope:
    """Decode without verifying, to learn the claimed signers. Raises `Malformed`."""
    if len(data) > ENVELOPE_LIMIT:
        raise Malformed(f"sealed document of {len(data)} bytes, at most {ENVELOPE_LIMIT} are accepted")
    try:
        sealed = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"not a sealed document: {error}") from error
    if sealed.kind not in ROLES or len(sealed.run) != 32:
        raise Malformed("not a sealed document of this protocol")
    return sealed


def verify_envelope(data: bytes, kind: str, run: bytes, keys: Collection[bytes], threshold: int = 1) -> bytes:
    """Return the payload, if at least `threshold` distinct keys out of `keys` signed it for this kind and run.

    Raises `Malformed` for bytes that are no sealed document, and for a payload that breaks rule 5; `BadSignature` for
    everything else."""
    payload = _verified_payload(decode_unverified(data), kind, run, keys, threshold)
    if _names_twice(payload):
        raise Malformed(f"a field stands twice in this {kind}")
    return payload


def open_signed(data: bytes, kind: str, run: bytes) -> tuple[bytes, bytes]:
    """Return the key of the document's only signer, and the payload: for kinds of role "node", whose signature
    identifies the sender. Raises as `verify_envelope`."""
    sealed = decode_unverified(data)
    if len(sealed.signatures) != 1:
        raise BadSignature(f"{len(sealed.signatures)} signatures, exactly 1 is required")
    key = sealed.signatures[0].key
    return key, _verified_payload(sealed, kind, run, [key], 1)


def _verified_payload(sealed: Envelope, kind: str, run: bytes, keys: Collection[bytes], threshold: int) -> bytes:
    if threshold < 1:
        raise ValueError("a threshold must be at least 1")
    if sealed.kind != kind or sealed.run != run:
        raise BadSignature(f"got a {sealed.kind}, expected a {kind} of this run")
    good = _signers(sealed, keys)
    if len(good) < threshold:
        raise BadSignature(f"{kind}: {len(good)} of {threshold} required signatures of role {ROLES[kind]}")
    return sealed.payload


def _names_twice(payload: bytes) -> bool:
    """Tell whether two fields of a map in the payload have one name. Raises `Malformed` for a payload that cannot be
    read whole: what a decoder skips as an unknown field could hide the second one."""
    twice = False

    def note(fields: list[tuple[object, object]]) -> None:
        nonlocal twice
        twice = twice or len({name for name, _ in fields}) < len(fields)

    try:
        msgpack.unpackb(payload, object_pairs_hook=note, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise Malformed(f"a payload that cannot be read whole: {error}") from error
    return twice


def _signers(sealed: Envelope, keys: Collection[bytes]) -> set[bytes]:
    covered = signed_bytes(sealed.kind, sealed.run, sealed.payload)
    return {s.key for s in sealed.signatures if s.key in keys and verifies(s.key, s.signature, covered)}


def signers(data: bytes, keys: Collection[bytes]) -> set[bytes]:
    """Return the keys, out of `keys`, that validly signed the document. Raises `Malformed`."""
    return _signers(decode_unverified(data), keys)


def join(sealed: Sequence[bytes], keys: Collection[bytes]) -> bytes:
    """Return one document with the valid signatures of several over the same payload, those of `keys` alone, each once.
    Raises `Malformed`, and `BadSignature` where kind, run or payload differ."""
    envelopes = [decode_unverified(one) for one in sealed]
    first = envelopes[0]
    if any((one.kind, one.run, one.payload) != (first.kind, first.run, first.payload) for one in envelopes):
        raise BadSignature("the signatures are over different documents")
    covered = signed_bytes(first.kind, first.run, first.payload)
    stated = [s for one in envelopes for s in one.signatures if s.key in keys]
    valid = {s.key: s for s in stated if verifies(s.key, s.signature, covered)}
    return encode(Envelope(first.kind, first.run, first.payload, list(valid.values())))


def verify(
    data: bytes, kind: str, run: bytes, keys: Collection[bytes], threshold: int, decode: Callable[[bytes], T]
) -> Verified[T]:
    """Verify a sealed document as `verify_envelope` does, and decode its payload. Raises as `verify_envelope` and
    `decode`."""
    return Verified(decode(verify_envelope(data, kind, run, keys, threshold)), data, _CHECK)


def verify_named(data: bytes, digest: bytes, decode: Callable[[bytes], T]) -> Verified[T]:
    """Verify a document that a verified one names by its hash, and decode it. Raises `BadSignature` for another
    document, and as `decode`."""
    if document_hash(data) != digest:
        raise BadSignature(f"the document is not the one named {digest.hex()[:16]}")
    return Verified(decode(data), data, _CHECK)


def document_hash(sealed: bytes) -> bytes:
    """Return the name of a sealed document: BLAKE3 of its bytes, 32 bytes."""
    return blake3.blake3(sealed).digest()
