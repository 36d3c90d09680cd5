"""A file of the node's home that another build made is refused in one sentence, and stays as it was."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from echo2.node.durable_file import DurableFile
from echo2.node.errors import BadConfig, TryLater

SCHEMA = "CREATE TABLE asks (epoch INTEGER PRIMARY KEY);"


def test_a_file_keeps_its_rows(tmp_path: Path) -> None:
    for count in range(2):
        with closing(DurableFile(tmp_path / "file.sqlite", SCHEMA, lost="")) as file:
            assert len(file.do("SELECT epoch FROM asks").fetchall()) == count
            file.do("INSERT INTO asks VALUES (?)", (count,))


@pytest.mark.slow
def test_a_file_that_another_process_has_locked_is_not_called_damaged(tmp_path: Path) -> None:
    """SQLite waits 5 s for the lock, which costs no CPU."""
    path = tmp_path / "file.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(TryLater, match=r"file\.sqlite: a database is locked: another process has it open"):
            DurableFile(path, SCHEMA, lost="asks go")


@pytest.mark.parametrize("script", ["CREATE TABLE asks (epoch INTEGER PRIMARY KEY, ask INTEGER);", "SELECT 1;"])
def test_a_file_of_another_build_is_refused_and_stays_as_it_was(script: str, tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite"
    with closing(DurableFile(path, script, lost="")) as file:
        file.do("PRAGMA user_version")
    before = path.read_bytes()
    with pytest.raises(
        BadConfig, match=r"^another build of echo2 made file\.sqlite in \S+: go on with that build, or "
    ):
        DurableFile(path, SCHEMA, lost="asks go")
    assert path.read_bytes() == before


def test_a_file_of_a_build_that_marked_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(SCHEMA)
    with pytest.raises(BadConfig, match=r"another build of echo2 made file\.sqlite"):
        DurableFile(path, SCHEMA, lost="asks go")
