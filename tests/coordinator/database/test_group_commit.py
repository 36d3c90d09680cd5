"""One iteration of the event loop is one commit; savepoints fail alone, and a failed commit ends everything."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from echo2.coordinator.database.database import Database, DatabaseFault
from echo2.coordinator.database.group_commit import GroupCommit
from echo2.runtime.errors import DiskFull
from tests.support.full_disk import refusing


def facts(path: Path) -> list[str]:
    """Return the facts that a reader beside the writer sees."""
    with Database.read(path) as database:
        return [name for (name,) in database.all("SELECT name FROM facts WHERE name LIKE 'of %' ORDER BY name")]


async def test_the_writes_of_one_iteration_become_visible_together_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"

    async def answer(database: Database, name: str) -> None:
        database.set_fact(name, 1)
        assert facts(path) == []
        await database.durable()
        assert facts(path) == ["of alice", "of bob"]

    with Database.open(path) as database, database.group_commits():
        await asyncio.gather(answer(database, "of alice"), answer(database, "of bob"))
        await database.durable()  # nothing is open: nothing to wait for


async def test_an_answer_that_only_read_waits_for_the_commit_of_what_it_read(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"

    async def read(database: Database) -> None:
        assert database.fact("of alice") == 1
        await database.durable()
        assert facts(path) == ["of alice"]

    with Database.open(path) as database, database.group_commits():
        database.set_fact("of alice", 1)
        await read(database)


async def test_a_savepoint_that_fails_undoes_no_other(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"

    async def good(database: Database, name: str) -> None:
        with database.transaction():
            database.set_fact(name, 1)
        await database.durable()

    async def bad(database: Database) -> None:
        with database.transaction():
            database.set_fact("of mallory", 1)
            database.do("INSERT INTO facts VALUES ('of mallory', 2)")

    with Database.open(path) as database, database.group_commits():
        parts = (good(database, "of alice"), bad(database), good(database, "of bob"))
        _, failed, _ = await asyncio.gather(*parts, return_exceptions=True)
        assert isinstance(failed, sqlite3.IntegrityError)
    assert facts(path) == ["of alice", "of bob"]


async def test_a_failed_commit_fails_all_waiting_answers_and_every_later_statement(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"

    async def answer(database: Database, name: str) -> None:
        database.set_fact(name, 1)
        await database.durable()

    with Database.open(path) as database, database.group_commits() as commits:
        disk = refusing(database)
        await answer(database, "of carol")
        disk.full = True
        waiting = (answer(database, "of alice"), answer(database, "of bob"))
        assert [type(end) for end in await asyncio.gather(*waiting, return_exceptions=True)] == [DiskFull] * 2
        disk.full = False
        with pytest.raises(DiskFull, match="free disk space"):
            await answer(database, "of dave")
        with pytest.raises(DiskFull):
            await database.durable()
        with pytest.raises(DiskFull):
            database.fact("of carol")
        with pytest.raises(DiskFull):
            await commits.wait_for_fault()
    assert facts(path) == ["of carol"]


async def test_a_rollback_by_sqlite_itself_fails_all_waiting_answers(tmp_path: Path) -> None:
    """A disk that fills within a statement may take the whole transaction with it."""
    path = tmp_path / "run.sqlite"

    async def fill(database: Database) -> None:
        for number in range(10_000):
            database.set_fact(f"of {number}", "x" * 100)
        await database.durable()

    async def answer(database: Database) -> None:
        database.set_fact("of alice", 1)
        await database.durable()

    with Database.open(path) as database, database.group_commits():
        database.do(f"PRAGMA max_page_count = {database.value('PRAGMA page_count') + 1}")
        await database.durable()
        first, second = await asyncio.gather(answer(database), fill(database), return_exceptions=True)
        assert isinstance(second, DiskFull)
        assert isinstance(first, DatabaseFault | DiskFull) or facts(path) == ["of alice"]
    assert facts(path) in ([], ["of alice"])


async def test_a_transaction_that_spans_an_await_is_a_bug_and_commits_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"

    async def careless(database: Database) -> None:
        with database.transaction():
            database.set_fact("of alice", 1)
            await asyncio.sleep(0.01)

    with Database.open(path) as database, database.group_commits() as commits:
        with pytest.raises(RuntimeError, match="left open"):
            await careless(database)
        with pytest.raises(RuntimeError, match="left open"):
            await commits.wait_for_fault()
    assert facts(path) == []


async def test_an_open_transaction_is_committed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    with Database.open(path) as database, database.group_commits():
        database.set_fact("of alice", 1)
    assert facts(path) == ["of alice"]


async def test_a_cancelled_waiter_cancels_no_other(tmp_path: Path) -> None:
    begun: list[int] = []
    commits = GroupCommit(lambda: begun.append(1), lambda: begun.append(2))
    commits.join()
    gone, stays = asyncio.create_task(commits.durable()), asyncio.create_task(commits.durable())
    asyncio.get_running_loop().call_soon(gone.cancel)
    await stays
    assert begun == [1, 2]
