"""Rows of run.sqlite as this process wrote them last, so that they need not be read again for the next write.

Rules
1. A row is remembered after the statement that wrote it, or read it to decide a write. One process writes a file
   (coordinator/database/database.py, rule 2), so its last write stands there.
2. If anything is undone, a transaction or a part of one, everything is forgotten, and read again.
3. Code that writes rows of a remembered table by another statement forgets them (`forget`).
4. Reports and checks read the tables. Only code that decides a write looks here first.
"""

from collections import defaultdict
from collections.abc import Hashable
from typing import Any, Final

MOST_WRITTEN_ROWS: Final = 4096
"""Rows of a table; beyond it they are forgotten, and remembered anew."""


class WrittenRows:
    """The rows that a `Database` remembers."""

    def __init__(self) -> None:
        self._tables: defaultdict[str, dict[Hashable, Any]] = defaultdict(dict)

    def get(self, table: str, key: Hashable) -> Any:
        """Return the value that was written last under a key; None: it is not remembered."""
        return self._tables[table].get(key)

    def put(self, table: str, key: Hashable, value: Any) -> None:
        """Remember the value that was just written under a key."""
        rows = self._tables[table]
        if len(rows) >= MOST_WRITTEN_ROWS:
            rows.clear()
        rows[key] = value

    def forget(self, table: str, key: Hashable) -> None:
        """Forget one row (rule 3)."""
        self._tables[table].pop(key, None)

    def forget_all(self) -> None:
        """Forget everything (rule 2)."""
        self._tables.clear()
