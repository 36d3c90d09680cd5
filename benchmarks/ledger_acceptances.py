"""Measure acceptances against bare SQLite: the same statements that write, in the same groups, one signature each.

Rules
1. Groups are leased and handed in before the measurement, which covers the verdict alone: acceptance, ledger entry,
   tree, balances, standing, sealed receipt and place in the buffer, `PER_COMMIT` of them per transaction.
2. The anchor is given the statements that write, with their parameters, as the product ran them, on a copy of the file
   from before. It reads nothing, and signs as many messages of a receipt's length as there are receipts.
3. Neither side waits for the disk: `synchronous = OFF`.
"""

import hashlib
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.harness import bench
from benchmarks.harness.bench import Measured
from coordinator.database import Database
from coordinator.rollouts.verification import Verdict, judge
from coordinator.rollouts.waiting_groups import Undecided
from tests.support.group_world import World, group, honest_scores

PER_COMMIT: Final = 16
"""Verdicts per transaction: the scorer's batches are of this size."""
Statement = tuple[str, tuple[Any, ...]]
Judged = tuple[Undecided, Verdict]


class Recorded(Database):
    """A database that notes the statements which write, while `noted` is a list."""

    noted: list[Statement] | None = None

    def do(self, sql: str, parameters: tuple[Any, ...] = ()) -> int:
        if self.noted is not None:
            self.noted.append((sql, parameters))
        return super().do(sql, parameters)

    def later(self, sql: str, row: tuple[Any, ...], *, first: bool = False) -> None:
        if self.noted is not None:
            self.noted.append((sql, row))
        super().later(sql, row, first=first)


def handed_in(world: World, count: int) -> list[Judged]:
    """Lease and hand in groups of `count` nodes; return them with the verdicts of an honest scorer's pass."""
    for number in range(count):
        node = hashlib.sha256(b"node %d" % (number % 50)).digest()
        world.submit(group(world.lease(node)), node)
    waiting = world.group_service.undecided(count)
    return [(one, judge(one.submission.rollouts, honest_scores(one.submission))) for one in waiting]


def decided(world: World, groups: list[Judged]) -> float:
    """Decide groups; return their number."""
    for first in range(0, len(groups), PER_COMMIT):
        world.group_service.decide_all(groups[first : first + PER_COMMIT], world.now)
    return len(groups)


@contextmanager
def bare_file(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file as the product does, without its code."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for pragma in ("journal_mode = WAL", "synchronous = OFF", "cache_size = -65536", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}")
        yield connection


def written(connection: sqlite3.Connection, statements: list[list[Statement]], receipts: int) -> float:
    """Run the statements, one transaction per list, and sign `receipts` messages; return the number of receipts."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    for _ in range(receipts):
        key.sign(bytes(300))
    for part in statements:
        connection.execute("BEGIN IMMEDIATE")
        for sql, parameters in part:
            connection.execute(sql, parameters)
        connection.execute("COMMIT")
    return receipts


class Rounds:
    """Rounds of `count` acceptances in one run, each with its anchor."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._count = folder, count
        self._world = World(folder, batch_groups=1 << 20, per_node=1 << 20, newcomers=1.0)
        database = self._world.group_service.database
        database.__class__ = Recorded
        assert isinstance(database, Recorded)
        self._database = database

    def close(self) -> None:
        """Close the run's file."""
        self._world.close()

    def take(self) -> tuple[Measured, Measured]:
        """Return a round of the product, and its anchor's."""
        groups = handed_in(self._world, self._count)
        copy = self._folder / "bare.sqlite"
        self._database.do("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy(self._database.path, copy)
        self._database.noted = []
        subject = bench.timed(lambda: decided(self._world, groups))()
        noted, self._database.noted = self._database.noted, None
        parts = _parted(noted, len(groups) // PER_COMMIT)
        with bare_file(copy) as connection:
            anchor = bench.timed(lambda: written(connection, parts, len(groups)))()
        for end in ("", "-wal", "-shm"):
            copy.with_name(copy.name + end).unlink(missing_ok=True)
        return subject, anchor


def _parted(statements: list[Statement], parts: int) -> list[list[Statement]]:
    size = -(-len(statements) // parts)
    return [statements[first : first + size] for first in range(0, len(statements), size)]


def acceptances(folder: Path, rounds: int, count: int) -> tuple[list[Measured], list[Measured]]:
    """Return `rounds` of acceptances and of their anchor, after one to warm up."""
    one = Rounds(folder, count)
    try:
        taken = [one.take() for _ in range(rounds + 1)][1:]
    finally:
        one.close()
    return [subject for subject, _ in taken], [anchor for _, anchor in taken]
