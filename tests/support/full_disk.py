"""A disk, or the machine's memory, that becomes full: for a database and for `runtime.files.writing`."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from echo2.coordinator.database.database import Database
from echo2.runtime.errors import DiskFull
from echo2.runtime.files import writing


class Refusing:
    """A database connection whose commits fail for lack of room once `full` is set."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.full = False

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if self.full and sql == "COMMIT":
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorname = "SQLITE_FULL"
            raise error
        return self._connection.execute(sql, *parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def refusing(database: Database) -> Refusing:
    """Put a refusing connection into `database`, and return it."""
    connection = Refusing(database._connection)
    database._connection = connection  # type: ignore[assignment]
    return connection


def no_room_below(root: Path) -> Callable[..., contextlib.AbstractContextManager[BinaryIO]]:
    """Return the `writing` of a machine where no byte more fits below a folder."""

    @contextlib.contextmanager
    def refused(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
        if root in path.parents:
            raise DiskFull(f"no room to write {path} (No space left on device): free space there")
        with writing(path, mode) as file:
            yield file

    return refused
