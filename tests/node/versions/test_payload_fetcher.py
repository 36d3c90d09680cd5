"""Payloads over slow connections, from silent peers."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest
from structlog.testing import capture_logs

from echo2.node.versions.payload_fetcher import FETCH_PATIENCE, PayloadFetcher
from echo2.p2p.envelope import Verified
from echo2.p2p.payload_manifest import Manifest
from echo2.protocol.versions import manifest_of_edge
from echo2.runtime.bottom_line import BottomLine
from echo2.weights.documents import Edge
from tests.support import bigram
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import FakeCoordinator, Node, until
from tests.support.small_run import SmallRun
from tests.support.swarm import working
from tests.support.text_terminal import TextTerminal


@on_fake_clock
@pytest.mark.slow
async def test_a_slow_connection_is_not_a_stalled_one(small_run: SmallRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The payload takes three times the patience, and no attempt is abandoned."""
    monkeypatch.setattr("tests.support.fake_coordinator.random_table", lambda seed: bigram.random_table(seed, 768))
    coordinator = small_run.coordinator
    async with small_run.serving():
        ((_, edge, _),) = coordinator.edges
        small_run.network.set_uplink(coordinator.peer_id, edge.length / (3 * FETCH_PATIENCE))
        node = small_run.node()
        async with working(node):
            began = anyio.current_time()
            await until(lambda: node.daemon.engine.current, 10 * FETCH_PATIENCE)
            assert anyio.current_time() - began > 2.5 * FETCH_PATIENCE
            assert node.daemon.follower.refused == []


class SlowExchange:
    """An exchange over a line of 1 kB/s."""

    async def traffic(self) -> SimpleNamespace:
        return SimpleNamespace(received=int(1000 * anyio.current_time()))


@on_fake_clock
async def test_behind_a_slow_line_the_log_has_no_lines_for_ever_on_what_is_fetched() -> None:
    fetcher = PayloadFetcher(SlowExchange(), *[None] * 4, coordinator=lambda: None)  # type: ignore[arg-type]
    with capture_logs() as logs:
        for version in range(20):
            edge = SimpleNamespace(era=1, version=version, length=45_000)
            await fetcher._wait_while_progressing(asyncio.ensure_future(anyio.sleep(45)), edge, 0)  # type: ignore[arg-type]
            fetcher._count(edge)  # type: ignore[arg-type]
    levels = [one["log_level"] for one in logs if one["event"].startswith("fetching version")]
    first, later = levels[:3], levels[3:]
    assert first == ["info"] * 3, "the first download is reported every 10 s"
    assert (len(later), later.count("info")) == (57, 2), "20 downloads take 900 s"


@on_fake_clock
async def test_on_a_terminal_the_first_download_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = TextTerminal()
    monkeypatch.setattr("echo2.node.versions.payload_fetcher.BOTTOM", BottomLine(terminal))
    fetcher = PayloadFetcher(SlowExchange(), *[None] * 4, coordinator=lambda: None)  # type: ignore[arg-type]
    edge = SimpleNamespace(era=1, version=0, length=45_000)
    fetching, before = asyncio.ensure_future(anyio.sleep(45)), int(1000 * anyio.current_time())
    with capture_logs() as logs:
        await fetcher._wait_while_progressing(fetching, edge, before)  # type: ignore[arg-type]
    assert logs == []
    shown = terminal.getvalue().split("\r\x1b[K")
    assert "version 0 [#############.......] 66 % of 0.0 MB, 0.0 MB/s, 15 s left" in shown
    assert shown[-1] == "", "nothing is left of it"


@on_fake_clock
async def test_a_fetch_without_a_sender_is_abandoned_with_a_reason(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    async with small_run.serving() as peer:
        ((_, edge, path),) = coordinator.edges
        await peer.unshare(edge.payload_hash)
        node = small_run.node()
        async with working(node):
            await until(lambda: node.daemon.follower.refused, 2 * FETCH_PATIENCE)
            (reason,) = node.daemon.follower.refused
            assert f"no chunk of the payload for version 0 ({edge.length} bytes)" in reason
            assert "from 1 connected peers" in reason
            await peer.share(_manifest(coordinator), path)
            await until(lambda: node.daemon.engine.current, 2 * FETCH_PATIENCE)
            await until(lambda: not node.daemon.follower.trouble)


async def _fetched(small_run: SmallRun, node: Node) -> Verified[Edge]:
    """Return the Edge of version 0, whose payload is neither on this disk nor served."""
    store, ((_, edge, _),) = node.daemon.context.store, small_run.coordinator.edges
    await until(lambda: node.daemon.engine.current)
    path = store.payload(edge.payload_hash)
    assert path is not None
    await node.daemon.payloads._exchange.unshare(edge.payload_hash)
    store.drop_file(path)
    (verified,) = node.daemon.follower._stored_edges()
    return verified


@on_fake_clock
async def test_a_payload_that_a_cancelled_fetch_has_stored_is_served_by_the_next(
    small_run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with small_run.working() as node:
        edge, exchange = await _fetched(small_run, node), node.daemon.payloads._exchange
        shared: list[Path] = []
        share = exchange.share

        async def cut(manifest: Manifest, path: Path) -> None:
            raise asyncio.CancelledError

        async def told(manifest: Manifest, path: Path) -> None:
            shared.append(path)
            await share(manifest, path)

        monkeypatch.setattr(exchange, "share", cut)
        with pytest.raises(asyncio.CancelledError):
            await node.daemon.payloads.get(edge)
        monkeypatch.setattr(exchange, "share", told)
        assert await node.daemon.payloads.get(edge) in shared


@on_fake_clock
async def test_a_stored_payload_that_the_disk_has_damaged_is_fetched_again(small_run: SmallRun) -> None:
    async with small_run.working() as node:
        edge, fetcher = await _fetched(small_run, node), node.daemon.payloads
        path = await fetcher.get(edge)
        sound = path.read_bytes()
        await node.daemon.payloads._exchange.unshare(edge.value.payload_hash)  # as after a restart
        path.write_bytes(bytes(len(sound)))
        assert (await fetcher.get(edge)).read_bytes() == sound


def _manifest(coordinator: FakeCoordinator) -> Manifest:
    return manifest_of_edge(coordinator.edges[-1][1])
