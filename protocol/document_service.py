"""The answers to `documents` and `head`: what any peer of a run serves to any other. Pure.

Rules
1. An answer is bounded: `ANSWER_BYTES` of documents in all. What exceeds it is None, and may be asked for again.
2. Neither answer needs authority: a document is named by its hash, and Heads and Roots are signed.
"""

from collections.abc import Callable, Mapping
from typing import Final

from p2p.errors import Malformed
from p2p.wire_types import decode
from protocol.requests import DocumentsRequest, DocumentsResponse
from protocol.versions import HeadRequest, HeadResponse

ANSWER_BYTES: Final = 48 << 20


def documents(ask: DocumentsRequest, find: Callable[[bytes], bytes | None]) -> DocumentsResponse:
    """Return the documents asked for, in their order. `find`: a document by its hash, None where it is not here."""
    room, kept = ANSWER_BYTES, list[bytes | None]()
    for digest in ask.hashes:
        document = find(digest)
        if document is not None and len(document) > room:
            document = None
        room -= len(document or b"")
        kept.append(document)
    return DocumentsResponse(documents=kept)


def head_ask(question: bytes) -> HeadRequest:
    """Return the question. One that does not decode asks for no Roots: programs from before that field may send
    anything."""
    try:
        return decode(question, HeadRequest)
    except Malformed:
        return HeadRequest()


def head(ask: HeadRequest, newest: bytes | None, roots: Mapping[int, bytes]) -> HeadResponse:
    """Return the newest Head, and the Roots behind the one that the asker holds. `newest`: sealed. `roots`: sealed, all
    of them by their serials, in order."""
    serial_known = ask.root_serial
    later = [] if serial_known is None else [sealed for serial, sealed in roots.items() if serial > serial_known]
    return HeadResponse(head=newest, roots=later)
