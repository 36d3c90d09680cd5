"""The cost of an action in SQLite: instructions of its virtual machine, statements, written rows.

The number of instructions grows with the rows read and written, and is the same on every machine.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from echo2.coordinator.database.database import Database

EVERY = 10
"""Instructions per count."""


def instructions(database: Database, action: Callable[[], object], every: int = EVERY) -> int:
    """Return the instructions of an action, in units of `every`."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    database.connection.set_progress_handler(count, every)
    action()
    database.connection.set_progress_handler(None, 0)
    return counted


@contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    """Collect the statements that are run in the block."""
    collected: list[str] = []
    database.connection.set_trace_callback(collected.append)
    try:
        yield collected
    finally:
        database.connection.set_trace_callback(None)


def written_rows(database: Database) -> int:
    """Return the number of rows written since the database was opened."""
    return database.connection.total_changes
