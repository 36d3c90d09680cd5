"""The run's one file of record: run.sqlite, SQLite in WAL mode with synchronous=FULL.

Rules
1. What `transaction` has committed survives kill -9 and power loss; what it has not committed never happened.
2. One process writes: a lock file beside the database is held (flock) as long as it is open. Readers use `read`.
3. The schema has a number (user_version). An older program never opens a newer file.
4. Entries of the ledger are neither changed nor removed, and a lease's final state is final: triggers say so.
5. Every error of SQLite leaves as a `DatabaseFault`, whose one line names the fix.
"""

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from p2p.errors import LocalFault

SCHEMA_VERSION = 1
BUSY_SECONDS = 2.0

SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value ANY NOT NULL) STRICT;
CREATE TABLE nodes (
    key BLOB PRIMARY KEY, name TEXT NOT NULL, software TEXT NOT NULL, engine TEXT NOT NULL, device TEXT NOT NULL,
    addresses BLOB NOT NULL, first_seen INTEGER NOT NULL, last_seen INTEGER NOT NULL, version INTEGER, banned TEXT
) STRICT;
CREATE TABLE versions (
    era INTEGER NOT NULL, version INTEGER NOT NULL, root BLOB NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (era, version)
) STRICT;
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY, at INTEGER NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL UNIQUE,
    postings BLOB NOT NULL, facts BLOB NOT NULL, hash BLOB NOT NULL
) STRICT;
CREATE TRIGGER entries_are_never_changed BEFORE UPDATE ON entries
BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END;
CREATE TRIGGER entries_are_never_removed BEFORE DELETE ON entries
BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END;
CREATE TABLE balances (account TEXT PRIMARY KEY, amount INTEGER NOT NULL) STRICT;
CREATE TABLE leases (
    id BLOB PRIMARY KEY, node BLOB NOT NULL, nonce BLOB NOT NULL, position INTEGER NOT NULL UNIQUE,
    era INTEGER NOT NULL, version INTEGER NOT NULL, sent INTEGER NOT NULL, expires INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'received', 'decided', 'expired')),
    document BLOB NOT NULL, sealed BLOB NOT NULL, UNIQUE (node, nonce)
) STRICT;
CREATE INDEX leases_by_state ON leases (state, node);
CREATE INDEX leases_by_node ON leases (node, position);
CREATE TRIGGER a_final_state_is_final BEFORE UPDATE OF state ON leases WHEN OLD.state IN ('decided', 'expired')
BEGIN SELECT RAISE(ABORT, 'this lease has its final state'); END;
CREATE TABLE submissions (
    lease BLOB PRIMARY KEY REFERENCES leases, hash BLOB NOT NULL, at INTEGER NOT NULL, payload BLOB,
    scores BLOB, received BLOB, conflicts INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE evidence (
    lease BLOB PRIMARY KEY REFERENCES leases, hash BLOB NOT NULL, at INTEGER NOT NULL, payload BLOB NOT NULL
) STRICT;
CREATE TABLE verdicts (
    lease BLOB PRIMARY KEY REFERENCES leases, node BLOB NOT NULL, verdict TEXT NOT NULL, code TEXT NOT NULL,
    trainable INTEGER NOT NULL, weight INTEGER NOT NULL, rollouts INTEGER NOT NULL, tokens INTEGER NOT NULL,
    entry INTEGER NOT NULL REFERENCES entries, at INTEGER NOT NULL, receipt BLOB NOT NULL,
    confirmed INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX verdicts_by_node ON verdicts (node, verdict, code);
CREATE TABLE buffer (
    lease BLOB PRIMARY KEY REFERENCES leases, era INTEGER NOT NULL, version INTEGER NOT NULL, at INTEGER NOT NULL,
    varied INTEGER NOT NULL, behaviour BLOB
) STRICT;
CREATE INDEX buffer_oldest_first ON buffer (era, version, at);
"""

# Lives in memory only: the set of drawn groups is the learner's checkpoint's, and nobody else's.
_SESSION = "CREATE TEMP TABLE drawn (lease BLOB PRIMARY KEY)"


class DatabaseFault(LocalFault):
    """run.sqlite cannot be used; the message names the file and the fix."""


class Corrupt(DatabaseFault):
    """The file is damaged, or no database at all."""


class DiskFull(DatabaseFault):
    """No room for the next commit; the transaction was rolled back."""


class InUse(DatabaseFault):
    """Another process holds the file."""


class WrongSchema(DatabaseFault):
    """Written by another version of the program."""


class Database:
    """An open run.sqlite. Use from one thread. `path`: the file."""

    def __init__(self, connection: sqlite3.Connection, path: Path, lock: int | None) -> None:
        self._connection = connection
        self.path = path
        self._lock = lock
        self._depth = 0

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open for writing; a missing file is created. Raises `DatabaseFault`."""
        lock = _lock(path)
        try:
            return cls(_connect(path, f"file:{_quoted(path)}?mode=rwc", _prepare), path, lock)
        except BaseException:
            os.close(lock)
            raise

    @classmethod
    def read(cls, path: Path) -> Self:
        """Open for reading, beside the process that writes. Raises `DatabaseFault`."""
        if not path.exists():
            raise DatabaseFault(f"there is no {path}: is this the folder of a run?")
        return cls(_connect(path, f"file:{_quoted(path)}?mode=ro", _check_version), path, None)

    def close(self) -> None:
        self._connection.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, durable when the block ends. Inside another transaction: a part of it that can fail alone."""
        self._depth += 1
        name = f"part_{self._depth}"
        try:
            self.do("BEGIN IMMEDIATE" if self._depth == 1 else f"SAVEPOINT {name}")
            try:
                yield
                self.do("COMMIT" if self._depth == 1 else f"RELEASE {name}")
            except BaseException:
                self._undo(name)
                raise
        finally:
            self._depth -= 1

    def _undo(self, name: str) -> None:
        # SQLite may have rolled back by itself (disk full); then there is nothing left to undo.
        if not self._connection.in_transaction:
            return
        if self._depth == 1:
            self.do("ROLLBACK")
        else:
            self.do(f"ROLLBACK TO {name}")
            self.do(f"RELEASE {name}")

    def do(self, sql: str, parameters: tuple[Any, ...] = ()) -> int:
        """Run one statement; rows changed."""
        with _translated(self.path):
            return self._connection.execute(sql, parameters).rowcount

    def all(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with _translated(self.path):
            return self._connection.execute(sql, parameters).fetchall()

    def one(self, sql: str, parameters: tuple[Any, ...] = ()) -> tuple[Any, ...] | None:
        """The first row, or None."""
        with _translated(self.path):
            row: tuple[Any, ...] | None = self._connection.execute(sql, parameters).fetchone()
        return row

    def value(self, sql: str, parameters: tuple[Any, ...] = ()) -> Any:
        """The first column of the first row; None where there is no row."""
        row = self.one(sql, parameters)
        return None if row is None else row[0]

    def each(self, sql: str, parameters: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """Rows one by one, for tables too long for memory."""
        with _translated(self.path):
            yield from self._connection.execute(sql, parameters)

    def fact(self, name: str) -> Any:
        """A named value of the run, or None."""
        return self.value("SELECT value FROM facts WHERE name = ?", (name,))

    def set_fact(self, name: str, value: int | str | bytes) -> None:
        self.do("INSERT INTO facts VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", (name, value))


def _quoted(path: Path) -> str:
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _lock(path: Path) -> int:
    try:
        descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DatabaseFault(f"cannot write beside {path}: {error.strerror}; check the folder and its owner") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise InUse(f"{path} is in use: another coordinator runs here; stop it first") from error
    return descriptor


def _connect(path: Path, uri: str, prepare: Any) -> sqlite3.Connection:
    with _translated(path):
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            prepare(connection, path)
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.execute(_SESSION)
        except BaseException:
            connection.close()
            raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    _check_version(connection, path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise _corrupt(path, found)
    if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
        # One script, one transaction: a crash here leaves an empty file, which is version 0 again.
        connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, SCHEMA_VERSION):
        raise WrongSchema(
            f"{path} has schema {version}, this program knows {SCHEMA_VERSION}: use the version that made it"
        )


def _corrupt(path: Path, why: object) -> Corrupt:
    first = str(why).splitlines()[0]
    return Corrupt(
        f"{path} is damaged ({first}): keep a copy, then restore a backup or run `sqlite3 {path.name} .recover`"
    )


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.IntegrityError:
        raise  # a broken rule of the schema is a bug of ours, not a fault of the machine
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            raise _corrupt(path, error) from error
        if name == "SQLITE_FULL":
            raise DiskFull(f"no room to write {path}: free disk space, then start again") from error
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise InUse(f"{path} is locked by another process: close it (a shell, a backup) and start again") from error
        if name.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")):
            raise DatabaseFault(f"cannot use {path}: {error}; check the disk, the folder and its owner") from error
        raise
