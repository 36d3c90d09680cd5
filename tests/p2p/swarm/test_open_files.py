"""Many payloads on offer, few files open."""

import asyncio
import contextlib
import os
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from benchmarks.memory_network.transport import MemoryNetwork
from echo2.p2p.errors import LocalNetworkFault
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.swarm import open_files
from echo2.p2p.swarm.open_files import FILES, OpenPayloads, retry_opening
from echo2.p2p.swarm.payload_file import PayloadFile
from echo2.runtime.descriptors import SHORTAGES
from tests.support.clock import run_fake
from tests.support.open_files import descriptors, everything_taken, limited
from tests.support.peers import payload_file, peers

AT_MOST = 100
"""Descriptors beside those of connections that a process may hold, however many payloads it offers."""


@pytest.mark.parametrize("versions", [600, pytest.param(10_000, marks=pytest.mark.slow)])
def test_payloads_are_shared_under_256_files_and_each_can_still_be_fetched(tmp_path: Path, versions: int) -> None:
    """Row A1. Commit 439044d holds a file open for each payload: it shares 240 of these, and no more."""
    manifests = [payload_file(tmp_path / f"{number}", 100, seed=number) for number in range(versions)]
    shared = 0

    async def main() -> None:
        nonlocal shared
        async with peers(MemoryNetwork(1), "coordinator", "node") as (coordinator, node):
            before = descriptors()
            for number, manifest in enumerate(manifests):
                with contextlib.suppress(LocalNetworkFault, OSError):
                    await coordinator.share(manifest, tmp_path / f"{number}")
                    shared += 1
            assert shared == versions
            assert descriptors() - before <= AT_MOST
            for number in (0, versions // 2, versions - 1):
                await node.fetch(manifests[number], tmp_path / f"fetched {number}")
                assert (tmp_path / f"fetched {number}").read_bytes() == (tmp_path / f"{number}").read_bytes()

    with limited(256):
        run_fake(main)


@pytest.mark.slow
def test_a_node_that_fetched_hundreds_of_payloads_has_few_files_open(tmp_path: Path) -> None:
    """Row A1, the other side: on 439044d each payload fetched leaves two descriptors."""
    manifests = [payload_file(tmp_path / f"{number}", 100, seed=number) for number in range(AT_MOST + 50)]

    async def main() -> None:
        async with peers(MemoryNetwork(1), "coordinator", "node") as (coordinator, node):
            before = descriptors()
            for number, manifest in enumerate(manifests):
                await coordinator.share(manifest, tmp_path / f"{number}")
                await node.fetch(manifest, tmp_path / f"fetched {number}")
                await coordinator.unshare(manifest.hash)
            assert descriptors() - before <= AT_MOST

    run_fake(main)


@pytest.mark.slow
def test_a_payload_on_offer_costs_less_than_two_kilobytes(tmp_path: Path) -> None:
    """On 439044d the tree over its chunks stays in memory, 6.8 kB for 20 chunks."""
    manifests = [payload_file(tmp_path / f"{number}", 320_000, seed=number) for number in range(200)]

    async def main() -> None:
        async with peers(MemoryNetwork(1), "coordinator") as (coordinator,):
            for number, manifest in enumerate(manifests):
                if number == 100:
                    before, _ = tracemalloc.get_traced_memory()
                await coordinator.share(manifest, tmp_path / f"{number}")
            after, _ = tracemalloc.get_traced_memory()
            assert (after - before) / 100 <= 2_000

    tracemalloc.start()
    try:
        run_fake(main)
    finally:
        tracemalloc.stop()


def small(folder: Path, number: int = 0) -> tuple[Manifest, Path]:
    return payload_file(folder / f"{number}", 40_000, seed=number), folder / f"{number}"


def test_the_payload_read_longest_ago_is_closed_first_and_opened_again_when_it_is_read(tmp_path: Path) -> None:
    files = OpenPayloads(most=2)
    payloads = [PayloadFile.open(*small(tmp_path, number), files) for number in range(3)]
    before = descriptors()
    assert len(files._open) == 2
    with pytest.raises(BlockingIOError):
        payloads[0].read(0, block=False)
    data, _ = payloads[0].read(0) or (b"", [])
    assert data == payloads[0].path.read_bytes()[: len(data)]
    assert len(data) == 16_384
    with pytest.raises(BlockingIOError):
        payloads[1].read(0, block=False)
    assert descriptors() == before


def test_a_file_stays_open_while_it_is_read_even_if_others_are_opened(tmp_path: Path) -> None:
    files = OpenPayloads(most=1)
    manifest, path = small(tmp_path)
    with files.reading(manifest, path, block=True) as opened:
        for number in range(1, 4):
            PayloadFile.open(*small(tmp_path, number), files)
        assert os.pread(opened.descriptor, 5, 0) == path.read_bytes()[:5]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened.descriptor)


def test_two_threads_that_want_a_closed_file_read_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, scans, both = OpenPayloads(), [], threading.Barrier(2)
    payload = PayloadFile.offer_file(*small(tmp_path), files)
    scan = open_files.scan
    monkeypatch.setattr(open_files, "scan", lambda file, size: scans.append(size) or scan(file, size))

    def read() -> None:
        both.wait(10)
        assert payload.read(1) is not None

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(scans) == 1


