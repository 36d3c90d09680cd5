"""A run.sqlite of an earlier version is migrated at open, in one transaction, to the tables of a new one."""

import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from echo2.coordinator import schema
from echo2.coordinator.database import Database, WrongSchema
from echo2.engines.engine import SampleScore
from echo2.protocol.leases import VerdictsRequest
from tests.support.group_world import ALICE, BOB, World, group, honest_scores
from tests.support.ledger_sums import check_sums

OLDER = "".join(part.script for part in schema.SCHEMA_1)
DIE_IN_THE_MIDDLE = """
import os, sys
from pathlib import Path
from echo2.coordinator import schema
from echo2.coordinator.database import Database
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
    """Return a file of schema 1 with a fact in it."""
    path = tmp_path / "older.sqlite"
    with sqlite3.connect(path) as connection:
        connection.executescript(f"{OLDER} PRAGMA user_version = 1; INSERT INTO facts VALUES ('alive_at', 7);")
    connection.close()
    return path


def tables(database: Database) -> list[tuple[str, str]]:
    return [(name, sql) for name, sql in database.all("SELECT name, sql FROM sqlite_master ORDER BY name")]


def test_an_older_file_is_migrated_and_keeps_its_data(older: Path, tmp_path: Path) -> None:
    with Database.open(older) as migrated, Database.open(tmp_path / "new.sqlite") as new:
        assert migrated.fact("alive_at") == 7
        assert tables(migrated) == tables(new)
        assert migrated.value("PRAGMA user_version") == new.value("PRAGMA user_version") == schema.SCHEMA_VERSION
    with Database.open(older) as again:
        assert again.fact("alive_at") == 7


def test_sums_are_filled_from_the_history_of_an_older_file(older: Path, tmp_path: Path) -> None:
    world = World(tmp_path, batch_groups=10)
    once = "CREATE TRIGGER no_position_goes_out_twice AFTER INSERT ON again BEGIN DELETE FROM again; END"
    world.group_service.database.do(once)  # as in an older file
    confirmed = [world.accepted(node) for node in (ALICE, BOB, ALICE, ALICE)][:2]
    for lease in confirmed:
        world.group_service.submissions.verdicts(lease.node, VerdictsRequest(leases=[], confirmed=[lease.id]))
    world.refused(group(world.lease(BOB), rollouts=[]), BOB)
    wrong = group(world.lease(ALICE))
    world.submit(wrong)
    (undecided,) = world.group_service.undecided()
    world.decide(undecided, [SampleScore(logprobs=s.logprobs, margins=[1.0] * 4) for s in honest_scores(wrong)])
    world.accepted(ALICE)
    world.submit(group(world.lease(ALICE)))
    world.lease(BOB)
    world.now += 3_600_000
    world.group_service.tick(world.now)
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
            if table == "accounts":  # an older file has no entry that lets audited work decay
                world.group_service.database.do("UPDATE accounts SET aged = 0")
            rows = migrated.all(f"SELECT * FROM {table}")
            assert rows == world.group_service.database.all(f"SELECT * FROM {table}")
            assert rows


def test_a_kill_in_the_middle_leaves_the_older_file(older: Path) -> None:
    done = subprocess.run([sys.executable, "-c", DIE_IN_THE_MIDDLE, str(older)], check=False, timeout=60)
    assert done.returncode == -9
    with sqlite3.connect(older) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT name FROM facts").fetchall() == [("alive_at",)]
    connection.close()
    with Database.open(older) as database:
        assert (database.fact("alive_at"), database.fact("half")) == (7, None)


def test_a_reader_of_an_older_file_gets_the_fix(older: Path) -> None:
    fix = rf"has schema 1, this program reads {schema.SCHEMA_VERSION}: start the coordinator once"
    with pytest.raises(WrongSchema, match=fix):
        Database.read(older)
    Database.open(older).close()
    Database.read(older).close()


def test_a_long_part_reports_its_progress(older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "PATIENCE", 0.0)
    monkeypatch.setattr(schema, "_OPCODES", 10)
    told: list[str] = []
    with sqlite3.connect(older, isolation_level=None) as connection:
        schema.migrate(connection, 1, lambda what, seconds: told.append(what))
    connection.close()
    assert set(told) <= {part.what for parts in schema.MIGRATIONS for part in parts}
    assert told


def long_history(path: Path, groups: int) -> None:
    """Return a file of schema 1 in which every tenth group of each node was refused by the scorer."""
    numbered = f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {groups - 1})"
    node = "CAST('node' || (i / 10) AS BLOB)"
    lease = "CAST('lease' || i AS BLOB)"
    code = "iif(i % 10 = 7, 'drift', 'ok')"
    verdict = "iif(i % 10 = 7, 'refused', 'accepted')"
    with sqlite3.connect(path) as connection:
        connection.executescript(f"""{OLDER} PRAGMA user_version = 1;
            INSERT INTO nodes {numbered} SELECT {node}, '', '', 'x', '', x'', i, i, NULL, NULL FROM n WHERE i % 10 = 0;
            INSERT INTO leases {numbered}
                SELECT {lease}, {node}, {lease}, i, 1, 0, i, i, 'decided', x'00', x'00' FROM n;
            INSERT INTO entries {numbered} SELECT i + 1, i, 'k', 'k' || i, x'90', x'', x'00' FROM n;
            INSERT INTO submissions {numbered} SELECT {lease}, x'00', i, x'0000', NULL, NULL, 0 FROM n;
            INSERT INTO verdicts {numbered}
                SELECT {lease}, {node}, {verdict}, {code}, 0, 7, 0, 0, i + 1, i, x'00', i % 2 FROM n;""")
    connection.close()


def test_a_migration_takes_twice_as_long_for_twice_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million groups once took hours, because the verdicts of all nodes were read for each node."""
    monkeypatch.setattr(schema, "PATIENCE", 0.0)
    monkeypatch.setattr(schema, "_OPCODES", 100)
    steps = []
    for groups in (1_000, 4_000):
        path = tmp_path / f"{groups}.sqlite"
        long_history(path, groups)
        told: Counter[str] = Counter()
        connection = sqlite3.connect(path, isolation_level=None)
        schema.migrate(connection, 1, lambda what, seconds, told=told: told.update([what]))  # type: ignore[misc]
        assert connection.execute("SELECT sum(weight), sum(groups) FROM nodes").fetchone() == (7 * groups, groups)
        assert connection.execute("SELECT nbytes FROM refused_tokens").fetchone() == (2 * groups // 10,)
        connection.close()
        steps.append(told.total())
    assert steps[1] <= 6 * steps[0], f"{100 * steps[0]} instructions for 1,000 groups, {100 * steps[1]} for 4,000"
