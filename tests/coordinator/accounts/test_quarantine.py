"""Groups in quarantine: what their day's end does with the weight, and what the ledger says of the key meanwhile."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo2.coordinator.accounts.accounting import Accounting
from echo2.coordinator.accounts.quarantine import AT_ONCE, MOST_GROUPS, Quarantine
from echo2.coordinator.database.database import Database
from echo2.ledger.ledger_entries import ESCROW, FUND, accrued_account, quarantine_account, transfer
from echo2.ledger.ledger_facts import Remark
from echo2.ledger.standing import standing
from echo2.p2p.identity import peer_id
from echo2.runtime.units import DAY
from tests.support.day_judge import Judge
from tests.support.group_world import ALICE, BOB, name

PEER = peer_id(ALICE)


class Books:
    """A ledger with escrow, and a quarantine over it."""

    def __init__(self, database: Database, *, issue: bool = True) -> None:
        accounting = Accounting(database)
        self.database, self.ledger, self.accounts = database, accounting.ledger, accounting.accounts
        self.quarantine = Quarantine(database, self.ledger, self.accounts)
        if issue:
            self.ledger.append(0, "points.issued", "points:1", Remark(node="", why=""), transfer(FUND, ESCROW, 1_000))

    def keep(self, number: int, weight: int, now: int, node: bytes = ALICE) -> None:
        lease = name("lease", number)
        fact = Remark(node=peer_id(node), why="")
        self.ledger.append(
            now, "test", f"lease:{lease.hex()}", fact, transfer(ESCROW, quarantine_account(peer_id(node)), weight)
        )
        self.quarantine.put(lease, node, weight, now)

    def balances(self) -> tuple[int, int, int]:
        return tuple(map(self.ledger.balance, (ESCROW, quarantine_account(PEER), accrued_account(PEER))))  # type: ignore[return-value]


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    with Database.open(tmp_path / "run.sqlite") as database:
        database.do("PRAGMA foreign_keys = OFF")  # no lease is needed here
        yield Books(database)


def test_nothing_moves_before_the_day_has_ended(books: Books) -> None:
    books.keep(1, 100, 5)
    assert books.quarantine.settle(Judge(lambda node, day: False), DAY - 1) == 0
    assert books.balances() == (900, 100, 0)


def test_a_day_whose_evidence_fell_pays_the_node_by_one_entry(books: Books) -> None:
    books.keep(1, 100, 5)
    books.keep(2, 30, 6)
    assert books.quarantine.settle(Judge(lambda node, day: False), DAY) == 1
    assert books.balances() == (870, 0, 130)
    assert books.quarantine.settle(Judge(lambda node, day: False), DAY) == 0
    books.ledger.verify()


def test_a_day_that_ended_in_doubt_goes_back_to_escrow_and_leaves_the_key_new(books: Books) -> None:
    books.accounts.remark(ALICE, "node.vouched", "", 1)
    books.keep(1, 100, 5)
    books.quarantine.settle(Judge(lambda node, day: True), DAY)
    assert books.balances() == (1_000, 0, 0)
    assert books.accounts.of(ALICE, DAY).rank == "new"
    assert standing(books.ledger.entries(), DAY)[PEER] == books.accounts.of(ALICE, DAY)
    books.keep(2, 50, DAY)
    books.quarantine.settle(Judge(lambda node, day: False), 2 * DAY)
    assert books.accounts.of(ALICE, 2 * DAY).rank == "known"
    assert standing(books.ledger.entries(), 2 * DAY)[PEER].rank == "known"


def test_days_and_nodes_are_settled_apart_and_a_bounded_number_per_call(books: Books) -> None:
    books.keep(1, 10, 1)
    books.keep(2, 10, DAY)
    books.keep(3, 10, 1, BOB)
    for number in range(AT_ONCE):
        books.keep(10 + number, 1, 1, name("key", number, 32))
    assert books.quarantine.settle(Judge(lambda node, day: node == BOB), 2 * DAY) == AT_ONCE
    assert books.quarantine.settle(Judge(lambda node, day: node == BOB), 2 * DAY) == 3
    assert books.balances()[1:] == (0, 20)
    assert books.ledger.balance(accrued_account(peer_id(BOB))) == 0
    books.ledger.verify()


def test_many_groups_and_days_that_are_run_again_are_settled_in_several_calls(books: Books) -> None:
    """Else the event loop would stand still at midnight: a re-run of the most tokens takes seconds."""
    nodes = [name("key", number, 32) for number in range(6)]
    for number, node in enumerate(nodes[:3]):
        for group in range(MOST_GROUPS // 2):
            books.keep(1_000 * number + group, 1, 1, node)
    assert [books.quarantine.settle(Judge(lambda node, day: False), DAY) for _ in range(3)] == [2, 1, 0]
    for number, node in enumerate(nodes[3:]):
        books.keep(9_000 + number, 1, 1, node)
    judge = Judge(lambda node, day: True, reruns=True)
    assert [books.quarantine.settle(judge, DAY) for _ in range(4)] == [1, 1, 1, 0]
    assert set(judge.run_again) == set(nodes[3:])
    assert books.balances()[0] == 1_000 - 3 * (MOST_GROUPS // 2)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kill_nine_at_each_statement_of_an_end_leaves_entry_weight_and_rows_in_agreement(tmp_path: Path) -> None:
    nodes = [bytes([doubted]) + name("key", number, 31) for number, doubted in enumerate((0, 1, 1))]
    path, kills, returncode = tmp_path / "run.sqlite", 0, -signal.SIGKILL
    with Database.open(path) as database:
        database.do("PRAGMA foreign_keys = OFF")
        books = Books(database)
        for number, node in enumerate(nodes):
            books.keep(number, 100 + number, 5, node)
    while returncode == -signal.SIGKILL:
        kills += 1
        shutil.copy(path, copy := tmp_path / f"{kills}.sqlite")
        words = [sys.executable, "-m", "tests.support.quarantine_worker", str(copy), str(kills)]
        returncode = subprocess.run(words, cwd=Path(__file__).parents[3], timeout=60).returncode
        with Database.open(copy) as database:
            books = Books(database, issue=False)
            agree(books, nodes)
            books.quarantine.settle(Judge(lambda node, day: node[0] == 0), DAY)
            agree(books, nodes)
            assert database.value("SELECT count(*) FROM quarantine") == 0
            assert books.ledger.balance(ESCROW) == 1_000 - 101 - 102
    assert returncode == 0
    assert kills > 3 * len(nodes)


def agree(books: Books, nodes: list[bytes]) -> None:
    """Check that a node's quarantine has either ended, with entry and weight, or not begun to end."""
    books.ledger.verify()
    ended = {entry.key for entry in books.ledger.entries() if entry.kind == "quarantine.ended"}
    for number, node in enumerate(nodes):
        peer, settled = peer_id(node), f"quarantine:{peer_id(node)}:0" in ended
        rows = books.database.value("SELECT count(*) FROM quarantine WHERE node = ?", (node,))
        accrued_weight, kept = (
            books.ledger.balance(accrued_account(peer)),
            books.ledger.balance(quarantine_account(peer)),
        )
        assert (rows, kept) == ((0, 0) if settled else (1, 100 + number))
        assert accrued_weight == (100 + number if settled and node[0] else 0)
