"""Keep sealed documents, payloads and snapshots durably in one folder, with an index.

    index.sqlite    documents (the sealed bytes themselves), and a row for each file below
    payloads/       NAME = BLAKE3 of the file, in hex
    snapshots/      ERA-VERSION-ROOT.safetensors
    incoming/       payloads that are being fetched: a fetch that was interrupted goes on here
    scratch/        files that are being made; emptied when the store opens

1. A file is fsynced and renamed into place before its row commits; a row is deleted before its file. So a row always
   has its file. A file without a row is garbage, removed when the store opens.
2. The index is SQLite with a journal (runtime/network_disk.py) and synchronous=FULL: a call that returned survives
   power loss. At open, a row is dropped if its file is missing or has another size: the file can be fetched again.
3. The hash of a payload and the root of a snapshot were checked by the caller: as the file was written (`diff.encode`,
   `edges.rebuild`, `diff.apply`), or chunk by chunk as it was fetched (p2p/swarm/payload_file.py). The store hashes
   no file again.
4. `collect` drops the oldest (era, version) first, and never one listed as to be kept.
5. One process at a time has the store open (flock). Within it any thread may call. `StoreReader` takes no lock and
   writes nothing: a file that it names may be gone a moment later, since the daemon may drop it.
6. Reads use a connection of their own, which waits for a write on a network disk alone. So an event loop may read
   while a thread drops files or syncs them.
"""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Self

import msgspec
from blake3 import blake3

from echo2.runtime import sqlite_form
from echo2.runtime.errors import DiskFull
from echo2.runtime.files import move, remove_leftover, room, sync_file, sync_folder
from echo2.runtime.lock import AlreadyLocked, Lock, lock_file
from echo2.runtime.network_disk import journal_mode
from echo2.weights.errors import StoreBusy, StoreCorrupt

_AT_ONCE: Final = 64
"""Most documents or files dropped per transaction."""
SCHEMA: Final = """
CREATE TABLE documents (
    hash BLOB PRIMARY KEY, kind TEXT NOT NULL, era INTEGER NOT NULL, version INTEGER NOT NULL, sealed BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX documents_by_version ON documents (kind, era, version);
CREATE TABLE files (
    name TEXT PRIMARY KEY, hash BLOB NOT NULL, era INTEGER NOT NULL, version INTEGER NOT NULL, nbytes INTEGER NOT NULL
) WITHOUT ROWID;
"""
_FOLDERS: Final = ("payloads", "snapshots")
_LAST_CHARACTER: Final = "\U0010ffff"
"""A character that sorts after every name with the same beginning."""


class StoredDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Sealed bytes under their BLAKE3 hash. `kind`: given by the caller."""

    hash: bytes
    kind: str
    era: int
    version: int
    sealed: bytes


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """A payload (`hash`: BLAKE3 of the file) or a snapshot (`hash`: content root). `nbytes`: the file's length."""

    path: Path
    hash: bytes
    era: int
    version: int
    nbytes: int


