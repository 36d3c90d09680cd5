"""A database on a disk that becomes full."""

import sqlite3
from typing import Any

from echo2.coordinator.database.database import Database


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
