"""The publisher answers requests for documents in order, and bounds the answer."""

from pathlib import Path

import pytest

from echo2.p2p.handlers import Handlers
from echo2.p2p.wire_types import decode, encode
from echo2.protocol import document_service
from echo2.protocol.requests import DocumentsRequest, DocumentsResponse
from tests.support.publishing import NoPeers, network_of, publishing


async def asked(folder: Path, documents: list[bytes], order: list[int]) -> list[bytes | None]:
    """Return the answer to a request for `documents` by their indices."""
    handlers = Handlers()
    with publishing(folder, network=network_of(NoPeers(), handlers)) as (_, store):
        hashes = [store.put_document("version", 1, number, data) for number, data in enumerate(documents)]
        request = encode(DocumentsRequest(hashes=[hashes[place] for place in order]))
        return decode(await handlers.answer("documents", "a node", request), DocumentsResponse).documents


async def test_documents_come_in_the_order_asked_each_once(tmp_path: Path) -> None:
    assert await asked(tmp_path, [b"a", b"b", b"c"], [2, 0, 2]) == [b"c", b"a", None]


async def test_an_answer_is_bounded_however_often_a_long_document_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_service, "ANSWER_BYTES", 250)
    first, second, third, short = b"x" * 100, b"y" * 100, b"z" * 100, b"short"
    answer = await asked(tmp_path, [first, second, third, short], [0, 1, 0, 2, 3])
    assert answer == [first, second, None, None, short]
