"""Measure acceptances against bare SQLite: the same statements that write, in the same groups, one signature each.

Rules
1. Groups are leased and handed in before the measurement, which covers the verdict alone: acceptance, ledger entry,
   tree, balances, standing, sealed receipt and place in the buffer, `PER_COMMIT` of them per transaction.
2. The anchor writes the rows of the product, each by a statement of its own in the order of the verdicts, on a copy of
   the file from before. It reads nothing, and signs as many messages of a receipt's length as there are receipts.
3. The product writes the rows of one statement together (coordinator/database/database.py, rule 8). Bare SQLite in that
   order is measured beside, without a bar.
4. Neither side waits for the disk: `synchronous = OFF`.
"""

import gc
import hashlib
import itertools
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.harness import bench
from benchmarks.harness.bench import Measured
from echo2.coordinator.database.database import Database
from echo2.coordinator.verdicts.waiting_groups import Undecided
from echo2.coordinator.verification.verification import Verdict, judge
from tests.support.group_world import World, group, honest_scores

PER_COMMIT: Final = 16
"""Verdicts per transaction: the scorer's batches are of this size."""
Rows = tuple[str, list[tuple[Any, ...]]]
"""A statement, and the rows that it writes."""
Commit = list[list[Rows]]
"""The rows of one transaction, one list for each time that rows are written in it."""
Judged = tuple[Undecided, Verdict]


class Recorded(Database):
    """A database that notes the rows that are written, by commit."""

    commits: list[Commit]

    def do(self, sql: str, parameters: tuple[Any, ...] = ()) -> int:
        changed = super().do(sql, parameters)
        self.commits[-1].append([(sql, [parameters])])
        return changed

    def _write_waiting(self) -> None:
        self.commits[-1].append(list(self._waiting.items()))
        super()._write_waiting()


class Round(NamedTuple):
    """Measurements of the same acceptances: by the product, and by bare SQLite, row by row and `together`."""

    product: Measured
    bare: Measured
    together: Measured


def handed_in(world: World, count: int) -> list[Judged]:
    """Lease and hand in groups of `count` nodes; return them with the verdicts of an honest scorer's pass."""
    for number in range(count):
        node = hashlib.sha256(b"node %d" % (number % 50)).digest()
        world.submit(group(world.lease(node)), node)
    waiting = world.group_service.list_undecided(count)
    return [(one, judge(one.submission.rollouts, honest_scores(one.submission))) for one in waiting]


def decided(world: World, groups: list[Judged]) -> float:
    """Decide groups; return their number."""
    database = world.group_service.database
    assert isinstance(database, Recorded)
    for first in range(0, len(groups), PER_COMMIT):
        database.commits.append([])
        world.group_service.decide_all(groups[first : first + PER_COMMIT], world.now)
    return len(groups)


@contextmanager
def bare_file(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file as the product does, without its code."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for pragma in ("journal_mode = WAL", "synchronous = OFF", "cache_size = -65536", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}")
        yield connection


def written(connection: sqlite3.Connection, commits: list[Commit], receipts: int) -> float:
    """Write rows, and sign `receipts` messages; return the number of receipts."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    for _ in range(receipts):
        key.sign(bytes(300))
    for commit in commits:
        connection.execute("BEGIN IMMEDIATE")
        for sql, rows in itertools.chain.from_iterable(commit):
            if len(rows) > 1:
                connection.executemany(sql, rows)
            else:
                connection.execute(sql, rows[0])
        connection.execute("COMMIT")
    return receipts


def in_turn(together: list[Rows]) -> list[Rows]:
    """Return rows that are written together one by one, in the order of their verdicts."""
    placed = [
        (number / len(rows), place, (sql, [row]))
        for place, (sql, rows) in enumerate(together)
        for number, row in enumerate(rows)
    ]
    return [one for _, _, one in sorted(placed, key=lambda each: each[:2])]


class Rounds:
    """Rounds of `count` acceptances in one run, each with its anchor."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._count = folder, count
        self._world = World(folder, batch_groups=1 << 20, per_node=1 << 20, newcomers=1.0)
        database = self._world.group_service.database
        database.__class__ = Recorded
        assert isinstance(database, Recorded)
        database.commits = [[]]
        self._database = database

    def close(self) -> None:
        """Close the run's file."""
        self._world.close()

    def take(self) -> Round:
        """Return a round of the product and of its anchors."""
        groups = handed_in(self._world, self._count)
        copies = [self._folder / name for name in ("bare.sqlite", "together.sqlite")]
        self._database.do("PRAGMA wal_checkpoint(TRUNCATE)")
        for copy in copies:
            shutil.copy(self._database.path, copy)
        self._database.commits = []
        gc.collect()
        gc.freeze()  # the groups that were handed in, and their verdicts, are this benchmark's objects
        product = bench.timed(lambda: decided(self._world, groups))()
        gc.unfreeze()
        commits, self._database.commits = self._database.commits, [[]]
        orders = [[in_turn(rows) for rows in one] for one in commits], commits
        return Round(product, *(self._bare(copy, order) for copy, order in zip(copies, orders, strict=True)))

    def _bare(self, copy: Path, commits: list[Commit]) -> Measured:
        with bare_file(copy) as connection:
            measured = bench.timed(lambda: written(connection, commits, self._count))()
        for end in ("", "-wal", "-shm"):
            copy.with_name(copy.name + end).unlink(missing_ok=True)
        return measured


def acceptances(folder: Path, rounds: int, count: int) -> list[Round]:
    """Return `rounds` of `count` acceptances, after one to warm up."""
    one = Rounds(folder, count)
    try:
        return [one.take() for _ in range(rounds + 1)][1:]
    finally:
        one.close()
