"""Keep few payload files open, however many the process offers.

Rules
1. At most `MOST_OPEN_FILES` complete payloads are open. The least recently read one is closed first; a file stays open
   while a chunk of it is being read.
2. Opening a file reads it once, and fails unless it hashes to its manifest. The read is skipped if this program has
   just hashed it: while writing it (`HashedManifest`), or chunk by chunk on arrival (p2p/swarm/payload_file.py).
   Reopening a file reads it again. Its Merkle tree lives only as long as the file is open: 10,000 payloads on offer
   cost no descriptor and little memory.
3. A file that is missing or changed is a `LocalNetworkFault`. A shortage of descriptors is `Exhausted`: idle files are
   closed first, and `retry_while_exhausted` retries until one is free.
4. A task that is cancelled while a worker thread opens a file for it leaves no file open (`retry_opening`): asyncio
   ends the task at once, and the thread goes on.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar, TypeVarTuple

import anyio
import anyio.to_thread

from echo2.p2p.errors import Exhausted, LocalNetworkFault
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.swarm import merkle
from echo2.p2p.swarm.manifest import HashedManifest, digest, scan
from echo2.runtime.descriptors import SHORTAGES, is_shortage

MOST_OPEN_FILES: Final = 48
"""Most open files. A daemon has some 40 other files, pipes and listeners, so that without its connections it stays
below 100 descriptors."""
RETRY_INTERVAL: Final = 1.0
"""Seconds until opening is retried after a shortage of descriptors."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Closable(Protocol):
    """What holds files open."""

    def close(self) -> None:
        """Close them."""


C = TypeVar("C", bound=Closable)
Key = tuple[bytes, Path]
"""Hash and path of a payload."""


@dataclass(slots=True)
class OpenPayload:
    """An open file and the tree over its chunks. `readers`: reads under way. `closing`: whether the file is
    closed after the last of them."""

    descriptor: int
    tree: merkle.Tree
    readers: int = 0
    closing: bool = False


class OpenPayloads:
    """The open files, by hash and path. Thread-safe."""

    def __init__(self, most: int = MOST_OPEN_FILES) -> None:
        self._most = most
        self._open: OrderedDict[Key, OpenPayload] = OrderedDict()
        self._lock = threading.Lock()
        self._opening = [threading.Lock() for _ in range(16)]
        """Locks by hash of the key: of two threads that want the same file, one opens and checks it."""

    def open(self, manifest: Manifest, path: Path) -> None:
        """Open a file anew and check it (rule 2). Raises `LocalNetworkFault`, `Exhausted`."""
        self.adopt((manifest.hash, path), self._open_checked(manifest, path))

    @contextmanager
    def reading(self, manifest: Manifest, path: Path, *, block: bool) -> Iterator[OpenPayload]:
        """Keep a file open while it is read. Raises `LocalNetworkFault`, `Exhausted`; unless `block`, `BlockingIOError`
        for a file that is not open."""
        opened = self._acquire(key := (manifest.hash, path))
        if opened is None and not block:
            raise BlockingIOError("not open")
        if opened is None:
            with self._opening[hash(key) % len(self._opening)]:
                opened = self._acquire(key)
                if opened is None:
                    opened = self._open_checked(manifest, path)
                    opened.readers = 1
                    self.adopt(key, opened)
        try:
            yield opened
        finally:
            with self._lock:
                opened.readers -= 1
                if opened.closing:
                    _close_when_idle(opened)

    def adopt(self, key: Key, opened: OpenPayload) -> None:
        """Register a file that is open and checked; close the least recently read one beyond the limit (rule 1)."""
        with self._lock:
            if (older := self._open.pop(key, None)) is not None:
                _close_when_idle(older)
            self._open[key] = opened
            while len(self._open) > self._most:
                _close_when_idle(self._open.popitem(last=False)[1])

    def on_rename(self, key: Key, path: Path) -> bool:
        """Follow a rename of an open file; return False if `path` is not that very file."""
        with self._lock:
            opened = self._open.get(key)
            try:
                if opened is None or not os.path.samestat(os.fstat(opened.descriptor), path.stat()):
                    return False
            except OSError:
                return False
            del self._open[key]
            if (older := self._open.pop((key[0], path), None)) is not None and older is not opened:
                _close_when_idle(older)
            self._open[key[0], path] = opened
            return True

    def close(self, key: Key) -> None:
        """Close a file, if it is open, after its last read."""
        with self._lock:
            if (opened := self._open.pop(key, None)) is not None:
                _close_when_idle(opened)

    def _acquire(self, key: Key) -> OpenPayload | None:
        with self._lock:
            opened = self._open.get(key)
            if opened is not None:
                self._open.move_to_end(key)
                opened.readers += 1
            return opened

    def _open_checked(self, manifest: Manifest, path: Path) -> OpenPayload:
        with faults(path):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                if not is_shortage(error):
                    raise
                self._shrink()
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return OpenPayload(descriptor, _check_payload(manifest, path, descriptor))
            except BaseException:
                os.close(descriptor)
                raise

    def _shrink(self) -> None:
        """Close the least recently read half of the idle files."""
        with self._lock:
            idle = [key for key, opened in self._open.items() if not opened.readers]
            for key in idle[: (len(idle) + 1) // 2]:
                _close_when_idle(self._open.pop(key))


FILES: Final = OpenPayloads()
"""The open files of this process, shared by all its networks."""


async def retry_while_exhausted(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """Call a function that opens files in a worker thread; retry it while no descriptor is free."""
    while True:
        try:
            return await anyio.to_thread.run_sync(function, *args)
        except Exhausted as error:
            SHORTAGES.count_failure(str(error))
            await anyio.sleep(RETRY_INTERVAL)


async def retry_opening(open_: Callable[[*Ts], C], *args: *Ts) -> C:
    """Call a function that returns what it opened, as `retry_while_exhausted` does (rule 4)."""
    handover = Future[C]()

    def open_in_thread() -> C:
        handover.set_result(opened := open_(*args))
        return opened

    try:
        return await retry_while_exhausted(open_in_thread)
    except BaseException:
        handover.add_done_callback(lambda done: done.result().close())  # by the later of task and thread
        raise


@contextmanager
def faults(path: Path) -> Iterator[None]:
    """Translate errors of the disk into `LocalNetworkFault` and `Exhausted`."""
    try:
        yield
    except OSError as error:
        if is_shortage(error):
            raise Exhausted(f"opening {path}") from error
        raise LocalNetworkFault(f"{path}: {error.strerror}; repair the disk and start again") from error


def _close_when_idle(opened: OpenPayload) -> None:
    opened.closing = True
    if not opened.readers:
        os.close(opened.descriptor)


def _check_payload(manifest: Manifest, path: Path, descriptor: int) -> merkle.Tree:
    if isinstance(manifest, HashedManifest):
        leaves, whole, length = manifest.leaves, manifest.hash, os.fstat(descriptor).st_size
    else:
        with open(descriptor, "rb", closefd=False) as file:
            leaves, whole, length = scan(file, manifest.chunk_size)
    tree = merkle.Tree.of(leaves, digest)
    if (whole, length, tree.root) != (manifest.hash, manifest.length, manifest.chunk_root):
        raise LocalNetworkFault(f"{path} is not the payload {manifest.hash.hex()[:16]}: remove it")
    return tree