class StoreReader:
    """Read access to a store, also while its daemon runs: `with StoreReader(folder) as store`. Every method may raise
    `StoreCorrupt`."""

    def __init__(self, folder: Path) -> None:
        """Open to read. Raises `FileNotFoundError` where there is no store, `PermissionError`, `StoreCorrupt`."""
        self.folder = folder
        with contextlib.ExitStack() as undo, self._translate_errors():
            self._open_to_read(undo)
            undo.pop_all()

    def _open_to_read(self, undo: contextlib.ExitStack) -> None:
        self._reads = threading.Lock()
        self._reading = _connect_to_read(self.folder / "index.sqlite")
        undo.callback(self._reading.close)
        self._check_format()

    def close(self) -> None:
        """Close the store. A second call changes nothing."""
        with self._reads, self._translate_errors():
            self._reading.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def document(self, digest: bytes) -> bytes | None:
        """Return the sealed bytes with this hash."""
        rows = self._read("SELECT sealed FROM documents WHERE hash = ?", (digest,))
        return rows[0][0] if rows else None

    def documents(self, kind: str, since: tuple[int, int] = (0, 0)) -> list[StoredDocument]:
        """Return all documents of a kind from (era, version) `since` on, oldest (era, version) first."""
        return self._documents(
            "WHERE kind = ? AND (era, version) >= (?, ?) ORDER BY era, version, hash", (kind, *since)
        )

    def oldest(self, kind: str, most: int) -> list[StoredDocument]:
        """Return at most `most` documents of a kind, those with the lowest (era, version), the oldest first."""
        return self._documents("WHERE kind = ? ORDER BY era, version, hash LIMIT ?", (kind, most))

    def newest(self, kind: str, most: int) -> list[StoredDocument]:
        """Return at most `most` documents of a kind, those with the highest (era, version), the oldest of them
        first."""
        order = "ORDER BY era DESC, version DESC, hash DESC"
        return self._documents(f"WHERE kind = ? {order} LIMIT ?", (kind, most))[::-1]

    def place(self, kind: str, number: int) -> tuple[int, int]:
        """Return (era, version) of the `number`-th newest document of a kind; (0, 0) where there are fewer."""
        query = "SELECT era, version FROM documents WHERE kind = ? ORDER BY era DESC, version DESC LIMIT 1 OFFSET ?"
        rows = self._read(query, (kind, number - 1))
        return (rows[0][0], rows[0][1]) if rows else (0, 0)

    def _documents(self, which: str, values: tuple[object, ...]) -> list[StoredDocument]:
        rows = self._read(f"SELECT hash, kind, era, version, sealed FROM documents {which}", values)
        return [StoredDocument(hash=row[0], kind=row[1], era=row[2], version=row[3], sealed=row[4]) for row in rows]

    def payload(self, digest: bytes) -> Path | None:
        return self._path(f"payloads/{digest.hex()}")

    def payloads(self) -> list[StoredFile]:
        """Return all payloads, the oldest (era, version) first."""
        return self._files("payloads/")

    def snapshot(self, version: int, root: bytes) -> Path | None:
        return self._path(f"snapshots/{snapshot_name(version, root)}")

    def snapshots(self) -> list[StoredFile]:
        """Return all snapshots, the oldest (era, version) first."""
        return self._files("snapshots/")

    def nbytes(self) -> int:
        """Return the bytes of all payloads and snapshots."""
        total: int = self._read("SELECT coalesce(sum(nbytes), 0) FROM files", ())[0][0]
        return total

    def _path(self, name: str) -> Path | None:
        return self.folder / name if self._read("SELECT 1 FROM files WHERE name = ?", (name,)) else None

    def _files(self, prefix: str) -> list[StoredFile]:
        rows = self._read(
            "SELECT name, hash, era, version, nbytes FROM files WHERE name >= ? AND name < ? "
            "ORDER BY era, version, name",
            (prefix, prefix + _LAST_CHARACTER),
        )
        return [
            StoredFile(path=self.folder / row[0], hash=row[1], era=row[2], version=row[3], nbytes=row[4])
            for row in rows
        ]

    def _check_format(self) -> None:
        if not sqlite_form.is_made(self._reading, SCHEMA):
            raise self._corrupt("no tables")

    def _read(self, query: str, values: tuple[object, ...]) -> list[Any]:
        with self._reads, self._translate_errors():
            return self._reading.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite_form.OtherForm as error:
            raise self._corrupt(f"another build of echo2 made it ({error})") from error
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                path = self.folder / "index.sqlite"
                raise DiskFull(f"the disk refuses {path} ({error}): free space there, or check the disk") from error
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise self._corrupt(str(error)) from error
            raise

    def _corrupt(self, detail: str) -> StoreCorrupt:
        return StoreCorrupt(
            f"{self.folder / 'index.sqlite'}: {detail}. Stop the daemon, move index.sqlite, index.sqlite-wal and "
            "index.sqlite-shm away, and start again: documents, payloads and snapshots are then fetched anew"
        )


