"""The answers to the methods `documents` and `head`, which any peer of a run serves to any other. Pure.

Rules
1. An answer holds at most `ANSWER_BYTES` of documents. A document beyond that is None and may be requested again.
   A document whose hash is named twice is answered once, at its first place: an answer costs no more than what it
   holds.
2. Neither answer needs authority: a document is named by its hash, and Heads and Roots are signed.
"""

from collections.abc import Callable, Mapping
from typing import Final

from echo2.protocol.requests import DocumentsRequest, DocumentsResponse
from echo2.protocol.versions import HeadRequest, HeadResponse

ANSWER_BYTES: Final = 48 << 20


def documents(request: DocumentsRequest, find: Callable[[bytes], bytes | None]) -> DocumentsResponse:
    """Return the requested documents, in their order. `find`: returns a document by its hash, None where absent."""
    room, answers, answered = ANSWER_BYTES, list[bytes | None](), set[bytes]()
    for digest in request.hashes:
        document = None if digest in answered else find(digest)
        answered.add(digest)
        if document is not None and len(document) > room:
            document = None
        room -= len(document or b"")
        answers.append(document)
    return DocumentsResponse(documents=answers)


def head(request: HeadRequest, newest: bytes | None, roots: Mapping[int, bytes]) -> HeadResponse:
    """Return the newest Head, and the Roots after the one that the requester holds. `newest`: sealed. `roots`: all of
    them, sealed, by their serials in order."""
    serial_known = request.root_serial
    later = [] if serial_known is None else [sealed for serial, sealed in roots.items() if serial > serial_known]
    return HeadResponse(head=newest, roots=later)
