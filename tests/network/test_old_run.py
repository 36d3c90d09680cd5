"""Old run folders of commits 439044d (schema 1), f4ac234 (schema 2) and f66a8f8 (schema 3, with a node's home). Today's
daemons open them and continue the run. make_old_run.py made each folder with the code of its commit.

Every fake clock begins at the same time, so the continued run begins a day later.
"""

import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.accounts.standing import Accounts, standing
from echo2.coordinator.database import Database
from echo2.node.home import joined, run_folder
from echo2.node.rollouts import receipts
from echo2.node.versions.local_weights import LocalWeights
from echo2.p2p.identity import load_key, public_key
from echo2.p2p.memory.transport import MemoryNetwork
from tests.support.clock import run_fake
from tests.support.fake_coordinator import until
from tests.support.ledger_sums import check_sums
from tests.support.swarm import BigramLearner, BigramScorer, Swarm, accepted, wall, working

FOLDERS = {
    1: Path(__file__).with_name("old_run.tar.xz"),
    2: Path(__file__).with_name("old_run_schema_2.tar.xz"),
    3: Path(__file__).with_name("old_run_schema_3.tar.xz"),
}
EACH = pytest.mark.parametrize("schema", FOLDERS)
LATER = 24 * 3600.0


def unpacked(archive: Path, folder: Path) -> Swarm:
    """Return the swarm of an old run, with its learner at its checkpoint."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    learner = BigramLearner(folder / "learner")
    told = json.loads((folder / "learner.json").read_text())
    learner.stand(told["step"], [bytes.fromhex(one) for one in told["drawn"]])
    return Swarm(folder, MemoryNetwork(0), learner, BigramScorer())


def history(path: Path) -> dict[str, Any]:
    """Return the figures of an old file, counted from its rows by SQL alone."""
    with closing(sqlite3.connect(path)) as old:

        def count(query: str) -> Any:
            return old.execute(query).fetchone()[0]

        return {
            "schema": count("PRAGMA user_version"),
            "leases": count("SELECT count(*) FROM leases"),
            "received": count("SELECT count(*) FROM submissions"),
            "accepted": count("SELECT count(*) FROM verdicts WHERE verdict = 'accepted'"),
            "rollouts": count("SELECT coalesce(sum(rollouts), 0) FROM verdicts WHERE verdict = 'accepted'"),
            "weight": count("SELECT coalesce(sum(weight), 0) FROM verdicts"),
            "refused": dict(old.execute("SELECT code, count(*) FROM verdicts WHERE verdict = 'refused' GROUP BY code")),
            "expired": count("SELECT count(*) FROM leases WHERE state = 'expired'"),
            "undecided": count("SELECT count(*) FROM leases WHERE state = 'received'"),
            "open": count("SELECT count(*) FROM leases WHERE state = 'open'"),
            "entries": count("SELECT count(*) FROM entries"),
            "balances": dict(old.execute("SELECT account, amount FROM balances")),
            "receipts": dict(old.execute("SELECT lease, receipt FROM verdicts")),
        }


def told(database: Database, now: int) -> dict[str, Any]:
    """Return the figures of `history` as today's program reports them."""
    from echo2.coordinator.metrics.run_metrics import counts

    counted, ledger = counts(database, now), Ledger(database)
    return {
        "received": counted.received,
        "accepted": counted.accepted,
        "rollouts": counted.rollouts,
        "refused": counted.refused,
        "expired": counted.expired,
        "undecided": counted.undecided,
        "entries": ledger.verify().entries,
        "balances": ledger.balances(),
    }


@EACH
def test_the_old_folder_has_something_of_everything(tmp_path: Path, schema: int) -> None:
    unpacked(FOLDERS[schema], tmp_path)
    old = history(tmp_path / "run" / "run.sqlite")
    assert old["schema"] == schema
    assert old["accepted"] >= 40
    assert old["refused"].keys() == (set() if schema == 2 else {"not-scorable"})
    assert min(old["expired"], old["open"], len(old["receipts"])) >= 1