class Store(StoreReader):
    """Read and write access to a store: `with Store(folder) as store`. Every method may raise `StoreCorrupt` or
    `DiskFull`."""

    def __init__(self, folder: Path) -> None:
        """Open or create. Raises `StoreBusy`, `StoreCorrupt`, `DiskFull`."""
        self.folder = folder
        with room(folder):
            for name in (*_FOLDERS, "incoming", "scratch"):
                (folder / name).mkdir(parents=True, exist_ok=True)
        self._mutex = threading.RLock()
        with contextlib.ExitStack() as undo:
            self._lock = _lock_store(folder / "lock")
            undo.callback(self._lock.release)
            with self._translate_errors():
                self._database = _connect(folder / "index.sqlite")
                undo.callback(self._database.close)
                self._set_up()
                self._open_to_read(undo)
                self._sweep()
            undo.pop_all()

    def close(self) -> None:
        """Close, and release the lock. A second call changes nothing."""
        with self._mutex:
            super().close()
            self._database.close()
            self._lock.release()

    def put_document(self, kind: str, era: int, version: int, sealed: bytes) -> bytes:
        """Keep sealed bytes; return their BLAKE3 hash. The same bytes twice are kept once, under the first kind."""
        digest = blake3(sealed).digest()
        self._write("INSERT OR IGNORE INTO documents VALUES (?, ?, ?, ?, ?)", (digest, kind, era, version, sealed))
        return digest

    def replace_documents(self, added: Sequence[tuple[str, int, int, bytes]], dropped: Collection[bytes]) -> None:
        """Keep the documents `added` (kind, era, version, sealed) and drop those of `dropped` (hashes), all or none."""
        rows = [(blake3(sealed).digest(), kind, era, version, sealed) for kind, era, version, sealed in added]
        fresh = {row[0] for row in rows}
        with self._mutex, self._translate_errors():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                self._database.executemany("INSERT OR IGNORE INTO documents VALUES (?, ?, ?, ?, ?)", rows)
                gone = [(digest,) for digest in dropped if digest not in fresh]
                self._database.executemany("DELETE FROM documents WHERE hash = ?", gone)
                self._database.execute("COMMIT")
            except BaseException:
                self._database.execute("ROLLBACK")
                raise

    def forget_documents(
        self,
        kinds: Collection[str],
        before: tuple[int, int],
        keep: Collection[tuple[int, int]],
        spare: Collection[bytes],
    ) -> int:
        """Drop documents of these kinds from before (era, version) `before`, except those of `keep` ((era, version)
        pairs) and `spare` (hashes). Return their number. Each transaction drops few, so that another writer waits
        briefly."""
        dropped = 0
        for kind in kinds:
            rows = self._read(
                "SELECT hash, era, version FROM documents WHERE kind = ? AND (era, version) < (?, ?)", (kind, *before)
            )
            hashes = [digest for digest, era, version in rows if (era, version) not in keep and digest not in spare]
            for start in range(0, len(hashes), _AT_ONCE):
                self._drop_documents(hashes[start : start + _AT_ONCE])
            dropped += len(hashes)
        return dropped

    def _drop_documents(self, hashes: list[bytes]) -> None:
        with self._mutex, self._translate_errors():
            marks = ", ".join("?" * len(hashes))
            self._database.execute(f"DELETE FROM documents WHERE hash IN ({marks})", hashes)

    def incoming(self, digest: bytes) -> Path:
        """Return the path to fetch the payload `digest` to, before it is put. The file survives a restart."""
        return self.folder / "incoming" / digest.hex()

    def scratch(self, name: str) -> Path:
        """Return the path at which to make a file (also in a child process) before it is put. `name` has no folders."""
        return self.folder / "scratch" / name

    def abandon(self, wanted: Collection[bytes]) -> None:
        """Remove unfinished fetches, except those of `wanted` (hashes)."""
        names = {digest.hex() for digest in wanted}
        for path in (self.folder / "incoming").iterdir():
            if path.name.split(".")[0] not in names:
                remove_leftover(path)

    def put_payload(self, era: int, version: int, digest: bytes, path: Path) -> Path:
        """Move the file `path` (on this filesystem) into the store, as the payload `digest` that leads to (era,
        version). Return its new path. The caller has checked its hash (rule 3)."""
        return self._take(f"payloads/{digest.hex()}", era, version, digest, path)

    def put_snapshot(self, era: int, version: int, root: bytes, path: Path) -> Path:
        """Move the snapshot file `path` (on this filesystem) into the store; return its new path. The caller has
        checked its content root (rule 3)."""
        return self._take(f"snapshots/{snapshot_name(version, root)}", era, version, root, path)

    def collect(
        self,
        keep: Collection[tuple[int, int]],
        budget_bytes: int,
        *,
        kind: Literal["payloads/", "snapshots/", ""] = "",
        spare: Collection[bytes] = (),
    ) -> list[StoredFile]:
        """Drop payloads and snapshots, or files of one `kind`, oldest first, until they take at most `budget_bytes`.
        Never drop those of `keep` ((era, version) pairs) and `spare` (hashes). Return the dropped files."""
        dropped: list[StoredFile] = []
        files = self._files(kind)
        excess = sum(file.nbytes for file in files) - budget_bytes
        for file in files:
            if excess > 0 and (file.era, file.version) not in keep and file.hash not in spare:
                dropped.append(file)
                excess -= file.nbytes
        for start in range(0, len(dropped), _AT_ONCE):
            self._drop([file.path for file in dropped[start : start + _AT_ONCE]])
        return dropped

    def drop_file(self, path: Path) -> None:
        """Delete one payload or snapshot: its row, then its file."""
        self._drop([path])

    def _take(self, name: str, era: int, version: int, digest: bytes, path: Path) -> Path:
        target = self.folder / name
        with self._mutex:
            if self._path(name) is None:
                sync_file(path)
                nbytes = path.stat().st_size
                move(path, target)
                self._write("INSERT INTO files VALUES (?, ?, ?, ?, ?)", (name, digest, era, version, nbytes))
                return target
            newer = "UPDATE files SET era = ?, version = ? WHERE name = ? AND (era, version) < (?, ?)"
            self._write(newer, (era, version, name, era, version))
            if path != target:
                path.unlink()
        return target

    def _drop(self, paths: list[Path]) -> None:
        names = [path.relative_to(self.folder).as_posix() for path in paths]
        with self._mutex:
            self._write(f"DELETE FROM files WHERE name IN ({', '.join('?' * len(names))})", names)
            for path in paths:
                path.unlink(missing_ok=True)

    def _set_up(self) -> None:
        sqlite_form.make(self._database, SCHEMA)
        check: str = self._database.execute("PRAGMA quick_check(1)").fetchone()[0]
        if check != "ok":
            raise self._corrupt(check)

    def _sweep(self) -> None:
        """Make rows and files agree (rules 1 and 2)."""
        rows = {file.path: file.nbytes for file in self._files("")}
        for path, nbytes in rows.items():
            if not path.is_file() or path.stat().st_size != nbytes:
                self._drop([path])
        for folder in (*_FOLDERS, "scratch"):
            for path in (self.folder / folder).iterdir():
                if path not in rows:
                    remove_leftover(path)
            sync_folder(self.folder / folder)

    def _write(self, query: str, values: Sequence[object]) -> None:
        with self._mutex, self._translate_errors():
            self._database.execute(query, values)


def snapshot_name(version: int, root: bytes) -> str:
    """Return the file name of a version's snapshot."""
    return f"{version}-{root.hex()}.safetensors"


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        database.execute(f"PRAGMA journal_mode = {journal_mode(path)}")
        database.execute("PRAGMA synchronous = FULL")
    except BaseException:
        database.close()
        raise
    return database


def _connect_to_read(path: Path) -> sqlite3.Connection:
    # mode=ro and not immutable: the daemon may write meanwhile, and each query then sees a whole transaction.
    if not path.exists():
        raise FileNotFoundError(f"{path.parent} holds no store")
    # WAL wants its -shm file even from a reader, so the folder must be writable unless a daemon has made it.
    if not os.access(path, os.R_OK) or not os.access(path.parent, os.W_OK):
        raise PermissionError(f"cannot open {path}: run this as the owner of its folder")
    return sqlite3.connect(
        f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
    )


def _lock_store(path: Path) -> Lock:
    try:
        return lock_file(path)
    except AlreadyLocked as error:
        raise StoreBusy(f"{path.parent} is open in another process: stop that one first") from error
