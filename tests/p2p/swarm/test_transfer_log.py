"""The report of a fetch about the peers that sent its chunks."""

from pathlib import Path

import anyio
import pytest

from benchmarks.memory_network.transport import Link, MemoryNetwork
from echo2.p2p.network import FetchReport, PeerTransfer
from echo2.p2p.swarm.exchange import TRANSFER_LOGS_MAX
from echo2.p2p.swarm.transfer_log import TransferLog
from tests.support.clock import run_fake
from tests.support.peers import payload_file, peers

MB = 1_000_000


def test_a_peer_that_sent_no_chunk_is_left_out_and_the_others_are_in_the_order_in_which_they_began() -> None:
    feeds = TransferLog(10.0)
    feeds.on_request("silent", 10.0)
    feeds.on_request("second", 11.0)
    feeds.on_request("first", 10.5)
    feeds.on_verified_chunk("second", 5, 12.0)
    feeds.on_verified_chunk("first", 7, 11.0)
    feeds.on_request("second", 13.0)
    feeds.on_verified_chunk("second", 5, 14.0)
    assert feeds.report(14.5) == FetchReport(
        seconds=4.5,
        feeds=(
            PeerTransfer(peer="first", nbytes=7, began=0.5, ended=1.0),
            PeerTransfer(peer="second", nbytes=10, began=1.0, ended=4.0),
        ),
    )


@pytest.mark.slow
def test_a_fetch_reports_each_senders_bytes_and_times(tmp_path: Path) -> None:
    manifest = payload_file(tmp_path / "a", 8 * MB)

    async def main() -> None:
        network = MemoryNetwork(1, link=Link(bandwidth=MB))
        async with peers(network, "a", "b", "c") as (a, b, c):
            await a.share(manifest, tmp_path / "a")
            one = await b.fetch(manifest, tmp_path / "b")
            (feed,) = one.feeds
            assert (feed.peer, feed.nbytes) == ("a", 8 * MB)
            assert 0 <= feed.began < 1
            assert feed.ended == pytest.approx(one.seconds, abs=0.1)
            assert one.seconds == pytest.approx(8, rel=0.1)
            two = await c.fetch(manifest, tmp_path / "c")
            assert {feed.peer for feed in two.feeds} == {"a", "b"}
            assert sum(feed.nbytes for feed in two.feeds) == 8 * MB
            assert two.seconds < 6
            again = await c.fetch(manifest, tmp_path / "c")
            assert again == FetchReport()

    run_fake(main)


def test_a_fetch_that_was_cancelled_and_resumed_reports_both_parts(tmp_path: Path) -> None:
    manifest = payload_file(tmp_path / "a", 10 * MB)

    async def main() -> None:
        network = MemoryNetwork(1, link=Link(bandwidth=MB))
        async with peers(network, "a", "b") as (a, b):
            await a.share(manifest, tmp_path / "a")
            with anyio.move_on_after(4):
                await b.fetch(manifest, tmp_path / "b")
            await anyio.sleep(3)
            whole = await b.fetch(manifest, tmp_path / "b")
            assert [(feed.peer, feed.nbytes) for feed in whole.feeds] == [("a", 10 * MB)]
            assert whole.seconds == pytest.approx(13, rel=0.1)

    run_fake(main)


def test_the_logs_of_fetches_that_never_end_are_bounded(tmp_path: Path) -> None:
    manifests = [payload_file(tmp_path / f"whole{seed}", 1000, seed) for seed in range(TRANSFER_LOGS_MAX + 3)]

    async def main() -> None:
        async with peers(MemoryNetwork(1), "a", "b") as (a, b):
            for number, manifest in enumerate(manifests):
                with anyio.move_on_after(1.0):
                    await b.fetch(manifest, tmp_path / f"{number}")
            began = anyio.current_time()
            reports = {}
            for number in (-1, 3, 0):
                await a.share(manifests[number], tmp_path / f"whole{number % len(manifests)}")
                reports[number] = await b.fetch(manifests[number], tmp_path / f"{number % len(manifests)}")
            waited = anyio.current_time() - began
            assert reports[-1].seconds == pytest.approx(1.0, abs=waited)
            assert reports[3].seconds == pytest.approx(TRANSFER_LOGS_MAX, abs=waited), "the oldest log that is kept"
            assert reports[0].seconds <= waited, "forgotten: counted from the second call"

    run_fake(main)
