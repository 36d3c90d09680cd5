"""Payloads through a network of peers: stories on the in-memory transport and a fake clock."""

from pathlib import Path

import anyio
import pytest

from benchmarks.memory_network.transport import Link, MemoryNetwork
from echo2.p2p.errors import LocalNetworkFault, Unreachable
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.peer.peer import Peer
from echo2.p2p.swarm import messages as wire
from echo2.p2p.swarm.exchange import PROTOCOL, STREAMS_PER_PEER
from echo2.p2p.swarm.payload_file import PayloadFile
from tests.support.chunk_streams import MB, against, saying
from tests.support.clock import run_fake, run_fake_trio
from tests.support.peers import payload_file, peers, running


class Poisoner(PayloadFile):
    """A payload whose holder sends other bytes, with the true proofs."""

    def read(self, index, *, block=True):
        chunk = super().read(index)
        assert chunk is not None
        data, proof = chunk
        return bytes(byte ^ 1 for byte in data[:1]) + data[1:], proof


async def poison(peer: Peer, manifest: Manifest, path: Path) -> None:
    """Share a payload whose chunks `peer` falsifies."""
    peer._exchange._whole = Poisoner
    await peer.share(manifest, path)


async def join(*fetches) -> list[float]:
    """Run these coroutine functions together; return when each ended, in seconds from the start."""
    start, ends = anyio.current_time(), [0.0] * len(fetches)

    async def one(number, fetch) -> None:
        await fetch()
        ends[number] = anyio.current_time() - start

    async with anyio.create_task_group() as tasks:
        for number, fetch in enumerate(fetches):
            tasks.start_soon(one, number, fetch)
    return ends


