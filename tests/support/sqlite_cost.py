"""Count what an action costs SQLite: instructions of its virtual machine, statements, written rows.

Instructions tell how much is read and written, whatever the machine; they are counted in tens.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from coordinator.database import Database

EVERY = 10
"""Instructions per count."""


def instructions(database: Database, action: Callable[[], object], every: int = EVERY) -> int:
    """Return how many times `every` instructions an action takes."""
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
    """Return how many rows were written since the database was opened."""
    return database.connection.total_changes
