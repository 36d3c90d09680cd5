"""What the publisher answers to anybody who asks for documents."""

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.publishing.publisher import Publisher, Signing
from p2p.handlers import Handlers
from p2p.wire_types import decode, encode
from protocol import document_service
from protocol.requests import DocumentsRequest, DocumentsResponse
from weights.store import Store


async def no_addresses() -> list[str]:
    return []


async def asked(tmp_path: Path, documents: list[bytes], order: list[int]) -> list[bytes | None]:
    """What comes back for `documents`, asked by their places in the list."""
    handlers, key = Handlers(), Ed25519PrivateKey.generate()
    nobody: Any = None
    signing = Signing(run=bytes(32), policy=key, channel=key, root_serial=1)
    with Store(tmp_path / "store") as store:
        hashes = [store.put_document("version", 1, number, data) for number, data in enumerate(documents)]
        head_file = tmp_path / "head"
        Publisher(
            signing, store, handlers, nobody, nobody, head_file=head_file, addresses=no_addresses, clock=lambda: 0.0
        )
        ask = encode(DocumentsRequest(hashes=[hashes[place] for place in order]))
        return decode(await handlers.answer("documents", "anybody", ask), DocumentsResponse).documents


async def test_documents_come_in_the_order_asked(tmp_path: Path) -> None:
    assert await asked(tmp_path, [b"a", b"b", b"c"], [2, 0, 2]) == [b"c", b"a", b"c"]


async def test_an_answer_is_bounded_however_often_a_long_document_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_service, "ANSWER_BYTES", 250)
    long, short = b"x" * 100, b"y"
    answer = await asked(tmp_path, [long, short], [0, 0, 0, 0, 1])
    assert answer == [long, long, None, None, short]
