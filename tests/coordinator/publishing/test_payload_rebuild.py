"""A dropped payload is rebuilt with its original bytes when a node requests it, and no other is."""

import asyncio
from pathlib import Path
from typing import Any

from echo2.coordinator.learner.messages import Export, ExportedEdge
from echo2.coordinator.publishing.payload_rebuild import REBUILT_KEPT_SECONDS, PayloadRebuilder
from echo2.p2p.handlers import Handlers
from echo2.p2p.wire_types import encode
from echo2.protocol.methods import REMAKE
from echo2.protocol.requests import DocumentsRequest
from echo2.weights.diff import encode as encode_diff
from echo2.weights.documents import Edge
from echo2.weights.snapshot import Snapshot
from tests.support.publishing import exports_of, publishing


async def requested(handlers: Handlers, *hashes: bytes) -> None:
    await handlers.answer(REMAKE.name, "a node", encode(DocumentsRequest(hashes=list(hashes))))


def exports_on_two_paths(folder: Path) -> list[Export]:
    """Write versions 0 to 2: a diff leads to each from the one before, and one from 0 to 2."""
    exports = exports_of(folder, 3)
    first, last = exports[0], exports[-1]
    encode_diff(Snapshot(Path(first.snapshot)), Snapshot(Path(last.snapshot)), folder / "anchor.edge")
    last.edges.append(ExportedEdge(base=0, base_root=first.root, payload=str(folder / "anchor.edge")))
    return exports


async def test_a_dropped_payload_is_rebuilt_with_the_same_bytes_and_served(tmp_path: Path) -> None:
    now = [0.0]
    with publishing(tmp_path) as (publisher, store):
        for one in exports_on_two_paths(tmp_path):
            await publisher.publish(1, one.version, one)
        (edge,) = (edge for edge in publisher.stored.payloads() if edge.base == 1)
        path = publisher.stored.payloads()[edge]
        original = path.read_bytes()
        store.drop_file(path)
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
        again = publisher.payload(edge)
        assert again.read_bytes() == original
        assert rebuilder.recent() == {edge.payload_hash}
        now[0] = REBUILT_KEPT_SECONDS
        assert rebuilder.recent() == set()
        running.cancel()


async def test_a_payload_to_weights_that_nothing_else_leads_to_is_not_rebuilt(tmp_path: Path) -> None:
    with publishing(tmp_path) as (publisher, store):
        for one in exports_on_two_paths(tmp_path):
            await publisher.publish(1, one.version, one)
        (lost,) = (edge for edge in publisher.edges.values() if edge.base == 0 and edge.version == 1)
        path = publisher.payload(lost)
        assert path is not None
        store.drop_file(path)
        rebuilder: Any = PayloadRebuilder(
            store, Handlers(), edges=lambda: list(publisher.edges.values()), clock=lambda: 0.0
        )
        assert lost.payload_hash not in rebuilder.possible(), "version 1 is gone"
        (behind,) = (edge for edge in publisher.edges.values() if edge.base == 1)
        assert behind.payload_hash not in rebuilder.possible(), "and so is what starts there"
        (full,) = (edge for edge in publisher.edges.values() if edge.base is None)
        assert full.payload_hash in rebuilder.possible()
