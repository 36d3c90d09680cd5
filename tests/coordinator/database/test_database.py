"""run.sqlite keeps committed data through crashes; every fault is one line for the operator."""

import contextlib
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echo2.coordinator.database.database import DAY, Corrupt, Database, DatabaseFault, InUse, WrongSchema, check
from echo2.runtime import sqlite_form
from echo2.runtime.errors import DiskFull


def fail_after_writing(database: Database) -> None:
    database.set_fact("lost", 2)
    database.do("INSERT INTO facts VALUES ('lost', 3)")


def write_much(database: Database) -> None:
    for number in range(10_000):
        database.set_fact(f"fact {number}", "x" * 100)


def test_deleted_content_is_not_overwritten(tmp_path: Path) -> None:
    """On 439044d dropping 8 MB of tokens wrote 8 MB of zeros, if SQLite was built so (as Debian's is)."""
    path = tmp_path / "run.sqlite"
    with Database.open(path) as database:
        for number in range(8):
            database.set_fact(f"fact {number}", b"t" * 1_000_000)
        database.all("PRAGMA wal_checkpoint(TRUNCATE)")
        database.do("DELETE FROM facts")
        assert path.with_name("run.sqlite-wal").stat().st_size < 1_000_000


def test_exactly_the_committed_data_is_there_after_a_restart(tmp_path: Path) -> None:
    with Database.open(tmp_path / "run.sqlite") as database:
        with database.transaction():
            database.set_fact("kept", 1)
        with pytest.raises(sqlite3.IntegrityError), database.transaction():
            fail_after_writing(database)
    with Database.open(tmp_path / "run.sqlite") as database:
        assert (database.fact("kept"), database.fact("lost")) == (1, None)


def test_a_part_of_a_transaction_can_fail_alone(tmp_path: Path) -> None:
    with Database.open(tmp_path / "run.sqlite") as database:
        with database.transaction():
            database.set_fact("kept", 1)
            with pytest.raises(sqlite3.IntegrityError), database.transaction():
                fail_after_writing(database)
        assert (database.fact("kept"), database.fact("lost")) == (1, None)


LATER = "INSERT INTO facts VALUES (?, ?)"


def write_later(database: Database, *names: str) -> None:
    for name in names:
        database.later(LATER, (name, 2))


def fail_with_waiting_rows(database: Database) -> None:
    write_later(database, "lost")
    fail_after_writing(database)


def test_rows_that_wait_are_seen_by_every_read_and_written_by_the_commit(tmp_path: Path) -> None:
    with Database.open(tmp_path / "run.sqlite") as database:
        with database.transaction():
            database.later(LATER, ("a", 1))
            database.later(LATER, ("b", 2))
            assert (database.fact("a"), database.fact("b")) == (1, 2)
            database.later(LATER, ("c", 3))
        database.later(LATER, ("d", 4))
    with Database.open(tmp_path / "run.sqlite") as database:
        assert [database.fact(name) for name in "abcd"] == [1, 2, 3, 4]


def test_rows_that_wait_are_undone_with_the_part_that_gave_them(tmp_path: Path) -> None:
    with Database.open(tmp_path / "run.sqlite") as database:
        with database.transaction():
            database.later(LATER, ("kept", 1))
            with pytest.raises(sqlite3.IntegrityError), database.transaction():
                fail_with_waiting_rows(database)
            with pytest.raises(sqlite3.IntegrityError), database.transaction():
                write_later(database, "lost", "kept")
        assert (database.fact("kept"), database.fact("lost")) == (1, None)


def test_a_row_that_waits_and_fails_at_the_commit_undoes_the_transaction(tmp_path: Path) -> None:
    with Database.open(tmp_path / "run.sqlite") as database:
        database.set_fact("a", 1)
        with pytest.raises(sqlite3.IntegrityError), database.transaction():
            write_later(database, "b", "a")
        assert (database.fact("a"), database.fact("b")) == (1, None)