@EACH
def test_sums_of_a_migrated_file_are_those_of_its_history_and_its_ledger_holds(tmp_path: Path, schema: int) -> None:
    unpacked(FOLDERS[schema], tmp_path)
    path = tmp_path / "run" / "run.sqlite"
    old = history(path)
    with Database.open(path) as database:
        new = told(database, 0)
        receipts = dict(database.all("SELECT lease, receipt FROM verdicts"))
        check_sums(database)
    assert new == {name: old[name] for name in new}
    assert receipts == old["receipts"]
    with Database.open(path) as database:
        assert told(database, 0) == new, "opened a second time, nothing is counted twice"


@pytest.mark.parametrize("schema", [1, 2])
def test_bans_and_standing_of_an_old_run_are_those_of_its_ledger(tmp_path: Path, schema: int) -> None:
    unpacked(FOLDERS[schema], tmp_path)
    path = tmp_path / "run" / "run.sqlite"
    with closing(sqlite3.connect(path)) as old:
        banned = dict(old.execute("SELECT key, banned FROM nodes WHERE banned IS NOT NULL"))
    assert banned
    with Database.open(path) as database:
        ledger = Ledger(database)
        accounts, told = Accounts(database, ledger), standing(ledger.entries(), 0)
        assert {node: accounts.of(public_key(node), 0) for node in told} == told
        assert {node: accounts.of(node, 0).why for node in banned} == banned
    assert "known" in {one.rank for one in told.values()}


@EACH
def test_an_old_run_is_carried_on(tmp_path: Path, schema: int) -> None:
    swarm = unpacked(FOLDERS[schema], tmp_path)
    old = history(tmp_path / "run" / "run.sqlite")
    step, drawn = swarm.learner.step_number, set(swarm.learner.drawn)

    async def main() -> None:
        await anyio.sleep(LATER)
        async with swarm.coordinating() as coordinator:
            node = swarm.node("carol")
            async with working(node):
                await until(lambda: accepted(node) >= 6, 600)
                await until(lambda: swarm.learner.step_number >= step + 2, 600)
            now = told(coordinator.group_service.database, int(wall() * 1000))
        assert now["accepted"] >= old["accepted"] + 6
        assert now["entries"] > old["entries"]
        assert now["refused"] == old["refused"]
        assert len(swarm.learner.drawn) == len({*swarm.learner.drawn}), "no group was drawn twice"
        assert drawn < {*swarm.learner.drawn}

    run_fake(main)


def test_the_home_of_an_old_node_goes_on_from_its_weights_and_loses_no_receipt(tmp_path: Path) -> None:
    swarm = unpacked(FOLDERS[3], tmp_path)
    home = tmp_path / "alice"
    count, _, _, faults, *_ = receipts.verified(home, None)
    before = {row["lease"] for row in receipts.listed(home, 1000)}
    assert count >= 4
    assert not faults
    weights = LocalWeights(run_folder(home, joined(home).run) / "weights", quota=1 << 20)
    root = weights.root()
    assert root is not None

    async def main() -> None:
        await anyio.sleep(LATER)
        async with swarm.coordinating() as coordinator:
            published = {version.root for version in coordinator.publisher.versions}
            assert root in published, "the weights of the old home are a version of the run"
            alice = swarm.node("alice", key=load_key(home / "node.key"))
            done = accepted(alice)
            assert done >= 4
            async with working(alice):
                await until(lambda: accepted(alice) >= done + 4, 600)

    run_fake(main)
    count_now, _, _, faults, *_ = receipts.verified(home, None)
    assert count_now >= count + 4
    assert not faults
    assert before < {row["lease"] for row in receipts.listed(home, 1000)}
    assert weights.root() not in (None, root), "the weights were stepped on"
