"""The request for the document of a restored log, and its signing where the root keys are. Pure.

Rules
1. A request has every Root and the unsigned document. Neither it nor the answer, the sealed document, is secret.
2. The signer signs only what follows from the request alone: the Roots are a chain, the head shown is one that the
   ledger's key signed, of this run, and the document restores no more entries than it covers. A person sees the rest.
3. Signatures of several root keys are added to one answer, until the newest Root's threshold is there.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.run.keys import spaced_fingerprint
from echo2.p2p.envelope import decode_unverified, join, seal, signers
from echo2.p2p.errors import PeerFault
from echo2.p2p.identity import public_bytes
from echo2.p2p.wire_types import decode
from echo2.protocol import root_chain
from echo2.protocol.authority import Root, open_kept
from echo2.protocol.restored_logs import KIND, LogRestored
from echo2.protocol.root_chain import ROOT, Untrusted
from echo2.runtime.errors import LocalFault
from echo2.runtime.figures import number_of
from echo2.runtime.units import second

MOST_BYTES: Final = 4 << 20
"""The largest request or answer, in bytes."""


class LogRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to sign a document. `roots`: every Root, sealed, oldest first. `document`: encoded, unsigned."""

    format: Literal["echo2-log-request/1"] = "echo2-log-request/1"
    roots: list[bytes]
    document: bytes


def read(data: bytes, name: str) -> LogRequest:
    """Decode a request. `name`: the file's name for the message. Raises `LocalFault`."""
    try:
        return msgspec.msgpack.decode(data, type=LogRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LocalFault(f"{name} is no request for a log: name the file that `keys request-log` wrote") from error


def check_log_request(asked: LogRequest) -> tuple[Root, LogRestored]:
    """Check a request by rule 2; return the newest Root and the document. Raises `Untrusted`."""
    chain = root_chain.check_chain(asked.roots)
    try:
        document = decode(asked.document, LogRestored)
        open_kept(document.head, "ledgerhead", chain)
        known = document.known
    except PeerFault as error:
        raise Untrusted(f"the request shows no head of this run, or is damaged: {error}: not signed") from error
    if known.size < document.size or known.number < document.number:
        raise Untrusted(
            f"the head shown covers {known.size} of {number_of(document.size, 'entry')}: nothing was lost, not signed"
        )
    return chain[-1], document


def describe_log(root: Root, document: LogRestored) -> list[str]:
    """Describe a document for the person who signs, one line per fact."""
    known = document.known
    entries = number_of(document.size, "entry")
    return [
        f"run      {root.run.hex()}",
        f"log      {document.serial}, after the log {document.old.hex()[:16]}",
        f"restored {entries} and {number_of(document.number, 'head')} of a copy, on {second(document.restored)}",
        f"root     {document.root.hex()}",
        f"known    head {known.number} over {number_of(known.size, 'entry')}, which nodes hold",
        f"WARNING  lost: {number_of(known.size - document.size, 'entry')} or more, whose receipts become claims",
    ]


def sign_log(asked: LogRequest, given: Sequence[Ed25519PrivateKey], earlier: bytes | None = None) -> bytes:
    """Sign the document, and add the signatures to those of `earlier` (rule 3). Raises `Untrusted`."""
    root, _ = check_log_request(asked)
    if not given or not {public_bytes(key) for key in given} <= set(root.roles[ROOT].keys):
        raise Untrusted(f"these are no root keys of Root {root.serial}")
    sealed = seal(KIND, root.run, asked.document, *given)
    return sealed if earlier is None or not answers(earlier, asked) else join_log_answers([earlier, sealed], root)


def answers(sealed: bytes, asked: LogRequest) -> bool:
    try:
        return decode_unverified(sealed).payload == asked.document
    except PeerFault:
        return False


def join_log_answers(sealed: Sequence[bytes], root: Root) -> bytes:
    """Return one document with the signatures of several answers to one request. Raises `Untrusted`."""
    try:
        return join(sealed, root.roles[ROOT].keys)
    except PeerFault as error:
        raise Untrusted(f"these answers are not to one request: {error}") from error


def missing(sealed: bytes, root: Root) -> str:
    """Return which signatures are missing, as a sentence; empty: the answer is complete. Raises `Malformed`."""
    role = root.roles[ROOT]
    good = signers(sealed, role.keys)
    if len(good) >= role.threshold:
        return ""
    others = ", ".join(spaced_fingerprint(key) for key in role.keys if key not in good)
    return f"{len(good)} of {role.threshold} required signatures of the root keys; not yet: {others}"