def test_a_fetched_payload_is_whole_and_served_on(tmp_path):
    manifest = payload_file(tmp_path / "a", 3 * MB)

    async def main():
        async with peers(MemoryNetwork(1), "a", "b", "c") as (a, b, c):
            await a.share(manifest, tmp_path / "a")
            await b.fetch(manifest, tmp_path / "b")
            await a.unshare(manifest.hash)
            await c.fetch(manifest, tmp_path / "c")
            assert (await c.traffic()).received_by_peer == {"b": 3 * MB}
            assert (await b.traffic()).sent == 3 * MB

    run_fake(main)
    assert (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes() == (tmp_path / "a").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


def test_a_fetched_payload_whose_file_was_removed_is_fetched_again(tmp_path):
    """As after a fetch whose caller was cancelled before it moved the file, which was then tidied away."""
    manifest = payload_file(tmp_path / "a", MB)

    async def main():
        async with peers(MemoryNetwork(1), "a", "b") as (a, b):
            await a.share(manifest, tmp_path / "a")
            await b.fetch(manifest, tmp_path / "b")
            (tmp_path / "b").unlink()
            await b.fetch(manifest, tmp_path / "b")

    run_fake(main)
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()


def test_an_empty_payload_needs_no_peer(tmp_path):
    manifest = payload_file(tmp_path / "a", 0)

    async def main():
        async with peers(MemoryNetwork(1), "b") as (b,):
            await b.fetch(manifest, tmp_path / "b")

    run_fake(main)
    assert (tmp_path / "b").read_bytes() == b""


def test_a_file_that_is_already_there_is_not_fetched(tmp_path):
    manifest = payload_file(tmp_path / "a", MB)
    payload_file(tmp_path / "b", MB)

    async def main():
        async with peers(MemoryNetwork(1), "b") as (b,):
            await b.fetch(manifest, tmp_path / "b")
            await b.fetch(manifest, tmp_path / "b")
            assert (await b.traffic()).received == 0

    run_fake(main)


def test_a_wrong_file_in_the_way_is_replaced(tmp_path):
    manifest = payload_file(tmp_path / "a", MB)
    payload_file(tmp_path / "b", MB, seed=9)

    async def main():
        async with peers(MemoryNetwork(1), "a", "b") as (a, b):
            await a.share(manifest, tmp_path / "a")
            await b.fetch(manifest, tmp_path / "b")

    run_fake(main)
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()


def test_a_file_that_is_not_the_payload_cannot_be_shared(tmp_path):
    manifest = payload_file(tmp_path / "a", MB)
    payload_file(tmp_path / "a", MB, seed=9)

    async def main():
        async with peers(MemoryNetwork(1), "a") as (a,):
            with pytest.raises(LocalNetworkFault, match="is not the payload"):
                await a.share(manifest, tmp_path / "a")

    run_fake(main)


def test_a_fetch_that_begins_before_any_peer_has_the_payload_ends_soon_after_one_does(tmp_path):
    manifest = payload_file(tmp_path / "a", MB)

    async def main():
        async with peers(MemoryNetwork(1), "a", "b") as (a, b):

            async def share_late() -> None:
                await anyio.sleep(300)
                await a.share(manifest, tmp_path / "a")

            ends = await join(lambda: b.fetch(manifest, tmp_path / "b"), share_late)
            assert ends[0] - 300 < 0.5

    run_fake(main)


@pytest.mark.parametrize("run", [run_fake, run_fake_trio])
@pytest.mark.slow_but("run_fake")
def test_a_middle_peer_forwards_before_it_has_the_whole(tmp_path, run):
    manifest = payload_file(tmp_path / "a", 10 * MB)

    async def main():
        network = MemoryNetwork(1, link=Link(bandwidth=MB, delay=0.02))
        async with peers(network, *"abcd", connect=False) as (a, b, c, d):
            for one, two in ((a, b), (b, c), (c, d)):
                await one.dial(await two.addresses())
            await a.share(manifest, tmp_path / "a")
            ends = await join(*(lambda p=p: p.fetch(manifest, tmp_path / p.peer_id) for p in (b, c, d)))
            # Whole after whole would take 10, 20 and 30 s.
            assert ends[0] < 11
            assert ends[2] < 12

    run(main)
    assert (tmp_path / "d").read_bytes() == (tmp_path / "a").read_bytes()


@pytest.mark.slow
def test_the_coordinator_is_asked_last(tmp_path):
    manifest = payload_file(tmp_path / "a", 10 * MB)

    async def main():
        network = MemoryNetwork(1, link=Link(delay=0.02))
        names = [f"node{i}" for i in range(8)]
        for name in ("a", *names):
            network.set_uplink(name, MB)
        async with peers(network, "a", *names) as (a, *nodes):
            await a.share(manifest, tmp_path / "a")
            ends = await join(*(lambda p=p: p.fetch(manifest, tmp_path / p.peer_id, fallback="a") for p in nodes))
            sent = (await a.traffic()).sent
            return max(ends), sent / (10 * MB)

    seconds, copies = run_fake(main)
    # A star would send 8 copies in 80 s. No scheme beats max(W/U, 8 W / 9 U) = 10 s.
    assert copies < 1.6
    assert seconds < 18


def test_a_late_joiner_does_not_burden_the_coordinator(tmp_path):
    manifest = payload_file(tmp_path / "a", 5 * MB)

    async def main():
        async with peers(MemoryNetwork(1), "a", "b", "c") as (a, b, c):
            await a.share(manifest, tmp_path / "a")
            await b.fetch(manifest, tmp_path / "b", fallback="a")
            await c.fetch(manifest, tmp_path / "c", fallback="a")
            assert (await c.traffic()).received_by_peer == {"b": 5 * MB}

    run_fake(main)


@pytest.mark.slow
def test_a_poisoner_is_dropped_after_two_chunks_and_nothing_bad_is_stored_or_forwarded(tmp_path):
    manifest = payload_file(tmp_path / "a", 5 * MB)

    async def main():
        network = MemoryNetwork(1, link=Link(bandwidth=MB))
        async with peers(network, "evil", "good", "b", "c", connect=False) as (evil, good, b, c):
            for one, two in ((evil, b), (good, b), (b, c)):
                await one.dial(await two.addresses())
            await poison(evil, manifest, tmp_path / "a")
            await good.share(manifest, tmp_path / "a")
            await join(*(lambda p=p: p.fetch(manifest, tmp_path / p.peer_id) for p in (b, c)))
            assert await evil.peers() == []
            assert (await b.traffic()).received_by_peer == {"good": 5 * MB}
            assert (await c.traffic()).received_by_peer == {"b": 5 * MB}

    run_fake(main)
    assert (tmp_path / "c").read_bytes() == (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()


def test_a_holder_whose_disk_decays_sends_no_bad_chunk(tmp_path):
    manifest = payload_file(tmp_path / "a", 3 * MB)
    (tmp_path / "good").write_bytes((tmp_path / "a").read_bytes())

    async def main():
        async with peers(MemoryNetwork(1), "a", "good", "b") as (a, good, b):
            await a.share(manifest, tmp_path / "a")
            with (tmp_path / "a").open("r+b") as file:
                file.write(bytes(MB))
            await good.share(manifest, tmp_path / "good")
            await b.fetch(manifest, tmp_path / "b")
            assert set(await b.peers()) == {"a", "good"}

    run_fake(main)
    assert (tmp_path / "b").read_bytes() == (tmp_path / "good").read_bytes()


def test_a_partition_delays_a_fetch_and_does_not_end_it(tmp_path):
    manifest = payload_file(tmp_path / "a", 10 * MB)

    async def main():
        network = MemoryNetwork(1, link=Link(bandwidth=MB))
        async with peers(network, "a", "b") as (a, b):
            await a.share(manifest, tmp_path / "a")

            async def part() -> None:
                await anyio.sleep(5)
                network.partition(["a"], ["b"])
                await anyio.sleep(100)
                network.heal()

            ends = await join(lambda: b.fetch(manifest, tmp_path / "b"), part)
            assert 105 < ends[0] < 150
            # Chunks that had arrived before were kept; only those under way came twice.
            assert (await b.traffic()).received < 10.1 * MB

    run_fake(main)
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()


def test_a_frozen_holder_costs_a_stall_and_no_more(tmp_path):
    manifest = payload_file(tmp_path / "a", 10 * MB)

    async def main():
        network = MemoryNetwork(1, link=Link(bandwidth=MB))
        async with peers(network, "a", "frozen", "b") as (a, frozen, b):
            await a.share(manifest, tmp_path / "a")
            await frozen.share(manifest, tmp_path / "a")

            async def freeze() -> None:
                await anyio.sleep(2)
                network.freeze("frozen")

            ends = await join(lambda: b.fetch(manifest, tmp_path / "b", fallback="a"), freeze)
            # 2 s from `frozen`, up to 5 s until it counts as stalled, 8 s from `a`.
            assert ends[0] < 17

    run_fake(main)
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()


def test_the_death_of_a_holder_moves_its_chunks_to_others_at_once(tmp_path):
    manifest = payload_file(tmp_path / "a", 10 * MB)

    async def main():
        network = MemoryNetwork(1, link=Link(bandwidth=MB))
        async with peers(network, "a", "x", "b") as (a, x, b):
            await a.share(manifest, tmp_path / "a")
            await x.share(manifest, tmp_path / "a")

            async def kill() -> None:
                await anyio.sleep(2)
                network.kill("x")

            ends = await join(lambda: b.fetch(manifest, tmp_path / "b"), kill)
            assert ends[0] < 9

    run_fake(main)
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()


def test_a_downloader_killed_in_mid_transfer_resumes_from_its_part(tmp_path):
    manifest = payload_file(tmp_path / "a", 10 * MB)

    async def main():
        network = MemoryNetwork(1, link=Link(bandwidth=MB))
        async with peers(network, "a") as (a,):
            await a.share(manifest, tmp_path / "a")
            first = Peer(network.transport("b"), seed=1)
            with anyio.move_on_after(6):
                async with running(first):
                    await first.dial(await a.addresses())
                    await first.fetch(manifest, tmp_path / "b")
            assert (tmp_path / "b.part").exists()
            assert not (tmp_path / "b").exists()
            got = (await first.traffic()).received
            second = Peer(network.transport("b"), seed=2)
            async with running(second):
                await second.dial(await a.addresses())
                await second.fetch(manifest, tmp_path / "b")
                assert (await second.traffic()).received == 10 * MB - got
            assert got > 5 * MB

    run_fake(main)
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_the_owners_uplink_limit_applies_to_all_peers_together(tmp_path):
    manifest = payload_file(tmp_path / "a", 4 * MB)

    async def main():
        network = MemoryNetwork(1)
        a = Peer(network.transport("a"), seed=0, uplink=MB)
        async with running(a), peers(network, "b", "c", connect=False) as (b, c):
            for peer in (b, c):
                await peer.dial(await a.addresses())
            await a.share(manifest, tmp_path / "a")
            ends = await join(*(lambda p=p: p.fetch(manifest, tmp_path / p.peer_id) for p in (b, c)))
            assert max(ends) == pytest.approx(8, rel=0.05)

    run_fake(main)


@pytest.mark.slow
def test_the_same_seed_repeats_a_broadcast_exactly(tmp_path):
    manifest = payload_file(tmp_path / "a", 2 * MB)

    def once(folder: Path):
        folder.mkdir()

        async def main():
            network = MemoryNetwork(5, link=Link(bandwidth=MB, delay=0.01, loss=0.1))
            async with peers(network, *"abcde", connect=False) as (a, *others):
                for peer in others:
                    for other in (a, *others):
                        if other is not peer:
                            with anyio.move_on_after(1):
                                await peer.dial((await other.addresses()) * 5)
                await a.share(manifest, tmp_path / "a")
                ends = await join(*(lambda p=p: p.fetch(manifest, folder / p.peer_id, fallback="a") for p in others))
                return ends, [await peer.traffic() for peer in (a, *others)]

        return run_fake(main)

    assert once(tmp_path / "one") == once(tmp_path / "two")


def test_one_peer_cannot_open_endless_chunk_streams(tmp_path):
    async def story(evil, b, manifest) -> None:
        await b.fetch(manifest, tmp_path / "b")
        for _ in range(STREAMS_PER_PEER):
            stream = await evil.open("b", PROTOCOL)
            await stream.send(wire.encode(wire.PayloadRequest(bytes(32))))
        await anyio.sleep(1)
        stream = await evil.open("b", PROTOCOL)
        with pytest.raises(Unreachable):
            await stream.receive(100)

    run_fake(lambda: against(saying(), tmp_path, story))
