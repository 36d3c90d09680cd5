"""A dropped payload is rebuilt with its original bytes when a node requests it, and no other is."""

import asyncio
from pathlib import Path
from typing import Any

from echo2.coordinator.publishing.payload_rebuild import KEPT, PayloadRebuilder
from echo2.p2p.handlers import Handlers
from echo2.p2p.wire_types import encode
from echo2.protocol.methods import REMAKE
from echo2.protocol.requests import DocumentsRequest
from echo2.weights.documents import Edge
from tests.support.publishing import exports_of, publishing


async def requested(handlers: Handlers, *hashes: bytes) -> None:
    await handlers.answer(REMAKE.name, "a node", encode(DocumentsRequest(hashes=list(hashes))))


async def test_a_dropped_payload_is_rebuilt_with_the_same_bytes_and_served(tmp_path: Path) -> None:
    now = [0.0]
    with publishing(tmp_path) as (publisher, store):
        for one in exports_of(tmp_path, 3):
            await publisher.publish(1, one.version, one)
        (edge,) = (edge for edge in publisher.payloads() if edge.base is None)
        original = publisher.payloads()[edge].read_bytes()
        await publisher.retain((1, 2), 1 << 30, 0)
        assert publisher.payload(edge) is None
        handlers, shared = Handlers(), asyncio.Queue[list[Edge]]()
        rebuilder = PayloadRebuilder(
            store, handlers, edges=lambda: list(publisher.edges.values()), clock=lambda: now[0]
        )
        assert edge.payload_hash in rebuilder.possible()
        running = asyncio.create_task(rebuilder.run(shared.put))
        await requested(handlers, bytes(32), edge.payload_hash)
        async with asyncio.timeout(60):
            assert await shared.get() == [edge]
        path = publisher.payload(edge)
        assert path is not None
        assert path.read_bytes() == original
        assert rebuilder.recent() == {edge.payload_hash}
        now[0] = KEPT
        assert rebuilder.recent() == set()
        running.cancel()


async def test_a_payload_without_its_snapshots_and_an_unknown_one_are_not_rebuilt(tmp_path: Path) -> None:
    with publishing(tmp_path) as (publisher, store):
        for one in exports_of(tmp_path, 3):
            await publisher.publish(1, one.version, one)
        await publisher.retain((1, 2), 1 << 30, 0)
        handlers = Handlers()
        rebuilder: Any = PayloadRebuilder(
            store, handlers, edges=lambda: list(publisher.edges.values()), clock=lambda: 0.0
        )
        (lost,) = (edge for edge in publisher.edges.values() if edge.base == 1)
        assert lost.payload_hash not in rebuilder.possible(), "the snapshot of version 1 is dropped"
        (full,) = (edge for edge in publisher.edges.values() if edge.base is None)
        assert full.payload_hash in rebuilder.possible()
