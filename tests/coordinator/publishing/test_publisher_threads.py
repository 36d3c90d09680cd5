"""While the publisher's thread is at work, the event loop, the scorer and the disk budget see a consistent state."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from echo2.p2p.payload_manifest import Manifest
from tests.support.publishing import NoPeers, export, exports_of, network_of, publishing


class Gate:
    """A wrapper of functions that blocks each calling thread until `opened` is set."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def waiting(*args: Any, **kwargs: Any) -> Any:
            self.reached.set()
            assert self.opened.wait(60)
            return function(*args, **kwargs)

        return waiting

    async def until_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 60)


async def test_the_edges_of_a_version_are_seen_only_once_it_is_published(tmp_path: Path, monkeypatch: Any) -> None:
    first = export(tmp_path, 0, None)
    second = export(tmp_path, 1, first)
    with publishing(tmp_path) as (publisher, store):
        await publisher.publish(1, 0, first)
        gate = Gate()
        monkeypatch.setattr(publisher, "_index", gate.before(publisher._index))  # its edges are signed and stored
        task = asyncio.create_task(publisher.publish(1, 1, second))
        await gate.until_reached()
        seen = [edge.version for edge in publisher.stored.payloads()]
        gate.opened.set()
        await task
        assert seen == [0], "the scorer looks at these while the thread is at work"
        assert [edge.version for edge in publisher.stored.payloads()] == [0, 1]
        assert len(store.documents("edge")) == 2


async def test_a_version_published_while_others_are_dropped_stays(tmp_path: Path, monkeypatch: Any) -> None:
    exports = exports_of(tmp_path, 4)
    with publishing(tmp_path) as (publisher, store):
        for one in exports[:3]:
            await publisher.publish(1, one.version, one)
        gate = Gate()
        monkeypatch.setattr(store, "collect", gate.before(store.collect))
        dropping = asyncio.create_task(publisher.retain((1, 2), 0, 0))
        await gate.until_reached()
        task = asyncio.create_task(publisher.publish(1, 3, exports[3]))
        for _ in range(100):  # time to begin, if nothing held it up
            await asyncio.to_thread(lambda: None)
        gate.opened.set()
        await dropping
        await task
        assert [file.version for file in store.snapshots()] == [3]
        assert publisher.latest.version == 3
        assert publisher.stored.snapshots()[publisher.latest.root].exists()


async def test_a_payload_is_not_dropped_while_it_is_shared_at_the_start(tmp_path: Path, monkeypatch: Any) -> None:
    exports = exports_of(tmp_path, 3)
    peers = NoPeers()
    with publishing(tmp_path, network=network_of(peers)) as (publisher, _store):
        for one in exports:
            await publisher.publish(1, one.version, one)
        began, go_on, ended, there = asyncio.Event(), asyncio.Event(), asyncio.Event(), list[bool]()

        async def share(manifest: Manifest, path: Path) -> None:
            began.set()
            await go_on.wait()
            there.append(await anyio.Path(path).exists())
            if len(there) == len(exports):
                ended.set()

        monkeypatch.setattr(peers, "share", share)
        running = asyncio.create_task(publisher.run())
        await began.wait()
        await publisher.retain((1, 2), 0, 0)
        go_on.set()
        async with asyncio.timeout(60):
            await ended.wait()
        running.cancel()
        assert there == [True] * 3
