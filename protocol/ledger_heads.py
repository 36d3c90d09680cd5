"""Signed heads of the ledger, and the proofs that an entry is in it and that it only grew.

The tree is that of RFC 6962 over the ledger's entries (docs/protocol/ledger.md), its hash SHA-256.

Rules
1. A head is its payload. Whoever passes one on can add signatures beside those that count, or write the envelope in
   other bytes: a copy is the same head, and nothing that names or compares heads depends on which copy is at hand.
2. So a head names the one before it by the hash of that payload, `before`.
"""

import base64
import hashlib
from collections.abc import Callable, Collection
from typing import Annotated, NamedTuple

from msgspec import Meta

from echo2.p2p.envelope import decode_unverified
from echo2.p2p.errors import BadSignature, Malformed
from echo2.p2p.signatures import verifies
from echo2.p2p.wire_types import Count, Hash, Id, Milliseconds, Wire

MOST_HEADS = 16
"""Most heads per answer."""
MOST_ENTRIES = 32
"""Most entries per request."""
MOST_KEYS = 8
"""Most keys of entries per request."""
MOST_PROOF = 64
"""Most digests of a proof: a tree of 2^53 entries has shorter ones."""
MOST_LOGS = 16
"""Most restored logs per run: an answer has all of them."""
MOST_OUTCOME = 4096
"""Most bytes of a LeaseOutcome."""
MOST_SEALED = 16384
"""Most bytes of a sealed document of a restored log."""

Proof = Annotated[list[Hash], Meta(max_length=MOST_PROOF)]
SealedDocument = Annotated[bytes, Meta(max_length=MOST_SEALED)]


class LedgerHead(Wire, frozen=True):
    """coordinator (ledger) -> everyone. The ledger as it was at `issued`. `log`: the log's id: the run's, or that of a
    later log (protocol/restored_logs.py). `number`: 1, 2, 3, ... `size`: its entries. `root`: root of their
    tree. `tip`: hash of the last entry. `before`: SHA-256 of the payload of the head before;
    None: this is the first."""

    log: Hash
    number: Count
    size: Count
    root: Hash
    tip: Hash
    issued: Milliseconds
    before: Hash | None = None


class HeadReference(Wire, frozen=True):
    """The newest head that a node took. `hash`: SHA-256 of the sealed LedgerHead."""

    number: Count
    hash: Hash


class LedgerRequest(Wire, frozen=True):
    """anyone -> anyone, method "ledger", unsealed. Asks for the heads after number `after`; None: for the newest alone.
    `entries`: numbers of entries to prove in the tree of `size` entries. `leases`: leases that ended without an entry
    of their own, whose ends to prove in that tree. `keys`: idempotency keys of entries to prove there, where the number
    is not known: of an epoch's close, `epoch:7:closed`. `log`: the newest log that the client took; None: the first.
    `fork`: two sealed LedgerHeads, or two LogRestored, that contradict each other: the client shows them. `newest`: the
    newest head that the client took, which it tells the coordinator."""

    after: Count | None = None
    entries: Annotated[list[Count], Meta(max_length=MOST_ENTRIES)] = []
    size: Count = 0
    leases: Annotated[list[Id], Meta(max_length=MOST_ENTRIES)] = []
    keys: Annotated[list[Annotated[str, Meta(min_length=1, max_length=64)]], Meta(max_length=MOST_KEYS)] = []
    log: Hash | None = None
    fork: Annotated[list[SealedDocument], Meta(max_length=2)] = []
    newest: HeadReference | None = None


class GrownHead(Wire, frozen=True):
    """A sealed LedgerHead, and the consistency proof from the head before it. The newest head alone has none.
    `restored`: proof, for the first head of a later log, from the entries that its document restored."""

    sealed: Annotated[bytes, Meta(max_length=4096)]
    consistency: Proof = []
    restored: Proof = []


class EntryProof(Wire, frozen=True):
    """An entry and its audit path. `previous`: the hash of the entry before. `canonical`: the entry's bytes."""

    entry: Count
    previous: Hash
    canonical: bytes
    path: Proof


class EndProof(Wire, frozen=True):
    """The end of a lease without an entry of its own, and its audit path under the root that the entry `entry`
    (`leases.ended`) states. `outcome`: the encoded LeaseOutcome, leaf `index` of that tree."""

    entry: Count
    index: Count
    outcome: Annotated[bytes, Meta(max_length=MOST_OUTCOME)]
    path: Proof


