"""A payload on disk: complete, or partial (`PartialPayload` fills `<path>.part`).

1. No byte is stored before its Merkle proof leads to the chunk root, and none is sent before it is hashed again. So a
   decaying disk yields `NotAvailable`, never a bad chunk.
2. `<path>.part.proofs` stores one record per chunk: 1 + the number of siblings, then the siblings. After a crash
   neither file is trusted: a chunk counts as stored only if bytes and proof verify again.
3. Finishing a payload requires every chunk, so that all bytes lead to the chunk root. The file is fsynced and renamed
   to its name, and the directory is fsynced. The payload's hash is not computed again: it is signed together with the
   chunk root, so each byte is hashed once on its way in.
4. A complete payload keeps no file open and no tree in memory: p2p/swarm/open_files.py opens it when a chunk is read.
   If its file is then missing or changed, the payload is `lost`: logged once, and no longer offered.
5. Methods block on the disk, and may be called from several threads. Only `prove` never blocks, and `read(block=False)`
   reads only from the page cache, which is faster than a thread switch.
"""

import errno
import os
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import cast

from echo2.p2p.errors import BadChunk, LocalNetworkFault
from echo2.p2p.guard import log
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.swarm import merkle
from echo2.p2p.swarm.manifest import bare, check, chunk_count, chunk_span, digest, leaf_digest
from echo2.p2p.swarm.open_files import FILES, OpenPayload, OpenPayloads, faults
from echo2.runtime.files import syncing

RWF_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)


class PayloadFile:
    """A complete payload file, from which chunks are read with their proofs."""

    def __init__(self, manifest: Manifest, path: Path, files: OpenPayloads = FILES) -> None:
        self.manifest = bare(manifest)
        self.path = path
        self.have = 0
        """Bit i: chunk i is stored and verified."""
        self._files = files
        self.lost = False
        """Whether the file was missing or changed on a read (rule 4)."""

    @classmethod
    def open(cls, manifest: Manifest, path: Path, files: OpenPayloads = FILES) -> "PayloadFile":
        """Read the file once and check it, unless its manifest is a `HashedManifest` (p2p/swarm/open_files.py, rule 2).
        Raises `LocalNetworkFault` for a file that is missing or differs from the manifest, `Exhausted` while no
        descriptor is free."""
        check(manifest)
        files.open(manifest, path)
        return cls.offer_file(manifest, path, files)

    @classmethod
    def offer_file(cls, manifest: Manifest, path: Path, files: OpenPayloads = FILES) -> "PayloadFile":
        """Offer a file that is checked on its first read."""
        payload = cls(manifest, path, files)
        payload.have = (1 << payload.chunks) - 1
        return payload

    @property
    def chunks(self) -> int:
        return chunk_count(self.manifest)

    @property
    def complete(self) -> bool:
        """Whether every chunk is stored."""
        return self.have == (1 << self.chunks) - 1

    def size(self, index: int) -> int:
        """Return the bytes of a chunk; 0 beyond the end."""
        return chunk_span(self.manifest, index)[1] if index < self.chunks else 0

    def read(self, index: int, *, block: bool = True) -> tuple[bytes, list[bytes]] | None:
        """Return (data, proof) of a chunk; None for a chunk that is not stored, or that the disk no longer returns as
        verified. Raises `Exhausted` while no descriptor is free. Unless `block`, raises `BlockingIOError` if the disk
        is needed."""
        if not self.have >> index & 1:
            return None
        offset, length = chunk_span(self.manifest, index)
        read = os.pread if block else _read_cached
        try:
            with self._reading(block) as opened:
                data = read(opened.descriptor, length, offset)
                proof = opened.tree.proof(index) if leaf_digest(data) == opened.tree.leaf(index) else None
        except BlockingIOError:
            raise
        except OSError:
            return None
        except LocalNetworkFault as fault:
            if not self.lost:
                log.warning("payload no longer offered: %s", fault)
            self.lost, self.have = True, 0
            return None
        return None if proof is None else (data, proof)

    def is_current(self, path: Path) -> bool:
        """Tell whether this payload is still offered from `path`: it is not lost, and its file is at that path, or is
        open and was renamed to it."""
        if self.lost:
            return False
        if path != self.path and not self._files.on_rename((self.manifest.hash, self.path), path):
            return False
        self.path = path
        return True

    def close(self) -> None:
        """Stop offering the payload; its chunks can no longer be read."""
        self._files.close((self.manifest.hash, self.path))
        self.have = 0

    def _reading(self, block: bool) -> AbstractContextManager[OpenPayload]:
        return self._files.reading(self.manifest, self.path, block=block)


