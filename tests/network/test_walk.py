"""The number of functions between `PayloadFetcher.get` and the download that fetches a payload over libp2p."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from echo2.node.versions.acknowledgements import Acknowledger
from echo2.node.versions.payload_fetcher import PayloadFetcher
from echo2.p2p.envelope import Verified, document_hash, verify_named
from echo2.p2p.https.client import HttpsClient
from echo2.p2p.https.failover import FailoverNetwork
from echo2.p2p.identity import generate_key
from echo2.p2p.libp2p.threaded_network import ThreadedPeer
from echo2.p2p.libp2p.trio_bridge import TrioThread
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.swarm.download import Download
from echo2.weights.documents import Edge
from echo2.weights.store import Store
from tests.support.libp2p_peers import new_peer, running
from tests.support.peers import payload_file

OURS = ("echo2/node/", "echo2/p2p/")
ROOT = str(Path(__file__).parents[2]) + "/"


def callers() -> list[str]:
    """Return the functions of this project on the stack below the caller, the innermost first."""
    frames, frame = [], sys._getframe(2)
    while frame is not None:
        place = frame.f_code.co_filename.removeprefix(ROOT)
        if place.startswith(OURS):
            frames.append(frame.f_code.co_qualname)
        frame = frame.f_back  # type: ignore[assignment]
    return frames


async def test_a_fetch_passes_four_functions_of_ours_before_the_one_that_fetches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With HTTPS beside libp2p. The four: `PayloadFetcher.get`, `FailoverNetwork.fetch`, `TrioThread.call` and its
    `runner`."""
    walks: list[list[str]] = []

    def seen(kind: type, name: str) -> None:
        real = getattr(kind, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            if name != "call" or "fetch" in repr(args[1]):
                walks.append(callers())
            return real(*args, **kwargs)

        monkeypatch.setattr(kind, name, noted)

    seen(Download, "run")
    seen(TrioThread, "call")
    seen(FailoverNetwork, "fetch")
    source, direct = new_peer(), ThreadedPeer(generate_key(), [])
    ways = FailoverNetwork(direct, HttpsClient("node", bytes(32)))
    manifest = payload_file(tmp_path / "payload", 100_000)
    with Store(tmp_path / "store") as store:
        network = ways.network
        payloads = PayloadFetcher(
            network.exchange, network.rpc, network.links, store, Acknowledger(_tell), coordinator=lambda: None
        )
        async with running(source), asyncio.TaskGroup() as group:
            task = group.create_task(network.host.run())
            await network.host.ready()
            await source.share(manifest, tmp_path / "payload")
            await network.links.dial(await source.addresses())
            path = await payloads.get(edge_of(manifest))
            task.cancel()
    assert path.read_bytes() == (tmp_path / "payload").read_bytes()
    assert walks == [
        ["PayloadFetcher.get"],
        ["FailoverNetwork.fetch"],
        [
            "ChunkExchange.fetch",
            "TrioThread.call.<locals>.runner",
            "TrioThread.run.<locals>.thread",
        ],
    ], "the callers of FailoverNetwork.fetch, of TrioThread.call, and on trio of Download.run"


def edge_of(manifest: Manifest) -> Verified[Edge]:
    edge = Edge(
        era=1, version=0, root=bytes(32), codec="echo2-full/1", payload_hash=manifest.hash, length=manifest.length,
        chunk_size=manifest.chunk_size, chunk_root=manifest.chunk_root,
    )  # fmt: skip
    return verify_named(b"sealed", document_hash(b"sealed"), lambda _: edge)


async def _tell(make: Any) -> None:
    """Send no message."""