def test_rows_to_which_others_refer_are_written_before_them(tmp_path: Path) -> None:
    with Database.open(tmp_path / "run.sqlite") as database:
        database.do("CREATE TABLE parents (id INTEGER PRIMARY KEY)")
        database.do("CREATE TABLE children (parent INTEGER REFERENCES parents)")
        with database.transaction():
            database.later("INSERT INTO children VALUES (?)", (None,))
            database.later("INSERT INTO parents VALUES (?)", (7,), first=True)
            database.later("INSERT INTO children VALUES (?)", (7,))
        assert database.all("SELECT * FROM children") == [(None,), (7,)]


async def test_a_row_that_fails_undoes_no_other_write_of_the_iteration(tmp_path: Path) -> None:
    with Database.open(tmp_path / "run.sqlite") as database, database.group_commits() as group:
        database.later(LATER, ("a", 1))
        with pytest.raises(sqlite3.IntegrityError), database.transaction():
            write_later(database, "b", "a")
        await group.durable()
        assert (database.fact("a"), database.fact("b")) == (1, None)


def test_commits_are_fsynced(tmp_path: Path) -> None:
    with Database.open(tmp_path / "run.sqlite") as database:
        settings = {name: database.value(f"PRAGMA {name}") for name in ("journal_mode", "synchronous", "foreign_keys")}
    assert settings == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


