"""The publisher answers requests for documents in order, and bounds the answer."""

from pathlib import Path

import pytest

from p2p.handlers import Handlers
from p2p.wire_types import decode, encode
from protocol import document_service
from protocol.requests import DocumentsRequest, DocumentsResponse
from tests.support.publishing import NoPeers, network_of, publishing


async def asked(folder: Path, documents: list[bytes], order: list[int]) -> list[bytes | None]:
    """Return the answer to a request for `documents` by their indices."""
    handlers = Handlers()
    with publishing(folder, network=network_of(NoPeers(), handlers)) as (_, store):
        hashes = [store.put_document("version", 1, number, data) for number, data in enumerate(documents)]
        request = encode(DocumentsRequest(hashes=[hashes[place] for place in order]))
        return decode(await handlers.answer("documents", "a node", request), DocumentsResponse).documents


async def test_documents_come_in_the_order_asked(tmp_path: Path) -> None:
    assert await asked(tmp_path, [b"a", b"b", b"c"], [2, 0, 2]) == [b"c", b"a", b"c"]


async def test_an_answer_is_bounded_however_often_a_long_document_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_service, "ANSWER_BYTES", 250)
    long, short = b"x" * 100, b"y"
    answer = await asked(tmp_path, [long, short], [0, 0, 0, 0, 1])
    assert answer == [long, long, None, None, short]
