"""Measured uplinks against the rates that the test sets: the shipped broadcast, acknowledgements and statistics."""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from benchmarks.memory_network.transport import MemoryNetwork
from echo2.coordinator.metrics.broadcast_stats import BroadcastStats
from echo2.node.versions.acknowledgements import Acknowledger
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.peer.peer import Peer
from echo2.protocol.broadcast_messages import Acknowledgement
from tests.support.clock import run_fake
from tests.support.peers import payload_file, peers

MB = 1_000_000


def now() -> int:
    return int(1000 * anyio.current_time())


async def take(peer: Peer, manifest: Manifest, path: Path, stats: BroadcastStats, *, last: str | None = None) -> None:
    """Fetch a payload as a node does, and acknowledge it to `stats`. `last`: the peer asked last."""
    told = anyio.Event()

    async def tell(make: Callable[[], Acknowledgement]) -> None:
        stats.on_acknowledgement(peer.peer_id, make(), now(), here_since=0, admitted=True)
        told.set()

    acknowledger = Acknowledger(tell)
    acknowledger.on_message(1, 1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(acknowledger.run)
        acknowledger.on_payload(manifest.hash, await peer.fetch(manifest, path, fallback=last))
        acknowledger.on_version_load(1, 1, {manifest.hash})
        await told.wait()
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("readers", [1, 2, 4])
@pytest.mark.slow_but("1", "2")
def test_a_source_is_measured_at_its_uplink_whatever_the_number_of_those_it_feeds(tmp_path: Path, readers: int) -> None:
    manifest = payload_file(tmp_path / "payload", 3 * MB)

    async def main() -> dict[str, float]:
        network, stats = MemoryNetwork(1), BroadcastStats()
        network.set_uplink("source", 2 * MB)
        async with peers(network, "source", *[f"n{n}" for n in range(readers)], connect=False) as (source, *nodes):
            await source.share(manifest, tmp_path / "payload")
            for node in nodes:  # a star: the nodes are not connected with each other
                await node.dial(await source.addresses())
            stats.on_announcement(1, 1, now())
            async with anyio.create_task_group() as tasks:
                for node in nodes:
                    tasks.start_soon(take, node, manifest, tmp_path / node.peer_id, stats)
        return stats.uplinks()

    assert run_fake(main) == {"source": pytest.approx(2 * MB, rel=0.15)}


@pytest.mark.slow
def test_a_swarm_measures_strong_and_weak_uplinks(tmp_path: Path) -> None:
    manifest = payload_file(tmp_path / "payload", 8 * MB)
    lines = {"source": 2 * MB, "strong": 8 * MB, "weak": MB // 4, "other": MB}

    async def main() -> tuple[dict[str, float], BroadcastStats]:
        network, stats = MemoryNetwork(1), BroadcastStats()
        for name, uplink in lines.items():
            network.set_uplink(name, uplink)
        async with peers(network, *lines) as (source, *nodes):
            await source.share(manifest, tmp_path / "payload")
            stats.on_announcement(1, 1, now())
            async with anyio.create_task_group() as tasks:
                for node in nodes:
                    fetch = (node, manifest, tmp_path / node.peer_id, stats)
                    tasks.start_soon(lambda args=fetch: take(*args, last="source"))
        return stats.uplinks(), stats

    uplinks, stats = run_fake(main)
    assert uplinks["source"] == pytest.approx(lines["source"], rel=0.3)
    for name, learnt in uplinks.items():  # never more than the uplink, apart from the rounding of its time slots
        assert learnt < 1.3 * lines[name], name
    assert uplinks["strong"] > 2 * uplinks.get("weak", 0.0)
    view = stats.view("source")
    assert {take.node for take in view.takes} == {"strong", "weak", "other"}
    assert all(sum(feed.nbytes for feed in take.feeds) == 8 * MB for take in view.takes)
