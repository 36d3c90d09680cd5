"""The request for the document of a restored log, and its signing where the root keys are. Pure.

Rules
1. A request has every Root and the unsigned document. Neither it nor the answer, the sealed document, is secret.
2. The signer signs only what follows from the request alone: the Roots are a chain, the head shown is one that the
   ledger's key signed, of this run, and the document restores no more entries than it covers. A person sees the rest.
3. Signatures of several root keys are added to one answer, until the newest Root's threshold is there.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.run.carried_files import answers, join_answers
from echo2.p2p.envelope import seal
from echo2.p2p.errors import PeerFault
from echo2.p2p.identity import public_bytes
from echo2.p2p.wire_types import decode
from echo2.protocol import root_chain
from echo2.protocol.authority import Root, open_kept
from echo2.protocol.restored_logs import KIND, LogRestored
from echo2.protocol.root_chain import ROOT, Untrusted
from echo2.runtime.figures import number_of
from echo2.runtime.units import second


class LogRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to sign a document. `roots`: every Root, sealed, oldest first. `document`: encoded, unsigned."""

    format: Literal["echo2-log-request/1"] = "echo2-log-request/1"
    roots: list[bytes]
    document: bytes


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
    if earlier is None or not answers(earlier, asked.document):
        return sealed
    return join_answers([earlier, sealed], root.roles[ROOT].keys)
