"""Make the tables of an SQLite file, or refuse a file whose tables another build made.

Rules
1. The form of a file is a checksum of the script that made it (`application_id`); `user_version` is 1 once it is made.
   Until echo2 is published a script changes in place, and no build reads the files of another form.
2. A file gets its tables and its form in one transaction: a kill in the middle leaves it empty.
3. A refused file is only read: its content stays as it was.
"""

import sqlite3
import zlib
from contextlib import closing
from pathlib import Path
from typing import Final

from echo2.runtime.errors import LocalFault

WITH_TABLES: Final = 1


class OtherForm(LocalFault):
    """Another build made the file; the message says in which way it differs, not what to do."""


def is_made(connection: sqlite3.Connection, script: str) -> bool:
    """Tell whether the file has the tables of `script`; False: it is empty. Raises `OtherForm`."""
    form = (_number(connection, "user_version"), _number(connection, "application_id"))
    if form == (WITH_TABLES, _form(script)):
        return True
    if form == (0, 0) and not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        return False
    raise OtherForm(f"schema {form[0]}, form {form[1]:08x}, not {WITH_TABLES} and {_form(script):08x}")


def is_of_another_build(path: Path, script: str) -> bool:
    """Tell whether another build made the tables of a file, which is opened to read alone (rule 3). One that is not
    there, or cannot be read at all, is the matter of its own opening."""
    if not path.exists():
        return False
    # Where no log lies beside it, none is made for the reader either.
    still = "" if path.with_name(f"{path.name}-wal").exists() else "&immutable=1"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{still}", uri=True)) as connection:
            is_made(connection, script)
    except OtherForm:
        return True
    except sqlite3.DatabaseError:
        return False
    return False


def make(connection: sqlite3.Connection, script: str) -> None:
    """Make the tables of `script` in an empty file. Raises `OtherForm`."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not is_made(connection, script):  # another process may have made them meanwhile
            # `executescript` would commit the open transaction.
            for statement in statements(script):
                connection.execute(statement)
            mark(connection, script)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def mark(connection: sqlite3.Connection, script: str) -> None:
    """Write into a file that it has the tables of `script`."""
    connection.execute(f"PRAGMA application_id = {_form(script)}")
    connection.execute(f"PRAGMA user_version = {WITH_TABLES}")


def statements(script: str) -> list[str]:
    whole, begun = [], ""
    for piece in script.split(";")[:-1]:
        begun += piece + ";"
        if sqlite3.complete_statement(begun):
            whole.append(begun)
            begun = ""
    if begun.strip():
        raise ValueError(f"a statement of the schema lacks its semicolon: {begun.strip()[:80]}")
    return whole


def _number(connection: sqlite3.Connection, name: str) -> int:
    number: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return number


def _form(script: str) -> int:
    return zlib.crc32(script.encode()) & 0x7FFFFFFF
