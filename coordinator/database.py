"""The run's one file of record: run.sqlite, SQLite in WAL mode with synchronous=FULL.

Rules
1. What `transaction` has committed survives kill -9 and power loss; what it has not committed never happened.
2. One process writes: a lock file beside the database is held (flock) as long as it is open. Readers use `read`.
3. The schema has a number (user_version). `open` brings an older file up to this program's (coordinator/schema.py); an
   older program never opens a newer file.
4. Entries of the ledger are neither changed nor removed, and a lease's final state is final: triggers say so.
5. The whole file is checked for damage where the process that wrote it last did not close it, and once a day: at `open`
   where it has up to `LARGE` bytes, else beside the run (`check`), as that reads all of it. A file that was found to be
   unsound stays due for a check. Between two checks a damaged page is found when it is touched.
6. Every error of SQLite leaves as a `DatabaseFault`, or as `DiskFull` where a commit found no room and was rolled
   back. The one line of either names the fix.
7. Under `group_commits` what one iteration of the event loop writes is one commit, and `durable` waits for it: see
   coordinator/group_commit.py.
"""

import contextlib
import sqlite3
from collections.abc import Generator, Iterator, Sized
from pathlib import Path
from typing import Any, Self

import structlog

from coordinator.group_commit import GroupCommit
from coordinator.schema import SCHEMA_VERSION, migrate
from runtime.errors import DiskFull, LocalFault
from runtime.lock import AlreadyLocked, Lock, lock_file
from runtime.units import DAY, unix_milliseconds

BUSY_SECONDS = 2.0
CACHE = 64 << 20
"""Bytes of pages that the writer keeps: keys are random, so a group touches pages all over the file."""
LARGE = 64 << 20
"""Bytes of a file whose check and migration take long."""
CHECK_EVERY = DAY
"""Milliseconds from one check of a file to the next."""
_IN_USE = "in_use"
"""The fact that stands while a process writes the file, and stays where it does not close it."""
_CHECKED = "checked_at"

log = structlog.get_logger("coordinator")

# Lives in memory only: the set of drawn groups is the learner's checkpoint's, and nobody else's.
_SESSION = "CREATE TEMP TABLE drawn (lease BLOB PRIMARY KEY, version INTEGER NOT NULL)"


class DatabaseFault(LocalFault):
    """run.sqlite cannot be used; the message names the file and the fix."""


class Corrupt(DatabaseFault):
    """The file is damaged, or no database at all."""


class InUse(DatabaseFault):
    """Another process holds the file."""


class WrongSchema(DatabaseFault):
    """Written by another version of the program."""


