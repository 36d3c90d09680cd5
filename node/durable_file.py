"""A SQLite file of the node: every change is durable when its method returns."""

import contextlib
import itertools
import shlex
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from echo2.node.errors import BadConfig, TryLater
from echo2.runtime import sqlite_form
from echo2.runtime.exit_codes import Exit
from echo2.runtime.network_disk import journal_mode
from echo2.runtime.surroundings import describe


def other_build(folder: Path, names: Sequence[str]) -> str:
    """Return what to do about the folder of a run in which another build of echo2 made files."""
    files = " ".join(f"{name}*" for name in names)
    aside = next(name for number in itertools.count(1) if not (folder / (name := f"old-{number}")).exists())
    return (
        f"another build of echo2 made {', '.join(names)} in {folder}: go on with that build, or move this aside (cd "
        f"{shlex.quote(str(folder))} && mkdir {aside} && mv {files} {aside}) and start again; key and points stay, but "
        f"`status` and `earnings` count anew, receipts are kept in {aside} for that build, and groups there without an "
        "answer are lost"
    )


class DurableFile:
    """The file. Each method may raise `TryLater`: the disk is full or fails."""

    def __init__(self, path: Path, schema: str, *, lost: str) -> None:
        """`schema`: statements that make the tables. `lost`: what a damaged file costs, in words. Raises
        `BadConfig` if the file is damaged or another build made it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if sqlite_form.is_of_another_build(path, schema):
            raise BadConfig(other_build(path.parent, [path.name]))
        self._path = path
        try:
            with self._room():
                self._database = sqlite3.connect(path, isolation_level=None)
                has_tables = sqlite_form.is_made(self._database, schema)
                self._database.execute(f"PRAGMA journal_mode = {journal_mode(path)}")
                self._database.execute("PRAGMA synchronous = FULL")
                if not has_tables:
                    sqlite_form.make(self._database, schema)
        except sqlite3.DatabaseError as error:
            raise BadConfig(f"{path} cannot be read ({error}): move it away; {lost}") from error

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def do(self, query: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        """Execute a statement."""
        with self._room():
            return self._database.execute(query, values)

    def do_many(self, query: str, values: Sequence[tuple[object, ...]]) -> None:
        """Execute a statement for each row of values, as one change."""
        with self.one_change():
            self._database.executemany(query, values)

    @contextlib.contextmanager
    def one_change(self) -> Iterator[None]:
        """Make the statements of the block one change: all of them count, or none."""
        with self._room():
            self._database.execute("BEGIN")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        """Translate SQLite's errors of the surroundings: of a full or failing disk, or a locked file, to `TryLater`,
        of one that may not be written to `BadConfig`. Earlier rows are intact."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                refused = f"the disk refuses {self._path} ({error}): free space there, or check it"
                raise TryLater(refused) from error
            if (told := describe(error)) is None:
                raise
            kind = TryLater if told.code is Exit.TEMPORARY else BadConfig
            raise kind(f"{self._path}: {told.sentence}") from error
