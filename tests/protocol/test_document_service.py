"""The answers to `documents` and `head`: complete, in order, and bounded."""

import pytest

from echo2.protocol import document_service
from echo2.protocol.requests import DocumentsRequest
from echo2.protocol.versions import HeadRequest

ROOTS = {serial: b"sealed Root %d" % serial for serial in (1, 2, 3)}


@pytest.mark.parametrize(("held", "expected"), [(0, [1, 2, 3]), (1, [2, 3]), (2, [3]), (3, []), (1 << 50, [])])
def test_a_peer_receives_the_roots_after_the_one_that_it_holds(held: int, expected: list[int]) -> None:
    answer = document_service.head(HeadRequest(root_serial=held), b"head", ROOTS)
    assert (answer.head, answer.roots) == (b"head", [ROOTS[serial] for serial in expected])


def test_a_request_that_names_no_root_receives_none() -> None:
    assert document_service.head(HeadRequest(), b"head", ROOTS).roots == []


def test_documents_come_in_the_order_of_their_hashes_and_an_unknown_one_is_none() -> None:
    known = {b"a" * 32: b"first", b"b" * 32: b"second"}
    request = DocumentsRequest(hashes=[b"b" * 32, b"x" * 32, b"a" * 32])
    assert document_service.documents(request, known.get).documents == [b"second", None, b"first"]


def test_an_answer_leaves_out_documents_beyond_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_service, "ANSWER_BYTES", 10)
    known = {b"a" * 32: bytes(6), b"b" * 32: bytes(5), b"c" * 32: bytes(4)}
    answer = document_service.documents(DocumentsRequest(hashes=list(known)), known.get)
    assert answer.documents == [bytes(6), None, bytes(4)]


def test_a_hash_that_is_named_twice_is_answered_once() -> None:
    looked = list[bytes]()

    def find(digest: bytes) -> bytes:
        looked.append(digest)
        return b"document"

    request = DocumentsRequest(hashes=[b"a" * 32, b"a" * 32, b"b" * 32, b"a" * 32])
    assert document_service.documents(request, find).documents == [b"document", None, b"document", None]
    assert looked == [b"a" * 32, b"b" * 32]