def test_a_damaged_file_is_named_with_the_fix(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    path.write_bytes(b"this is no database, it is a letter" * 200)
    with pytest.raises(Corrupt, match=r"run\.sqlite is damaged .*: keep a copy, then restore a backup or run `sqlite3"):
        Database.open(path)


def test_a_torn_page_is_detected_at_open(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    with Database.open(path) as database, database.transaction():
        write_much(database)
    data = bytearray(path.read_bytes())
    data[8192:-4096] = bytes(len(data) - 4096 - 8192)
    path.write_bytes(data)
    with pytest.raises(Corrupt):
        Database.open(path)


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    code = (
        "from pathlib import Path; from echo2.coordinator.database.database import *;"
        f" Database.open(Path({str(path)!r}))"
    )
    with Database.open(path):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
        assert "InUse" in done.stderr
        assert "another coordinator runs here; stop it first" in done.stderr
    with Database.open(path):
        pass


def test_a_lock_of_a_shell_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echo2.coordinator.database.database.BUSY_SECONDS", 0.01)
    with Database.open(tmp_path / "run.sqlite") as database:
        shell = sqlite3.connect(tmp_path / "run.sqlite", isolation_level=None)
        shell.execute("BEGIN IMMEDIATE")
        with pytest.raises(InUse, match="locked by another process"), database.transaction():
            pass
        shell.close()


def test_a_full_disk_rolls_back_and_is_reported(tmp_path: Path) -> None:
    with Database.open(tmp_path / "run.sqlite") as database:
        database.set_fact("before", 1)
        database.do(f"PRAGMA max_page_count = {database.value('PRAGMA page_count') + 1}")
        with pytest.raises(DiskFull, match="free disk space"), database.transaction():
            write_much(database)
        assert database.value("SELECT count(*) FROM facts WHERE name LIKE 'fact %'") == 0
        with database.transaction():
            database.set_fact("before", 2)


def database_of_schema_18(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE facts (name TEXT PRIMARY KEY, value); PRAGMA user_version = 18;")


def database_of_the_first_schema_1(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE facts (name TEXT PRIMARY KEY, value); PRAGMA user_version = 1;")


def database_of_a_future_schema(path: Path) -> None:
    Database.open(path).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")


def database_whose_tables_changed_in_place(path: Path) -> None:
    Database.open(path).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA application_id = 77")


def database_of_another_program(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")


OTHER_FORMS = (
    database_of_schema_18,
    database_of_the_first_schema_1,
    database_of_a_future_schema,
    database_whose_tables_changed_in_place,
    database_of_another_program,
)


@pytest.mark.parametrize("make", OTHER_FORMS)
def test_a_file_of_another_build_is_refused_and_stays_as_it_was(make: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    make(path)
    before = path.read_bytes()
    for opened in (Database.open, Database.read):
        with pytest.raises(WrongSchema) as refused:
            opened(path)
        words = r"another build of echo2 made .*/run\.sqlite \(schema \d+, form [0-9a-f]{8}, not 1 and [0-9a-f]{8}\): "
        assert re.fullmatch(
            words + "run the build that made it, or begin a new run in an empty folder", str(refused.value)
        )
    assert path.read_bytes() == before


def test_a_kill_while_the_tables_are_made_leaves_an_empty_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def kill(connection: sqlite3.Connection, script: str) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(sqlite_form, "mark", kill)
        with pytest.raises(Killed):
            Database.open(tmp_path / "run.sqlite")
    with pytest.raises(DatabaseFault, match="is empty: `echo2-coord run` makes its tables"):
        Database.read(tmp_path / "run.sqlite")
    with Database.open(tmp_path / "run.sqlite") as database:
        assert database.value("SELECT count(*) FROM nodes") == 0


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DatabaseFault, match="cannot write beside"):
        Database.open(tmp_path / "nowhere" / "run.sqlite")
    with pytest.raises(DatabaseFault, match="echo2-coord run"):
        Database.read(tmp_path / "run.sqlite")


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    Database.open(tmp_path / "run.sqlite").close()
    with Database.read(tmp_path / "run.sqlite") as database, pytest.raises(DatabaseFault, match="readonly"):
        database.set_fact("x", 1)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list to which each check of a whole file adds its path from now on."""
    calls: list[str] = []
    connect = sqlite3.connect

    def traced(*given: Any, **named: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*given, **named)
        connection.set_trace_callback(lambda sql: calls.append(sql) if "quick_check" in sql else None)
        return connection

    monkeypatch.setattr("sqlite3.connect", traced)
    return calls


def killed(path: Path) -> None:
    """End a process that writes the file, without a close."""
    code = f"""if True:
        import os, pathlib
        from echo2.coordinator.database.database import Database
        Database.open(pathlib.Path({str(path)!r}))
        os.kill(os.getpid(), 9)"""
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == -9


def test_the_whole_file_is_checked_only_after_an_unclean_stop(tmp_path: Path, checks: list[str]) -> None:
    """On 439044d each start read the whole file, even after a clean stop."""
    path = tmp_path / "run.sqlite"
    Database.open(path).close()
    checks.clear()
    Database.open(path).close()
    assert checks == []
    killed(path)
    Database.open(path).close()
    assert len(checks) == 1
    Database.open(path).close()
    assert len(checks) == 1


def test_the_whole_file_is_checked_once_per_day(tmp_path: Path, checks: list[str]) -> None:
    path = tmp_path / "run.sqlite"
    calls = []
    for now in (0, DAY - 1, DAY, DAY + 1, 3 * DAY, 0):  # at last the clock was set back
        checks.clear()
        Database.open(path, now).close()
        calls.append(len(checks))
    assert calls[1:] == [0, 1, 0, 1, 1]


@pytest.mark.slow
def test_a_large_file_is_checked_beside_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.sqlite"
    with Database.open(path) as database, database.transaction():
        write_much(database)
    monkeypatch.setattr("echo2.coordinator.database.database.LARGE_DATABASE_BYTES", 4096)
    killed(path)
    with Database.open(path) as database:
        assert not database.checked
    with Database.open(path) as database:
        assert not database.checked, "nobody has checked it meanwhile"
        check(path)
        database.found_sound(time.time_ns() // 1_000_000)
    with Database.open(path) as database:
        assert database.checked
    killed(path)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 4 * 4096] = bytes(4 * 4096)
    path.write_bytes(data)
    with Database.open(path), pytest.raises(Corrupt, match="restore a backup"):
        check(path)