class LedgerResponse(Wire, frozen=True):
    """anyone -> anyone, to "ledger". `heads`: heads in order. `proofs`: proofs of the entries asked for, as far as they
    are in the tree of that size, and fit. `ends`: ends of the leases asked for, all of one entry `leases.ended`, whose
    own proof is then the last of `proofs`. `every`: milliseconds between two heads; None: not told. `restored`: the
    sealed documents of the logs that follow the one asked with (protocol/restored_logs.py), in order; all of them where
    it is not known. `continued`: the consistency proof to the last one's `size` from the head with the number asked
    with, or with the least number that one of these documents names; without such a head, none. A node answers with
    heads and documents alone."""

    heads: Annotated[list[GrownHead], Meta(max_length=MOST_HEADS)] = []
    proofs: Annotated[list[EntryProof], Meta(max_length=MOST_ENTRIES + 1)] = []
    ends: Annotated[list[EndProof], Meta(max_length=MOST_ENTRIES)] = []
    every: Count | None = None
    restored: Annotated[list[SealedDocument], Meta(max_length=MOST_LOGS)] = []
    continued: Proof = []


def payload_hash(sealed: bytes) -> bytes:
    """Return the hash of a sealed document's payload, the same for each copy of it (rule 1). Raises `Malformed`."""
    return hashlib.sha256(decode_unverified(sealed).payload).digest()


def names(head: LedgerHead, sealed: bytes | None) -> bool:
    """Tell whether a head names another one, any copy of it, as the one before it (rule 2); None: whether it is the
    first. Raises `Malformed`."""
    if sealed is None:
        return head.before is None
    return head.before == payload_hash(sealed)


def log_name(log: bytes) -> str:
    """Return the name of a ledger among logs: the origin line of its checkpoints."""
    return f"echo2-ledger/{log.hex()}"


def checkpoint(head: LedgerHead) -> str:
    """Return a head as a checkpoint in text (C2SP tlog-checkpoint), unsigned."""
    return f"{log_name(head.log)}\n{head.size}\n{base64.b64encode(head.root).decode()}\n"


def signed_note(text: str, name: str, key: bytes, sign: Callable[[bytes], bytes]) -> str:
    """Return a text with its signature line (C2SP signed-note, Ed25519), as witnesses of transparency logs read it.
    `key`: the public key, 32 bytes."""
    signature = base64.b64encode(key_id(name, key) + sign(text.encode())).decode()
    return f"{text}\n— {name} {signature}\n"


def key_id(name: str, key: bytes) -> bytes:
    """Return the 4 bytes by which a signed note names an Ed25519 key."""
    return hashlib.sha256(name.encode() + b"\n\x01" + key).digest()[:4]


class SignedSize(NamedTuple):
    """A head in text, whose signature was verified."""

    origin: str
    size: int
    root: bytes


def open_checkpoint(note: str, log: bytes, keys: Collection[bytes]) -> SignedSize:
    """Return the checkpoint of a signed note, if one of `keys` signed it. `log`: the ledger's id. Raises `Malformed`,
    `BadSignature`."""
    text, _, signatures = note.partition("\n\n")
    text, name = f"{text}\n", log_name(log)
    fields = text.split("\n")
    if len(fields) < 4 or fields[0] != name:
        raise Malformed(f"it is no checkpoint of {name}")
    try:
        root = base64.b64decode(fields[2], validate=True)
    except ValueError as error:
        raise Malformed("the checkpoint's root is not in Base64") from error
    if not (fields[1].isascii() and fields[1].isdecimal() and len(fields[1]) < 16) or len(root) != 32:
        raise Malformed("the checkpoint has no size, or no root of 32 bytes")
    if not any(_is_signed(text, name, key, signatures) for key in keys):
        raise BadSignature("no ledger key of the newest Root signed the checkpoint")
    return SignedSize(name, int(fields[1]), root)


def _is_signed(text: str, name: str, key: bytes, signatures: str) -> bool:
    """Tell whether a key signed a note's text."""
    for signature in signatures.splitlines():
        prefix, encoded = signature[: len(name) + 3], signature[len(name) + 3 :]
        if prefix != f"— {name} ":
            continue
        try:
            data = base64.b64decode(encoded, validate=True)
        except ValueError:
            continue
        if data[:4] == key_id(name, key) and verifies(key, data[4:], text.encode()):
            return True
    return False