SPOILED = {
    "it is gone": lambda path: path.unlink(),
    "it is shorter": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "it has other bytes": lambda path: path.write_bytes(bytes(40_000)),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED.keys())
def test_a_payload_whose_file_is_missing_or_changed_is_no_longer_offered_and_logged_once(
    tmp_path: Path, spoil: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    manifest, path = small(tmp_path)
    content = path.read_bytes()

    async def main() -> None:
        async with peers(MemoryNetwork(1), "coordinator", "node") as (coordinator, node):
            await coordinator.share(manifest, path)
            spoil(path)
            FILES.close((manifest.hash, path))  # as once 48 others were read
            with anyio.move_on_after(30):
                await node.fetch(manifest, tmp_path / "fetched")
            assert not (tmp_path / "fetched").exists()
            assert caplog.text.count("payload no longer offered") == 1
            with pytest.raises(LocalNetworkFault):
                await coordinator.share(manifest, path)
            path.write_bytes(content)
            await coordinator.share(manifest, path)
            await node.fetch(manifest, tmp_path / "fetched")

    run_fake(main)
    assert (tmp_path / "fetched").read_bytes() == content


def test_a_payload_that_was_moved_and_shared_again_is_served_from_its_new_place(tmp_path: Path) -> None:
    manifest, path = small(tmp_path)

    async def main() -> None:
        async with peers(MemoryNetwork(1), "coordinator", "node", "other") as (coordinator, node, other):
            await coordinator.share(manifest, path)
            await node.fetch(manifest, tmp_path / "fetched")
            await coordinator.unshare(manifest.hash)
            (tmp_path / "fetched").rename(tmp_path / "stored")
            await node.share(manifest, tmp_path / "stored")
            FILES.close((manifest.hash, tmp_path / "stored"))
            await other.fetch(manifest, tmp_path / "passed on")

    run_fake(main)
    assert (tmp_path / "passed on").read_bytes() == (tmp_path / "stored").read_bytes()


def test_idle_files_are_closed_while_no_descriptor_is_free(tmp_path: Path) -> None:
    files = OpenPayloads()
    payloads = [PayloadFile.open(*small(tmp_path, number), files) for number in range(8)]
    late = PayloadFile.offer_file(*small(tmp_path, 8), files)
    with everything_taken():
        assert late.read(0) is not None
    assert len(files._open) == 5
    assert all(payload.read(0) for payload in payloads)


def test_a_shortage_of_descriptors_delays_a_payload_is_counted_and_ends_no_fetch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manifest, path = small(tmp_path)
    counted = SHORTAGES.count

    async def main() -> None:
        async with peers(MemoryNetwork(1), "coordinator", "node") as (coordinator, node):
            await coordinator.share(manifest, path)
            FILES.close((manifest.hash, path))
            async with anyio.create_task_group() as tasks:
                with everything_taken():
                    tasks.start_soon(node.fetch, manifest, tmp_path / "fetched")
                    await anyio.sleep(20)
                    assert not (tmp_path / "fetched").exists()

    run_fake(main)
    assert (tmp_path / "fetched").read_bytes() == path.read_bytes()
    assert SHORTAGES.count > counted


def test_a_file_that_is_moved_to_where_another_link_to_it_is_open_leaves_no_descriptor(tmp_path: Path) -> None:
    manifest = payload_file(tmp_path / "here", 100)
    (tmp_path / "there").hardlink_to(tmp_path / "here")
    before, files = descriptors(), OpenPayloads()
    files.open(manifest, tmp_path / "here")
    files.open(manifest, tmp_path / "there")
    assert files.on_rename((manifest.hash, tmp_path / "here"), tmp_path / "there")
    files.close((manifest.hash, tmp_path / "there"))
    assert descriptors() == before


class Opened:
    """Something open. `at`: set in the thread that opens it; `go`: lets that thread go on."""

    def __init__(self, at: threading.Event, go: threading.Event) -> None:
        at.set()
        go.wait()
        self.closed = 0
        OPENED.append(self)

    def close(self) -> None:
        self.closed += 1


OPENED: list[Opened] = []


@pytest.mark.parametrize("early", [True, False], ids=["while it is opened", "once it is open"])
async def test_what_a_thread_opens_for_a_task_that_is_cancelled_is_closed_once(early: bool) -> None:
    OPENED.clear()
    at, go = threading.Event(), threading.Event()
    opening = asyncio.create_task(retry_opening(Opened, at, go))
    await asyncio.to_thread(at.wait)
    if not early:
        go.set()
        while not OPENED:  # no turn of the loop in between: the task does not hear of it
            threading.Event().wait(0.001)
    opening.cancel()
    await asyncio.wait([opening])
    assert opening.cancelled()
    go.set()
    async with asyncio.timeout(60):
        while not (OPENED and OPENED[0].closed):  # noqa: ASYNC110 (the thread closes it)
            await asyncio.sleep(0)
    assert [one.closed for one in OPENED] == [1]


async def test_what_a_thread_opens_is_returned_open() -> None:
    OPENED.clear()
    go = threading.Event()
    go.set()
    opened = await retry_opening(Opened, threading.Event(), go)
    assert (opened.closed, OPENED) == (0, [opened])
