"""kill -9 at any moment loses nothing that was acknowledged, and stores nothing twice."""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.verdicts.lease_outcomes import LeaseOutcome
from tests.support.children import child
from tests.support.ledger_sums import check_sums

KILLS = 30
MOST_LINES = 60
"""Acknowledgements of a worker until it is killed. A count, since a busy machine may make none in a time."""


def run_until_killed(folder: Path, lines: int, seconds: float) -> list[list[str]]:
    """Kill the worker `seconds` after its first acknowledgements; return all complete lines that it printed."""
    command = [sys.executable, "-m", "tests.support.group_worker", str(folder), str(folder / "checkpoint.json")]
    with child(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stderr is not None
        first = worker.stdout.readline()
        assert first == "started\n", worker.stderr.read()
        printed = "".join(worker.stdout.readline() for _ in range(lines))
        time.sleep(seconds)
        assert worker.poll() is None, worker.stderr.read()
        worker.kill()
        *complete, _ = (printed + worker.stdout.read()).split("\n")
    return [text_line.split() for text_line in complete]


def check(folder: Path, acknowledged: list[list[str]]) -> None:
    """Check that every acknowledgement of all processes so far is in the database once."""
    with Database.open(folder / "run.sqlite") as database:
        Ledger(database).verify()
        check_sums(database)
        received = dict(
            database.all("SELECT lower(hex(lease)), lower(hex(hash)) FROM submissions WHERE received NOT NULL")
        )
        verdicts = {
            lease: (str(entry or 0), str(weight))
            for lease, entry, weight in database.all("SELECT lower(hex(lease)), entry, weight FROM verdicts")
        }
        told = [entry.facts for entry in Ledger(database).entries() if entry.kind.startswith("lease.")]
        told += [document for (document,) in database.all("SELECT document FROM ends")]
        ends = [msgspec.msgpack.decode(facts, type=LeaseOutcome) for facts in told]
        balances = Ledger(database).balances()
        learned = (
            "SELECT l.position FROM buffer b JOIN leases l ON l.id = b.lease GROUP BY l.position HAVING count(*) > 1"
        )
        assert database.all(learned) == []
    for word, *facts in acknowledged:
        if word == "received":
            assert received[facts[0]] == facts[1]
        elif word == "receipt":
            assert verdicts[facts[0]] == (facts[1], facts[2])
    assert max(Counter(end.lease for end in ends).values(), default=1) == 1
    assert sum(balances.values()) == 0
    assert sum(a for name, a in balances.items() if name.startswith("node:")) == sum(end.weight for end in ends)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kill_nine_at_any_moment_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    chance = random.Random(0)
    acknowledged: list[list[str]] = []
    for _ in range(KILLS):
        acknowledged += run_until_killed(tmp_path, chance.randrange(MOST_LINES), chance.uniform(0.0, 0.02))
        check(tmp_path, acknowledged)
    receipts = Counter(facts[0] for word, *facts in acknowledged if word == "receipt")
    assert max(receipts.values()) == 1
    checkpoint = json.loads((tmp_path / "checkpoint.json").read_text())
    assert len(set(checkpoint["drawn"])) == len(checkpoint["drawn"]) == 2 * checkpoint["step"]
    assert checkpoint["step"] > KILLS
    with Database.open(tmp_path / "run.sqlite") as database:
        twins = "SELECT count(*), sum(state = 'decided') FROM leases WHERE twin = 'audit'"
        audits, decided = database.all(twins)[0]
        both = "SELECT value FROM tallies WHERE name = 'spare twins'"
        kinds = dict(database.all("SELECT name, value FROM tallies WHERE name LIKE 'canaries %'"))
        agreed = "SELECT count(*) FROM verdicts WHERE code = 'canary'"
        assert kinds["canaries given"] >= kinds["canaries agreed"] == database.value(agreed) > 0
        assert audits >= decided >= database.value(both) > 0
