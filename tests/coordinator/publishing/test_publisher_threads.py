"""What the publisher's thread does meanwhile, and what the event loop, the scorer and the disk budget see of it."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.learner.messages import Export, ExportedEdge
from coordinator.publishing.publisher import Publisher, Signing
from weights.diff import encode, encode_full
from weights.documents import TensorEntry
from weights.snapshot import Snapshot, writing_snapshot
from weights.store import Store


class Nobody:
    """A network without anybody else."""

    def serve(self, method: str, handler: Any, *, limit: int) -> None:
        return None

    async def share(self, *_: object) -> None:
        return None

    async def unshare(self, *_: object) -> None:
        return None

    async def publish(self, *_: object) -> None:
        return None


async def no_addresses() -> list[str]:
    return []


@contextmanager
def publishing(tmp_path: Path) -> Iterator[tuple[Publisher, Store]]:
    key: Any = Ed25519PrivateKey.generate()
    nobody: Any = Nobody()
    signing = Signing(run=bytes(32), policy=key, channel=key, root_serial=1)
    with Store(tmp_path / "store") as store:
        yield (
            Publisher(
                signing,
                store,
                nobody,
                nobody,
                nobody,
                head_file=tmp_path / "head",
                addresses=no_addresses,
                clock=lambda: 0.0,
            ),
            store,
        )


def export(folder: Path, version: int, before: Export | None) -> Export:
    """What a learner leaves: a snapshot, and a diff from the one before."""
    path = folder / f"{version}.safetensors"
    with writing_snapshot(path, [TensorEntry(name="w", dtype="BF16", shape=(64,))], {}) as writer:
        writer.write(np.full(64, version, np.uint16))
        writer.finish()
    new, payload = Snapshot(path), folder / f"{version}.edge"
    if before is None:
        encode_full(new, payload)
        edge = ExportedEdge(base=None, base_root=None, payload=str(payload))
    else:
        encode(Snapshot(Path(before.snapshot)), new, payload)
        edge = ExportedEdge(base=before.version, base_root=before.root, payload=str(payload))
    return Export(version=version, root=new.root, snapshot=str(path), edges=[edge], seconds=0.0)


class Gate:
    """A thread that comes here waits until it is let through."""

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


async def test_nobody_sees_the_edges_of_a_version_before_it_is_out(tmp_path: Path, monkeypatch: Any) -> None:
    first = export(tmp_path, 0, None)
    second = export(tmp_path, 1, first)
    with publishing(tmp_path) as (publisher, store):
        await publisher.publish(1, 0, first)
        gate = Gate()
        monkeypatch.setattr(publisher, "_index", gate.before(publisher._index))  # its edges are signed and stored
        task = asyncio.create_task(publisher.publish(1, 1, second))
        await gate.until_reached()
        seen = [edge.version for edge in publisher.payloads()]
        gate.opened.set()
        await task
        assert seen == [0], "the scorer looks at these while the thread is at work"
        assert [edge.version for edge in publisher.payloads()] == [0, 1]
        assert len(store.documents("edge")) == 2


async def test_a_version_that_comes_while_others_are_dropped_stays(tmp_path: Path, monkeypatch: Any) -> None:
    exports: list[Export] = []
    for version in range(4):
        exports.append(export(tmp_path, version, exports[-1] if exports else None))
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
        assert [file.version for file in store.snapshots()] == [0, 2, 3]
        assert publisher.latest is not None
        assert publisher.latest.version == 3
        assert publisher.snapshots()[publisher.latest.root].exists()


async def test_what_is_shared_at_the_start_is_not_dropped_meanwhile(tmp_path: Path, monkeypatch: Any) -> None:
    exports: list[Export] = []
    for version in range(3):
        exports.append(export(tmp_path, version, exports[-1] if exports else None))
    with publishing(tmp_path) as (publisher, _store):
        for one in exports:
            await publisher.publish(1, one.version, one)
        began, go_on, ended, there = asyncio.Event(), asyncio.Event(), asyncio.Event(), list[bool]()

        async def share(manifest: object, path: Path) -> None:
            began.set()
            await go_on.wait()
            there.append(await anyio.Path(path).exists())
            if len(there) == len(exports):
                ended.set()

        monkeypatch.setattr(publisher._exchange, "share", share)
        running = asyncio.create_task(publisher.run())
        await began.wait()
        await publisher.retain((1, 2), 0, 0)
        go_on.set()
        async with asyncio.timeout(60):
            await ended.wait()
        running.cancel()
        assert there == [True] * 3
