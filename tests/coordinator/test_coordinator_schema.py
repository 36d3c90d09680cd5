"""run.sqlite of an earlier version: brought up to date at open, in one transaction, with the tables of a new one."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator import schema
from coordinator.database import Database, WrongSchema
from engines.engine import SampleScore
from p2p.messages import VerdictsAsk
from tests.coordinator.books_world import ALICE, BOB, World, group, honest_scores
from tests.coordinator.sums import check_sums

OLDER = "".join(part.script for part in schema.SCHEMA_1)
DIE_IN_THE_MIDDLE = """
import os, sys
from pathlib import Path
from coordinator import schema
from coordinator.database import Database
run = schema.with_progress
def die_after(connection, part, tell):
    run(connection, part, tell)
    connection.execute("INSERT OR IGNORE INTO facts VALUES ('half', 1)")
    if part is schema.SCHEMA_3[-1]:
        os.kill(os.getpid(), 9)
schema.with_progress = die_after
Database.open(Path(sys.argv[1]))
"""


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A file of schema 1 with a fact in it."""
    path = tmp_path / "older.sqlite"
    with sqlite3.connect(path) as connection:
        connection.executescript(f"{OLDER} PRAGMA user_version = 1; INSERT INTO facts VALUES ('alive_at', 7);")
    connection.close()
    return path


def tables(database: Database) -> list[tuple[str, str]]:
    return [(name, sql) for name, sql in database.all("SELECT name, sql FROM sqlite_master ORDER BY name")]


def test_an_older_file_is_brought_up_to_date_and_keeps_what_it_has(older: Path, tmp_path: Path) -> None:
    with Database.open(older) as migrated, Database.open(tmp_path / "new.sqlite") as new:
        assert migrated.fact("alive_at") == 7
        assert tables(migrated) == tables(new)
        assert migrated.value("PRAGMA user_version") == new.value("PRAGMA user_version") == schema.SCHEMA_VERSION
    with Database.open(older) as again:
        assert again.fact("alive_at") == 7


def test_sums_are_filled_from_the_history_of_an_older_file(older: Path, tmp_path: Path) -> None:
    world = World(tmp_path, batch_groups=10)
    once = "CREATE TRIGGER no_position_goes_out_twice AFTER INSERT ON again BEGIN DELETE FROM again; END"
    world.books.database.do(once)  # as in an older file
    confirmed = [world.accepted(node) for node in (ALICE, BOB, ALICE, ALICE)][:2]
    for lease in confirmed:
        world.books.verdicts(lease.node, VerdictsAsk(leases=[], confirmed=[lease.id]))
    world.refused(group(world.lease(BOB), rollouts=[]), BOB)
    wrong = group(world.lease(ALICE))
    world.submit(wrong)
    (undecided,) = world.books.undecided()
    world.decide(undecided, [SampleScore(logprobs=s.logprobs, margins=[1.0] * 4) for s in honest_scores(wrong)])
    world.accepted(ALICE)
    world.submit(group(world.lease(ALICE)))
    world.lease(BOB)
    world.now += 3_600_000
    world.books.tick(world.now)
    world.learner_at(1)
    world.lease(ALICE, version=1)
    with sqlite3.connect(older) as connection:
        connection.execute("ATTACH ? AS new", (str(world.path),))
        for table in ("leases", "submissions", "verdicts", "entries", "buffer"):
            columns = ", ".join(name for _, name, *_ in connection.execute(f"PRAGMA main.table_info({table})"))
            columns = columns.replace("entry", "coalesce(entry, 0)")  # BOB is new: his refused group has no own entry
            connection.execute(f"INSERT INTO main.{table} SELECT {columns} FROM new.{table}")
    connection.close()
    with Database.open(older) as migrated:
        check_sums(migrated)
        for table in ("on_their_way", "sums", "refused_tokens", "accounts"):
            found = migrated.all(f"SELECT * FROM {table}")
            assert found == world.books.database.all(f"SELECT * FROM {table}")
            assert found


def test_a_kill_in_the_middle_leaves_the_older_file(older: Path) -> None:
    done = subprocess.run([sys.executable, "-c", DIE_IN_THE_MIDDLE, str(older)], check=False, timeout=60)
    assert done.returncode == -9
    with sqlite3.connect(older) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT name FROM facts").fetchall() == [("alive_at",)]
    connection.close()
    with Database.open(older) as database:
        assert (database.fact("alive_at"), database.fact("half")) == (7, None)


def test_a_reader_of_an_older_file_is_told_what_to_do(older: Path) -> None:
    with pytest.raises(WrongSchema, match=r"has schema 1, this program reads 3: start the coordinator once"):
        Database.read(older)
    Database.open(older).close()
    Database.read(older).close()


def test_a_long_part_tells_how_far_it_is(older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "PATIENCE", 0.0)
    monkeypatch.setattr(schema, "_OPCODES", 10)
    told: list[str] = []
    with sqlite3.connect(older, isolation_level=None) as connection:
        schema.migrate(connection, 1, lambda what, seconds: told.append(what))
    connection.close()
    assert set(told) <= {part.what for parts in schema.MIGRATIONS for part in parts}
    assert told
