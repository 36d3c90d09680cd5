"""Two hundred nodes in one process: the product's peers, swarm and planner, in memory, on a fake clock."""

from pathlib import Path
from random import Random

import anyio
import pytest

from benchmarks.memory_network.transport import Link, MemoryNetwork
from echo2.p2p.peer.peer import Peer
from echo2.p2p.plan.repair import Planner
from echo2.p2p.plan.trees import LinkCapacity, PayloadSize, lower_bound
from tests.support.clock import run_fake
from tests.support.peers import payload_file, running

NODES, DYING, OTHERS = 200, 60, 4
SIZE = 1 << 19
UPLINK = 250_000.0
"""Bytes per second of each uplink."""
SETTLE = 1.0
"""Seconds until the coordinator has planned anew."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dying", "most", "copies"), [(0, 1.25, 1.05), (DYING, 8.0, 8.0)], ids=["all stay", "sixty die"]
)
def test_two_hundred_nodes_take_a_payload_by_the_plan(dying: int, most: float, copies: float, tmp_path: Path) -> None:
    manifest = payload_file(tmp_path / "payload", SIZE)
    names = [f"n{number}" for number in range(NODES)]
    lines = dict.fromkeys(names, LinkCapacity(UPLINK, latency=0.01))
    planner, load = Planner("source", 1), PayloadSize(manifest.length, manifest.chunk_size)
    planner.update(UPLINK, lines, load)
    best = lower_bound(UPLINK, lines.values(), SIZE)
    lost = set(Random(1).sample(names, dying))
    living = set(names) - lost
    times: dict[str, float] = {}
    complete = anyio.Event()

    async def fetch(node: Peer) -> None:
        start = anyio.current_time()
        await node.fetch(manifest, tmp_path / node.peer_id, fallback="source")
        times[node.peer_id] = anyio.current_time() - start
        if times.keys() >= living:
            complete.set()

    async def main() -> None:
        network = MemoryNetwork(1, link=Link(delay=0.01))
        source, *nodes = [
            Peer(network.transport(name), seed=seed, uplink=UPLINK) for seed, name in enumerate(("source", *names))
        ]
        at = {peer.peer_id: peer for peer in (source, *nodes)}

        async def placed(node: Peer) -> None:
            parents = planner.plan.parents[node.peer_id]
            for other in dict.fromkeys(parents):
                await node.dial(await at[other].addresses())
            await node.follow(parents)

        async with running(source, *nodes, connect=False), anyio.create_task_group() as tasks:
            await source.share(manifest, tmp_path / "payload")
            for number, node in enumerate(nodes):
                some = Random(number).sample([name for name in names if name != node.peer_id], OTHERS)
                for other in ("source", *some):
                    await node.dial(await at[other].addresses())
                await placed(node)
            for node in nodes:
                tasks.start_soon(fetch, node)
            await anyio.sleep(best / 2)
            assert not times
            for name in sorted(lost):
                network.kill(name)
            await anyio.sleep(SETTLE)
            planner.update(UPLINK, {name: lines[name] for name in names if name in living}, load)
            async with anyio.create_task_group() as placing:
                for name in sorted(living):
                    placing.start_soon(placed, at[name])
            with anyio.fail_after(100 * best):
                await complete.wait()
            assert max(times[name] for name in living) < most * best
            assert (await source.traffic()).sent < copies * SIZE
            tasks.cancel_scope.cancel()

    run_fake(main)
    for name in living:
        assert (tmp_path / name).read_bytes() == (tmp_path / "payload").read_bytes()