class Database:
    """An open run.sqlite. Use from one thread. `path`: the file. `checked`: False while a check is due (rule 5)."""

    def __init__(self, connection: sqlite3.Connection, path: Path, lock: Lock | None) -> None:
        self._connection = connection
        self.path = path
        self._lock = lock
        self._depth = 0
        self._group: GroupCommit | None = None
        self.checked = True

    @classmethod
    def open(cls, path: Path, now: int | None = None) -> Self:
        """Open for writing; a missing file is created. `now`: ms since the Unix epoch, the system's where it is not
        given. Raises `DatabaseFault`."""
        lock = _locked(path)
        try:
            opened = cls(_connect(path, f"file:{_quoted(path)}?mode=rwc", _prepare), path, lock)
            opened._take_into_use(unix_milliseconds() if now is None else now)
        except BaseException:
            lock.release()
            raise
        return opened

    @classmethod
    def read(cls, path: Path) -> Self:
        """Open for reading, beside the process that writes. Raises `DatabaseFault`."""
        if not path.exists():
            raise DatabaseFault(f"there is no {path}: is this the folder of a run?")
        return cls(_connect(path, f"file:{_quoted(path)}?mode=ro", _check_schema), path, None)

    def _take_into_use(self, now: int) -> None:
        """Check the file where that is due, or leave it to `check` (rule 5)."""
        try:
            last: int | None = self.fact(_CHECKED)
            due = self.fact(_IN_USE) is not None or last is None or not 0 <= now - last < CHECK_EVERY
            self.checked = not due
            if due and _small(self.path):
                with _translated(self.path):
                    _check(self._connection, self.path)
                self.found_sound(now)
            self.set_fact(_IN_USE, 1)
        except BaseException:
            self._connection.close()
            raise

    def found_sound(self, now: int) -> None:
        """The whole file was checked at `now`, ms, and is sound."""
        self.set_fact(_CHECKED, now)
        self.checked = True

    def close(self) -> None:
        if self._group is not None:
            self._group.end()
        if self._lock is not None and self.checked:
            with contextlib.suppress(DatabaseFault, DiskFull):  # then the next start checks the file
                self.do("DELETE FROM facts WHERE name = ?", (_IN_USE,))
        self._connection.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def group_commits(self) -> Iterator[GroupCommit]:
        """Let each iteration of the running event loop be one commit for the length of the block."""
        self._group = group = GroupCommit(self._begin_group, self._commit_group)
        try:
            yield group
        finally:
            group.end()
            self._group = None

    async def durable(self) -> None:
        """Return once everything that was written is committed. Await it before telling anybody of it."""
        if self._group is not None:
            await self._group.durable()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, durable when the block ends. Inside another transaction: a part of it that can fail alone;
        under `group_commits` it always is one, and `durable` tells when it is committed."""
        self._join()
        self._depth += 1
        name = f"part_{self._depth}"
        try:
            self._run("BEGIN IMMEDIATE" if self._depth == 1 else f"SAVEPOINT {name}")
            try:
                yield
                self._run("COMMIT" if self._depth == 1 else f"RELEASE {name}")
            except BaseException:
                self._undo(name)
                raise
        finally:
            self._depth -= 1

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """One state of the file for all that the block reads. For a connection of `read`."""
        self.do("BEGIN")
        try:
            yield
        finally:
            self.do("ROLLBACK")

    def _undo(self, name: str) -> None:
        # SQLite may have rolled back by itself (disk full); then there is nothing left to undo.
        if not self._connection.in_transaction:
            return
        if self._depth == 1:
            self._run("ROLLBACK")
        else:
            self._run(f"ROLLBACK TO {name}")
            self._run(f"RELEASE {name}")

    def _join(self) -> None:
        if self._group is not None and self._depth == 0:
            self._group.join()

    def _begin_group(self) -> None:
        self._run("BEGIN IMMEDIATE")
        self._depth = 1

    def _commit_group(self) -> None:
        depth, self._depth = self._depth, 0
        try:
            if depth != 1:
                raise RuntimeError("a transaction was left open over the end of an iteration of the event loop")
            self._run("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.rollback()
            raise

    def _run(self, sql: str, parameters: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        group = self._group
        if group is not None and group.fault is not None:
            raise group.fault
        try:
            with _translated(self.path):
                return self._connection.execute(sql, parameters)
        except (DatabaseFault, DiskFull) as fault:
            if group is not None and self._depth and not self._connection.in_transaction:
                group.break_with(fault)  # SQLite has undone what others wrote in this iteration, too
            raise

    def do(self, sql: str, parameters: tuple[Any, ...] = ()) -> int:
        """Run one statement that may write; rows changed."""
        self._join()
        return self._run(sql, parameters).rowcount

    def all(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with _translated(self.path):
            return self._run(sql, parameters).fetchall()

    def one(self, sql: str, parameters: tuple[Any, ...] = ()) -> tuple[Any, ...] | None:
        """The first row, or None."""
        with _translated(self.path):
            row: tuple[Any, ...] | None = self._run(sql, parameters).fetchone()
        return row

    def value(self, sql: str, parameters: tuple[Any, ...] = ()) -> Any:
        """The first column of the first row; None where there is no row."""
        row = self.one(sql, parameters)
        return None if row is None else row[0]

    def each(self, sql: str, parameters: tuple[Any, ...] = ()) -> Generator[tuple[Any, ...], None, None]:
        """Rows one by one, for tables too long for memory. Close it before the tables that it reads are changed."""
        with _translated(self.path):
            yield from self._run(sql, parameters)

    def fact(self, name: str) -> Any:
        """A named value of the run, or None."""
        return self.value("SELECT value FROM facts WHERE name = ?", (name,))

    def set_fact(self, name: str, value: int | str | bytes) -> None:
        self.do("INSERT INTO facts VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", (name, value))


def _quoted(path: Path) -> str:
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _locked(path: Path) -> Lock:
    try:
        return lock_file(path.with_name(f"{path.name}.lock"))
    except AlreadyLocked as error:
        raise InUse(f"{path} is in use: another coordinator runs here; stop it first") from error
    except OSError as error:
        raise DatabaseFault(f"cannot write beside {path}: {error.strerror}; check the folder and its owner") from error


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
    version = _schema(connection, path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA cache_size = -{CACHE >> 10}")
    # Some systems' SQLite writes zeros over whatever is deleted: tokens that go would be written a second time.
    connection.execute("PRAGMA secure_delete = OFF")
    if version < SCHEMA_VERSION:
        if _small(path):
            _check(connection, path)
        _migrate(connection, path, version)
    connection.execute("PRAGMA foreign_keys = ON")


def _migrate(connection: sqlite3.Connection, path: Path, version: int) -> None:
    facts = {"file": path.name, "schema": version, "wanted": SCHEMA_VERSION, "megabytes": path.stat().st_size >> 20}
    if version and not _small(path):
        log.info("migration of the database begun", **facts)
    migrate(
        connection,
        version,
        lambda what, seconds: log.info("migration of the database goes on", making=what, seconds=seconds),
    )
    # What a migration wrote is a WAL as long as the tables that it made, and would stay so long.
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if version:
        log.info("database migrated", **facts)


def check(path: Path) -> None:
    """Look through a whole database that may be in use: seconds per gigabyte, in a thread. Raises `Corrupt`."""
    with Database.read(path) as database, _translated(path):
        _check(database._connection, path)


def _check(connection: sqlite3.Connection, path: Path) -> None:
    verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise _corrupt(path, verdict)


def marks(values: Sized) -> str:
    """Placeholders for so many values, as they stand after IN."""
    return ", ".join("?" * len(values))


def _small(path: Path) -> bool:
    return path.stat().st_size <= LARGE


def _schema(connection: sqlite3.Connection, path: Path) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if not 0 <= version <= SCHEMA_VERSION:
        raise WrongSchema(
            f"{path} has schema {version}, this program knows {SCHEMA_VERSION}: use the version that made it"
        )
    return version


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    """A reader writes nothing: it cannot migrate."""
    version = _schema(connection, path)
    if version < SCHEMA_VERSION:
        raise WrongSchema(
            f"{path} has schema {version}, this program reads {SCHEMA_VERSION}: start the coordinator once, which"
            " brings the file up to date"
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
