"""Open, check and query run.sqlite, the record of a run's nodes, leases, verdicts and ledger.

The file is SQLite's, in WAL mode with synchronous=FULL.

Rules
1. A transaction is atomic and durable: a committed one survives kill -9 and power loss, an uncommitted one leaves no
   trace.
2. One process writes: it keeps an flock on a lock file beside the database while that is open. Readers use `read`.
3. `open` makes the tables of a new file (coordinator/database/schema.py). A file of another build is refused, and its
   content stays as it was (runtime/sqlite_form.py).
4. Triggers keep ledger entries from being changed or removed, and a lease's final state from being changed.
5. The whole file is checked for damage after an unclean close, and once per day. A file of up to `LARGE_DATABASE_BYTES`
   bytes is checked at `open`, a larger one in a thread beside the run (`check`), because a check reads every page. A
   file that failed its check stays due for one. Between two checks a damaged page is detected when it is read.
6. An SQLite error of the machine (damage, a lock, no access, failed I/O) is raised as a `DatabaseFault`, a full disk as
   `DiskFull`. The message of either is one line and names the fix. An SQLite error by a bug of this program, such as a
   violated constraint, is raised unchanged.
7. Rows that the next write needs again are remembered as they were written, until anything is undone
   (coordinator/database/written_rows.py).
8. Rows given to `later` wait, and are written with the others of their statement before the transaction's next other
   statement, which may be its end. So every read sees them, and an error of theirs ends the transaction that gave them.
   Statements run in the order of their first rows, those of rows to which others refer before all (`first`). Besides
   that, give no row to `later` whose effect depends on a row of another statement that waits beside it.
9. Under `group_commits` the writes of one iteration of the event loop are one commit, and `durable` waits for it: see
   coordinator/database/group_commit.py.
"""

import contextlib
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sized
from pathlib import Path
from typing import Any, Self

import structlog

from echo2.coordinator.database.group_commit import GroupCommit
from echo2.coordinator.database.schema import SCRIPT, SESSION
from echo2.coordinator.database.written_rows import WrittenRows
from echo2.runtime import sqlite_form
from echo2.runtime.errors import DiskFull, LocalFault
from echo2.runtime.exit_codes import Exit
from echo2.runtime.lock import AlreadyLocked, Lock, lock_file
from echo2.runtime.stand_ins import or_stand_in
from echo2.runtime.surroundings import describe
from echo2.runtime.units import DAY, unix_milliseconds

BUSY_SECONDS = 2.0
CACHE = 64 << 20
"""Bytes of the writer's page cache: keys are random, so a group touches pages all over the file."""
LARGE_DATABASE_BYTES = 64 << 20
"""Bytes above which a check of the file takes long."""
CHECK_EVERY = DAY
"""Milliseconds between two checks of a file."""
_IN_USE = "in_use"
"""The fact that is set while a process writes the file; it remains after an unclean close."""
_CHECKED_FACT = "checked_at"

log = structlog.get_logger("coordinator")


class DatabaseFault(LocalFault):
    """run.sqlite cannot be used; the message names the file and the fix."""


class Corrupt(DatabaseFault):
    """The file is damaged, or it is not a database."""


class InUse(DatabaseFault):
    """Another process holds the file."""


class WrongSchema(DatabaseFault):
    """Another build of this program made the file."""


