"""Commits of run.sqlite as on a slow disk: ECHO2_STAND_INS=connection=benchmarks.load.slow_connection
(runtime/stand_ins.py)."""

import os
import sqlite3
import time
from typing import Any, Final

MODULE: Final = "benchmarks.load.slow_connection"
MILLISECONDS: Final = "LOAD_COMMIT_MILLISECONDS"
_WRITES: Final = ("INSERT", "UPDATE", "DELETE", "REPLACE")


class Connection(sqlite3.Connection):
    """A connection that sleeps for `MILLISECONDS` at each commit: at COMMIT, and after a statement outside a
    transaction that writes."""

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        """See `sqlite3.Connection`."""
        lone = not self.in_transaction and sql.lstrip().upper().startswith(_WRITES)
        cursor = super().execute(sql, *parameters)
        if (lone and "temp." not in sql) or sql == "COMMIT":
            time.sleep(float(os.environ[MILLISECONDS]) / 1000)
        return cursor
