"""Broadcasts that follow a plan, and plans that fail in practice: in memory, on a fake clock."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest

from benchmarks.memory_network.transport import Link, MemoryNetwork
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.peer.peer import Peer
from echo2.p2p.plan.trees import LinkCapacity, PayloadSize, Plan, build, lower_bound
from tests.support.clock import run_fake, run_fake_trio
from tests.support.peers import payload_file, peers, running

MB = 1_000_000
SIZE = 2 * MB


def names(number: int) -> list[str]:
    return [f"node{index}" for index in range(number)]


def planned(number: int, manifest: Manifest, uplink: float = MB) -> tuple[Plan, float]:
    """Return (plan, T*) for `number` equal nodes fed by "a"."""
    lines = {name: LinkCapacity(uplink, latency=0.02) for name in names(number)}
    plan = build("a", uplink, lines, PayloadSize(manifest.length, manifest.chunk_size), 1)
    return plan, lower_bound(uplink, lines.values(), manifest.length)


def capped(number: int) -> AbstractAsyncContextManager[list[Peer]]:
    """Run the coordinator "a" and `number` nodes, all with the same limit on their uplink."""
    return peers(MemoryNetwork(1, link=Link(delay=0.02)), "a", *names(number), uplink=MB)


async def spread(
    nodes: list[Peer],
    manifest: Manifest,
    folder: Path,
    parents: Mapping[str, tuple[str, ...]],
    *,
    last: str | None = "a",
) -> dict[str, float]:
    """Fetch at all nodes; return the seconds of each fetch that ended."""
    start, ends = anyio.current_time(), dict[str, float]()

    async def one(node: Peer) -> None:
        await node.follow(parents.get(node.peer_id, ()))
        await node.fetch(manifest, folder / node.peer_id, fallback="a")
        ends[node.peer_id] = anyio.current_time() - start

    async with anyio.create_task_group() as tasks:
        for node in nodes:
            tasks.start_soon(one, node)
    return ends


@pytest.mark.parametrize("run", [run_fake, run_fake_trio])
@pytest.mark.slow
def test_a_planned_broadcast_comes_close_to_the_bound_and_leaves_the_coordinator_one_copy(tmp_path, run):
    manifest = payload_file(tmp_path / "a", SIZE)

    async def main():
        plan, best = planned(8, manifest)
        async with capped(8) as (a, *nodes):
            await a.share(manifest, tmp_path / "a")
            ends = await spread(nodes, manifest, tmp_path, plan.parents)
            assert max(ends.values()) < 1.25 * best
            assert (await a.traffic()).sent <= 1.05 * SIZE

    run(main)
    for name in names(8):
        assert (tmp_path / name).read_bytes() == (tmp_path / "a").read_bytes()


@pytest.mark.slow
def test_the_time_of_a_planned_broadcast_is_flat_in_the_number_of_peers(tmp_path):
    manifest = payload_file(tmp_path / "a", SIZE)

    async def main(number: int):
        plan, _ = planned(number, manifest)
        async with capped(number) as (a, *nodes):
            await a.share(manifest, tmp_path / "a")
            return max((await spread(nodes, manifest, tmp_path / str(number), plan.parents)).values())

    took = {}
    for number in (4, 16):
        (tmp_path / str(number)).mkdir()
        took[number] = run_fake(lambda number=number: main(number))
    assert took[16] <= 1.2 * took[4]


@pytest.mark.slow
def test_with_the_planner_switched_off_every_peer_completes(tmp_path):
    manifest = payload_file(tmp_path / "a", SIZE)

    async def main():
        async with capped(6) as (a, *nodes):
            await a.share(manifest, tmp_path / "a")
            assert len(await spread(nodes, manifest, tmp_path, {})) == 6

    run_fake(main)


PLANS = {
    "names peers that do not exist": ("nobody", "none"),
    "names a peer that never fetches": ("node4", "node4"),
    "names the peer itself": ("node0", "node0", "node0"),
    "is a circle": ("node0", "node1", "node2", "node3"),
    "has more stripes than the payload chunks": tuple(f"node{index % 4}" for index in range(1000)),
}


@pytest.mark.parametrize("parents", PLANS.values(), ids=PLANS.keys())
@pytest.mark.slow_but("is a circle")
def test_a_plan_without_a_path_costs_only_time(parents, tmp_path):
    manifest = payload_file(tmp_path / "a", SIZE)

    async def main():
        async with capped(5) as (a, *nodes, _):
            await a.share(manifest, tmp_path / "a")
            ends = await spread(nodes, manifest, tmp_path, dict.fromkeys(names(4), parents))
            assert max(ends.values()) < 40

    run_fake(main)
    for name in names(4):
        assert (tmp_path / name).read_bytes() == (tmp_path / "a").read_bytes()


@pytest.mark.parametrize("end", ["kill", "freeze"])
@pytest.mark.slow
def test_the_end_of_an_inner_node_costs_its_children_little(end, tmp_path):
    manifest = payload_file(tmp_path / "a", SIZE)

    async def main():
        plan, best = planned(8, manifest)
        victim = next(up for ups in plan.parents.values() for up in ups if up != "a")
        network = MemoryNetwork(1, link=Link(delay=0.02))
        async with peers(network, "a", *names(8), uplink=MB) as (a, *nodes):
            await a.share(manifest, tmp_path / "a")
            async with anyio.create_task_group() as tasks:

                async def strike() -> None:
                    await anyio.sleep(best / 2)
                    getattr(network, end)(victim)

                tasks.start_soon(strike)
                others = [node for node in nodes if node.peer_id != victim]
                doomed = next(node for node in nodes if node.peer_id == victim)
                scope = anyio.CancelScope()

                async def doom() -> None:
                    with scope:
                        await spread([doomed], manifest, tmp_path, plan.parents)

                tasks.start_soon(doom)
                ends = await spread(others, manifest, tmp_path, plan.parents)
                scope.cancel()
            # A death shows at once, a freeze only after `STALL_MIN` seconds without a chunk.
            assert max(ends.values()) < 1.5 * best + (0 if end == "kill" else 4.5)

    run_fake(main)


def test_a_new_plan_takes_effect_in_the_middle_of_a_fetch(tmp_path):
    manifest = payload_file(tmp_path / "a", SIZE)

    async def main():
        async with capped(2) as (a, b, c):
            await a.share(manifest, tmp_path / "a")
            await b.share(manifest, tmp_path / "a")
            await c.follow(["a"])
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(c.fetch, manifest, tmp_path / "c")
                await anyio.sleep(SIZE / MB / 2)
                await c.follow(["node0"])
            got = (await c.traffic()).received_by_peer
            assert got["node0"] > 0.1 * SIZE
            assert got["a"] > 0.3 * SIZE
            assert sum(got.values()) < 1.02 * SIZE

    run_fake(main)


def test_a_downloader_asks_only_its_parents_while_they_feed(tmp_path):
    manifest = payload_file(tmp_path / "a", SIZE)

    async def main():
        async with capped(2) as (a, b, c):
            await a.share(manifest, tmp_path / "a")
            await b.share(manifest, tmp_path / "a")
            await c.follow(["node0"])
            await c.fetch(manifest, tmp_path / "c", fallback="a")
            assert (await c.traffic()).received_by_peer == {"node0": SIZE}

    run_fake(main)


@pytest.mark.parametrize("parents", [(), ("a",)], ids=["unplanned", "planned"])
def test_the_owners_downlink_limit_applies_to_all_payloads_together(parents, tmp_path):
    manifests = [payload_file(tmp_path / f"a{index}", SIZE, seed=index) for index in range(2)]

    async def main():
        network = MemoryNetwork(1)
        b = Peer(network.transport("b"), seed=0, downlink=MB / 2)
        async with running(b), peers(network, "a", connect=False) as (a,):
            await b.dial(await a.addresses())
            await b.follow(parents)
            for index, manifest in enumerate(manifests):
                await a.share(manifest, tmp_path / f"a{index}")
            start = anyio.current_time()
            async with anyio.create_task_group() as tasks:
                for index, manifest in enumerate(manifests):
                    tasks.start_soon(b.fetch, manifest, tmp_path / f"b{index}")
            assert anyio.current_time() - start == pytest.approx(2 * SIZE / (MB / 2), rel=0.06)

    run_fake(main)


def test_a_peer_that_fetches_many_payloads_gets_no_more_of_an_uplink_than_another(tmp_path):
    manifests = [payload_file(tmp_path / f"a{index}", SIZE // 2, seed=index) for index in range(4)]

    async def main():
        network = MemoryNetwork(1)
        a = Peer(network.transport("a"), seed=0, uplink=MB / 4)
        async with running(a), peers(network, "b", "c", connect=False) as (b, c):
            for index, manifest in enumerate(manifests):
                await a.share(manifest, tmp_path / f"a{index}")
            for peer in (b, c):
                await peer.dial(await a.addresses())
            with anyio.move_on_after(3):
                async with anyio.create_task_group() as tasks:
                    for index, manifest in enumerate(manifests[:3]):
                        tasks.start_soon(b.fetch, manifest, tmp_path / f"b{index}")
                    tasks.start_soon(c.fetch, manifests[3], tmp_path / "c")
            received = [(await peer.traffic()).received_by_peer["a"] for peer in (b, c)]
            assert received[0] == pytest.approx(received[1], rel=0.15)

    run_fake(main)