class Database:
    """An open run.sqlite. Use from one thread. `path`: the file. `checked`: False while a check is due (rule 5).
    `written`: rows as they were written here last."""

    def __init__(self, connection: sqlite3.Connection, path: Path, lock: Lock | None) -> None:
        self._connection = connection
        self.path = path
        self._lock = lock
        self._depth = 0
        self._group: GroupCommit | None = None
        self.checked = True
        self.written = WrittenRows()
        self._waiting: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection to SQLite, for counting and tracing its work."""
        return self._connection

    @classmethod
    def open(cls, path: Path, now: int | None = None) -> Self:
        """Open for writing; a missing file is created. `now`: ms since the Unix epoch, default: the system clock.
        Raises `DatabaseFault`, `DiskFull`."""
        lock = _lock_database(path)
        try:
            opened = cls(_connect(path, f"file:{_quote_path(path)}?mode=rwc", _prepare), path, lock)
            opened._take_into_use(unix_milliseconds() if now is None else now)
        except BaseException:
            lock.release()
            raise
        return opened

    @classmethod
    def read(cls, path: Path, *, any_thread: bool = False) -> Self:
        """Open for reading, beside the process that writes. `any_thread`: any thread may use it, one at a time. Raises
        `DatabaseFault`."""
        if not path.exists():
            raise DatabaseFault(f"no {path}: name the run folder with --home; `echo2-coord run` makes the file")
        return cls(_connect(path, f"file:{_quote_path(path)}?mode=ro", _check_made, any_thread), path, None)

    def _take_into_use(self, now: int) -> None:
        """Check the file if that is due and the file is small; a large one is left to `check` (rule 5)."""
        try:
            last: int | None = self.fact(_CHECKED_FACT)
            due = self.fact(_IN_USE) is not None or last is None or not 0 <= now - last < CHECK_EVERY
            self.checked = not due
            if due and _small(self.path):
                with _translate_errors(self.path):
                    _check(self._connection, self.path)
                self.found_sound(now)
            self.set_fact(_IN_USE, 1)
        except BaseException:
            self._connection.close()
            raise

    def found_sound(self, now: int) -> None:
        """Record that the whole file passed its check at `now`, ms."""
        self.set_fact(_CHECKED_FACT, now)
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
        """Commit once per iteration of the running event loop, during the block."""
        self._group = group = GroupCommit(self._begin_group, self._commit_group)
        try:
            yield group
        finally:
            group.end()
            self._group = None

    async def durable(self) -> None:
        """Return once everything written so far is committed. Await it before any reply that depends on it."""
        if self._group is not None:
            await self._group.durable()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block as one transaction, durable when the block ends.

        Nested, or under `group_commits`, the transaction is a savepoint, which can fail alone. It is then durable once
        the outermost transaction is committed: under `group_commits`, when `durable` returns."""
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
        """Read one snapshot of the file during the block. For a connection of `read`."""
        self.do("BEGIN")
        try:
            yield
        finally:
            self.do("ROLLBACK")

    def within(self) -> contextlib.AbstractContextManager[None]:
        """Return `transaction`, or where one is open already nothing. For writes that cannot fail alone: an error among
        them has to end the open transaction, so nobody may catch it there."""
        return contextlib.nullcontext() if self._is_open() else self.transaction()

    def _is_open(self) -> bool:
        """Tell whether a `transaction` is open."""
        return self._depth > (1 if self._group is not None else 0)

    def _forget(self) -> None:
        """Forget rows that were written, and those that wait: a part of the transaction is undone."""
        self.written.forget_all()
        self._waiting.clear()

    def _undo(self, name: str) -> None:
        self._forget()
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
            self._forget()
            if self._connection.in_transaction:
                self._connection.rollback()
            raise

    def _run(self, sql: str, parameters: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        if self._waiting:
            self._write_waiting()
        return self._run_guarded(self._connection.execute, sql, parameters)

    def _write_waiting(self) -> None:
        """Write the rows that wait (rule 8)."""
        waiting, self._waiting = self._waiting, defaultdict(list)
        for sql, rows in waiting.items():
            self._run_guarded(self._connection.executemany, sql, rows)

    def _run_guarded(self, execute: Callable[[str, Any], sqlite3.Cursor], sql: str, parameters: Any) -> sqlite3.Cursor:
        group = self._group
        if group is not None and group.fault is not None:
            raise group.fault
        try:
            return execute(sql, parameters)
        except sqlite3.DatabaseError as error:
            fault = _fault_of(self.path, error)
            if fault is None:
                raise
            if group is not None and self._depth and not self._connection.in_transaction:
                group.break_with(fault)  # SQLite has rolled back all writes of this iteration
            raise fault from error

    def do(self, sql: str, parameters: tuple[Any, ...] = ()) -> int:
        """Execute a statement that may write; return the number of changed rows."""
        if self._depth == 0:
            self._join()
        return self._run(sql, parameters).rowcount

    def later(self, sql: str, row: tuple[Any, ...], *, first: bool = False) -> None:
        """Write a row by `sql` with the others of this statement in the open transaction (rule 8); without one, now.
        `first`: before the rows of other statements that wait."""
        if not self._is_open():
            self.do(sql, row)
            return
        if first and sql not in self._waiting:
            self._waiting = defaultdict(list, {sql: [], **self._waiting})
        self._waiting[sql].append(row)

    def all(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        with _translate_errors(self.path):
            return self._run(sql, parameters).fetchall()

    def one(self, sql: str, parameters: tuple[Any, ...] = ()) -> tuple[Any, ...] | None:
        """Return the first row, or None."""
        cursor = self._run(sql, parameters)
        try:
            row: tuple[Any, ...] | None = cursor.fetchone()
        except sqlite3.DatabaseError as error:
            fault = _fault_of(self.path, error)
            if fault is None:
                raise
            raise fault from error
        return row

    def value(self, sql: str, parameters: tuple[Any, ...] = ()) -> Any:
        """Return the first column of the first row; None without a row."""
        row = self.one(sql, parameters)
        return None if row is None else row[0]

    def each(self, sql: str, parameters: tuple[Any, ...] = ()) -> Generator[tuple[Any, ...], None, None]:
        """Yield rows one by one, for tables too long for memory. Close the generator before the tables that it reads
        are changed."""
        with _translate_errors(self.path):
            yield from self._run(sql, parameters)

    def fact(self, name: str) -> Any:
        """Return a named value of the run, or None."""
        return self.value("SELECT value FROM facts WHERE name = ?", (name,))

    def set_fact(self, name: str, value: int | str | bytes) -> None:
        """Write a named value of the run, in place of an earlier one."""
        self.do("INSERT INTO facts VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", (name, value))


def _quote_path(path: Path) -> str:
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _lock_database(path: Path) -> Lock:
    try:
        return lock_file(path.with_name(f"{path.name}.lock"))
    except AlreadyLocked as error:
        raise InUse(f"{path} is in use: another coordinator runs here; stop it first") from error
    except OSError as error:
        raise DatabaseFault(f"cannot write beside {path}: {error.strerror}; check the folder and its owner") from error


class ReadConnections:
    """Connections for short reads from many threads: each serves one read at a time and is used again, since opening
    one takes longer than most reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: list[Database] = []

    @contextlib.contextmanager
    def reading(self) -> Iterator[Database]:
        """Read one state of the file during the block. Raises `DatabaseFault`."""
        try:
            database = self._idle.pop()
        except IndexError:
            database = Database.read(self._path, any_thread=True)
        try:
            with database.reading():
                yield database
        except BaseException:
            database.close()
            raise
        self._idle.append(database)


def _connect(path: Path, uri: str, prepare: Any, any_thread: bool = False) -> sqlite3.Connection:
    with _translate_errors(path):
        connection = sqlite3.connect(
            uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=not any_thread,
            factory=or_stand_in("connection", sqlite3.Connection),
        )  # fmt: skip
        try:
            connection.execute("PRAGMA temp_store = MEMORY")
            prepare(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    has_tables = _is_made(connection, path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA cache_size = -{CACHE >> 10}")
    # Some builds of SQLite overwrite deleted content with zeros: deleted tokens would be written a second time.
    connection.execute("PRAGMA secure_delete = OFF")
    if not has_tables:
        sqlite_form.make(connection, SCRIPT)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.executescript(SESSION)


def check(path: Path) -> None:
    """Check a whole database that may be in use. Blocks for seconds per gigabyte: call it in a thread. Raises
    `Corrupt`."""
    with Database.read(path) as database, _translate_errors(path):
        _check(database._connection, path)


def _check(connection: sqlite3.Connection, path: Path) -> None:
    verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise _corrupt(path, verdict)


def marks(values: Sized) -> str:
    """Return one SQL placeholder per value, joined by commas, to stand in the parentheses after IN."""
    return ", ".join("?" * len(values))


def _small(path: Path) -> bool:
    return path.stat().st_size <= LARGE_DATABASE_BYTES


def _is_made(connection: sqlite3.Connection, path: Path) -> bool:
    """Tell whether the file has its tables; False: it is empty. Raises `WrongSchema`."""
    try:
        return sqlite_form.is_made(connection, SCRIPT)
    except sqlite_form.OtherForm as error:
        raise WrongSchema(
            f"another build of echo2 made {path} ({error}): run the build that made it, or begin a new run in an empty"
            " folder"
        ) from error


def _check_made(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file of another build, or without tables: a reader cannot make them."""
    if not _is_made(connection, path):
        raise DatabaseFault(f"{path} is empty: `echo2-coord run` makes its tables")


def _corrupt(path: Path, why: object) -> Corrupt:
    first = str(why).splitlines()[0]
    return Corrupt(
        f"{path} is damaged ({first}): keep a copy, then restore a backup or run `sqlite3 {path.name} .recover`"
    )


@contextlib.contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    """Raise the SQLite errors of the block as rule 6 says."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        fault = _fault_of(path, error)
        if fault is None:
            raise
        raise fault from error


def _fault_of(path: Path, error: sqlite3.DatabaseError) -> LocalFault | None:
    """Return the fault of the machine behind an SQLite error; None: it is a bug of this program (rule 6)."""
    name = "" if isinstance(error, sqlite3.IntegrityError) else getattr(error, "sqlite_errorname", "")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return _corrupt(path, error)
    if name == "SQLITE_FULL":
        return DiskFull(f"no room to write {path}: free disk space, then start again")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return InUse(f"{path} is locked by another process: close it (a shell, a backup) and start again")
    if name.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")):
        told = describe(error)
        if told is not None and told.code is Exit.TEMPORARY:  # no descriptor is left
            return DatabaseFault(f"cannot use {path}: {told.sentence}")
        return DatabaseFault(f"cannot use {path}: {error}; check the disk, the folder and its owner")
    return None
