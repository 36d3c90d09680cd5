"""Payloads that the coordinator dropped under its budget are rebuilt for late joiners."""

from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from echo2.p2p.handlers import MethodHandler
from echo2.p2p.wire_types import encode
from echo2.protocol.requests import DocumentsRequest
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.swarm import accepted, make_swarm, working


@pytest.mark.slow
@on_fake_clock
async def test_a_late_joiner_gets_a_dropped_payload_that_is_rebuilt(tmp_path: Path) -> None:
    swarm = make_swarm(tmp_path)
    async with swarm.coordinating() as coordinator:
        first = swarm.node("first")
        async with working(first):
            await until(lambda: coordinator.publisher.latest.version >= 3, 600)
        store = swarm.store
        before = {file.hash: file.path.read_bytes() for file in store.payloads()}
        await coordinator.publisher.retain(coordinator.group_service.oldest_needed(), 1 << 30, 0)
        latest = coordinator.publisher.latest.version
        (last,) = [file for file in store.payloads() if file.version == latest]
        await coordinator.publisher._exchange.unshare(last.hash)
        store.drop_file(last.path)
        kept = {file.hash for file in store.payloads()}
        assert {file.version for file in store.snapshots()} == {latest}
        late = swarm.node("late")
        async with working(late):
            await until(lambda: late.daemon.engine.current and accepted(late) >= 1, 600)
        payloads = {file.hash: file.path.read_bytes() for file in store.payloads()}
        again = payloads.keys() - kept
        assert {before[digest] for digest in again & before.keys()} == {payloads[d] for d in again & before.keys()}
        assert last.hash in again
        await coordinator.publisher.retain(coordinator.group_service.oldest_needed(), 1 << 30, 0)
        assert again <= {file.hash for file in store.payloads()}, "who asked for it may still be fetching"


@on_fake_clock
async def test_payloads_through_which_versions_are_read_are_kept_and_unknown_peers_cost_nothing(
    tmp_path: Path, handlers: dict[str, MethodHandler]
) -> None:
    swarm = make_swarm(tmp_path)
    async with swarm.coordinating() as coordinator:
        first = swarm.node("first")
        async with working(first):
            await until(lambda: coordinator.publisher.latest.version >= 2, 600)
        store = swarm.store
        await coordinator.publisher.retain(coordinator.group_service.oldest_needed(), 1 << 30, 0)
        assert {0, 1} <= {file.version for file in store.payloads()}
        with capture_logs() as logs:
            await handlers["remake"]("stranger", encode(DocumentsRequest(hashes=[bytes(32)])))
            await anyio.sleep(5)
        assert not [line for line in logs if line["event"] in ("payload made again", "payload rebuild failed")]
