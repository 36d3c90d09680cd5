"""A verdict that fails at any of its writes leaves no trace: not in run.sqlite, nor in what the process remembers."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.verdicts.task_results import RESULT_WINDOW_GROUPS
from echo2.coordinator.verdicts.waiting_groups import Undecided
from echo2.coordinator.verification.verification import judge
from tests.support.group_world import World, group, honest_scores, name

WRITTEN = {
    "the evidence of its near-ties": "INSERT ON near_ties",
    "its entry": "INSERT ON entries",
    "its leaf of the tree": "INSERT ON tree",
    "the balances": "INSERT ON balances",
    "the account of its key": "INSERT ON accounts",
    "its place in the buffer": "INSERT ON buffer",
    "the results of its task": "INSERT ON task_results",
    "the end of its lease": "UPDATE OF state ON leases",
    "its receipt": "INSERT ON verdicts",
}
TABLES = (
    "entries",
    "tree",
    "balances",
    "accounts",
    "near_ties",
    "task_results",
    "buffer",
    "verdicts",
    "sums",
    "leases",
)


@contextlib.contextmanager
def failing(database: Database, written: str, when: str = "1") -> Iterator[None]:
    """Let a write fail during the block. `when`: SQL condition of the rows that fail."""
    database.do(f"CREATE TEMP TRIGGER fails BEFORE {written} WHEN {when} BEGIN SELECT RAISE(ABORT, 'it fails'); END")
    with pytest.raises(sqlite3.IntegrityError, match="it fails"):
        yield
    database.do("DROP TRIGGER fails")


def world_with_groups(folder: Path, groups: int) -> tuple[World, list[Undecided]]:
    folder.mkdir()
    world = World(folder, batch_groups=1 << 10, per_node=1 << 10, newcomers=1.0)
    for number in range(groups):
        node = name("node", number % 3, 32)
        world.submit(group(world.lease(node)), node)
    return world, world.group_service.list_undecided(groups)


def decide(world: World, waiting: Undecided) -> bytes:
    verdict = judge(waiting.submission.rollouts, honest_scores(waiting.submission))
    return world.group_service.decide(waiting, verdict, world.now)


@contextlib.contextmanager
def undone(database: Database) -> Iterator[None]:
    """Run the block as a transaction that fails at its end."""
    with contextlib.suppress(InterruptedError), database.transaction():
        yield
        raise InterruptedError


def rows(world: World) -> dict[str, list[tuple[Any, ...]]]:
    database = world.group_service.database
    return {table: sorted(database.all(f"SELECT * FROM {table}"), key=repr) for table in TABLES}


@pytest.mark.parametrize("written", WRITTEN.values(), ids=WRITTEN.keys())
def test_a_verdict_that_fails_and_is_given_again_is_the_verdict_of_a_run_in_which_it_never_failed(
    tmp_path: Path, written: str
) -> None:
    plain, groups = world_with_groups(tmp_path / "plain", 6)
    receipts = [decide(plain, one) for one in groups]
    world, groups = world_with_groups(tmp_path / "tried", 6)
    database = world.group_service.database
    for one, receipt in zip(groups, receipts, strict=True):
        with failing(database, written):
            decide(world, one)
        assert decide(world, one) == receipt
    assert rows(world) == rows(plain)
    Ledger(database).verify()


@pytest.mark.parametrize("written", WRITTEN.values(), ids=WRITTEN.keys())
def test_a_verdict_that_fails_among_others_of_its_commit_undoes_none_of_them(tmp_path: Path, written: str) -> None:
    plain, groups = world_with_groups(tmp_path / "plain", 6)
    for one in [*groups[:2], *groups[3:], groups[2]]:
        decide(plain, one)
    world, groups = world_with_groups(tmp_path / "tried", 6)
    database = world.group_service.database
    with database.transaction():
        decide(world, groups[0])
        decide(world, groups[1])
        with failing(database, written):
            decide(world, groups[2])
        for one in groups[3:]:
            decide(world, one)
    decide(world, groups[2])
    assert rows(world) == rows(plain)
    Ledger(database).verify()


OF_ONE_LEASE = {
    "its entry": "NEW.key = 'lease:' || lower(hex({lease}))",
    "its place in the buffer": "NEW.lease = {lease}",
    "the end of its lease": "NEW.id = {lease}",
    "its receipt": "NEW.lease = {lease}",
}


@pytest.mark.parametrize(("write", "condition"), OF_ONE_LEASE.items(), ids=OF_ONE_LEASE)
def test_a_verdict_that_fails_among_those_given_together_undoes_none_of_them(
    tmp_path: Path, write: str, condition: str
) -> None:
    plain, groups = world_with_groups(tmp_path / "plain", 6)
    for one in [*groups[:2], *groups[3:], groups[2]]:
        decide(plain, one)
    world, groups = world_with_groups(tmp_path / "tried", 6)
    judged = [(one, judge(one.submission.rollouts, honest_scores(one.submission))) for one in groups]
    with failing(
        world.group_service.database, WRITTEN[write], condition.format(lease=f"x'{groups[2].lease.id.hex()}'")
    ):
        world.group_service.decide_all(judged, world.now)
    decide(world, groups[2])
    assert rows(world) == rows(plain)
    Ledger(world.group_service.database).verify()


def test_a_commit_of_many_verdicts_that_is_undone_is_given_again_with_the_same_receipts(tmp_path: Path) -> None:
    world, groups = world_with_groups(tmp_path / "run", 8)
    database, given = world.group_service.database, list[bytes]()
    for one in groups[:2]:
        decide(world, one)
    with undone(database):
        given += [decide(world, one) for one in groups[2:]]
    assert [decide(world, one) for one in groups[2:]] == given
    assert Ledger(database).verify().entries == database.value("SELECT count(*) FROM entries")


def test_after_an_undone_verdict_the_window_of_a_tasks_results_has_the_groups_that_were_decided(
    tmp_path: Path,
) -> None:
    world, groups = world_with_groups(tmp_path / "run", RESULT_WINDOW_GROUPS + 2)
    database, last = world.group_service.database, "SELECT groups FROM task_results WHERE span = 'last'"
    for one in groups[: RESULT_WINDOW_GROUPS - 1]:
        decide(world, one)
    for _ in range(3):
        with failing(database, "INSERT ON verdicts"):
            decide(world, groups[RESULT_WINDOW_GROUPS - 1])
    assert database.value(last) == RESULT_WINDOW_GROUPS - 1
    for one in groups[RESULT_WINDOW_GROUPS - 1 :]:
        decide(world, one)
    assert database.value(last) == 2
    assert database.value("SELECT groups FROM task_results WHERE span = 'before'") == RESULT_WINDOW_GROUPS