class PartialPayload(PayloadFile):
    """A payload that is being fetched, and serves the chunks that it has."""

    def __init__(self, manifest: Manifest, path: Path, files: OpenPayloads = FILES) -> None:
        """Open or resume `<path>.part`. Raises `LocalNetworkFault`, `Exhausted`, `Malformed` (the manifest)."""
        check(manifest)
        super().__init__(manifest, path, files)
        self._part_path = Path(f"{path}.part")
        self._proofs_path = Path(f"{path}.part.proofs")
        self._descriptor = self._proofs = -1
        self._lock = threading.Lock()
        with faults(self._part_path):
            try:
                self._descriptor = os.open(self._part_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                self._proofs = os.open(self._proofs_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                os.ftruncate(self._descriptor, manifest.length)
            except OSError:
                self._close_descriptors()
                raise
        self._tree = merkle.Tree(manifest.chunk_root, self.chunks, digest)
        self._record = 1 + 32 * merkle.depth(self.chunks)
        self._finished = False
        self._resume()

    def put(self, index: int, data: bytes | memoryview, proof: list[bytes]) -> bool:
        """Verify and store a chunk; return False for one already stored. Raises `BadChunk`, `LocalNetworkFault` (the
        disk)."""
        self.prove(index, data, proof)
        return self.store(index, data, proof)

    def prove(self, index: int, data: bytes | memoryview, proof: list[bytes]) -> None:
        """Verify a chunk. Raises `BadChunk`."""
        if not 0 <= index < self.chunks or not self._verify(index, data, proof):
            raise BadChunk(f"chunk {index} does not lead to the chunk root")

    def store(self, index: int, data: bytes | memoryview, proof: list[bytes]) -> bool:
        """Store a chunk that was proven; return False for one already stored. Raises `LocalNetworkFault` (the disk)."""
        if self.have >> index & 1:
            return False
        with self._lock, faults(self._part_path):
            if self._descriptor < 0:
                raise LocalNetworkFault(f"{self._part_path} is closed")
            _write(self._descriptor, data, chunk_span(self.manifest, index)[0])
            _write(self._proofs, bytes([len(proof) + 1]) + b"".join(proof), index * self._record)
            self.have |= 1 << index
        return True

    def finish(self) -> None:
        """Turn the complete part into the payload (rule 3)."""
        if not self.complete:
            raise ValueError(f"chunks of {self.path} are missing")
        with faults(self.path), syncing(self.path.parent):
            os.fsync(self._descriptor)
            os.rename(self._part_path, self.path)
        self._proofs_path.unlink(missing_ok=True)
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
            self._finished = True
            self._close_descriptors()
            if descriptor >= 0:  # not closed meanwhile by another thread
                self._files.adopt((self.manifest.hash, self.path), OpenPayload(descriptor, self._tree))
            del self._tree  # rule 4

    def is_current(self, path: Path) -> bool:
        """See `PayloadFile.is_current`. A partial one is current at any path."""
        return super().is_current(path) if self._finished else True

    def close(self) -> None:
        """Close the descriptors; the part stays for the next start."""
        with self._lock:  # never during a write: the number of a closed descriptor may belong to another file
            self._close_descriptors()
        super().close()

    def _close_descriptors(self) -> None:
        for descriptor in (self._descriptor, self._proofs):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._proofs = -1

    def _reading(self, block: bool) -> AbstractContextManager[OpenPayload]:
        if self._finished:
            return super()._reading(block)
        return nullcontext(OpenPayload(self._descriptor, self._tree))

    def _verify(self, index: int, data: bytes | memoryview, proof: list[bytes]) -> bool:
        if len(data) != chunk_span(self.manifest, index)[1]:
            return False
        return self._tree.add(index, leaf_digest(data), proof)

    def _resume(self) -> None:
        with faults(self._part_path):
            for index in range(self.chunks):
                record = os.pread(self._proofs, self._record, index * self._record)
                count = record[0] - 1 if record else -1
                if not 0 <= count * 32 <= len(record) - 1:
                    continue
                proof = [record[1 + 32 * i : 33 + 32 * i] for i in range(count)]
                offset, length = chunk_span(self.manifest, index)
                data = os.pread(self._descriptor, length, offset)
                if self._verify(index, data, proof):
                    self.have |= 1 << index


def _write(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def _read_cached(descriptor: int, length: int, offset: int) -> bytes:
    """Read from the page cache alone. Raises `BlockingIOError` if the cache lacks some of the bytes, or if the system
    does not support such a read (macOS, some file systems)."""
    data = bytearray(length)
    try:
        if RWF_NOWAIT and os.preadv(descriptor, [data], offset, RWF_NOWAIT) == length:
            return cast(bytes, data)  # never modified
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP):
            raise
    raise BlockingIOError(errno.EAGAIN, "not in memory")
