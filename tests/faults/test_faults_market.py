"""kill -9 of a coordinator that pays by epochs, as a real process with two nodes: no entry, pay or ask is lost or
doubled.

Rules
1. At half of the points the coordinator kills itself between two steps of closing an epoch and opening the next; at the
   others it is killed from outside, at any time of an epoch: while asks are sealed and opened, groups accepted.
2. All that was in the ledger when a process was dead is there, byte for byte, when the next one is.
3. Each epoch is opened and closed at most once, in order; each node's ask at most once per epoch.
4. At the end both replayers compute the same state from the export, each node's receipts, prices and pay hold, and each
   node's ask stands.
"""

import hashlib
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.demo.demo_settings import MARKET
from echo2.coordinator.demo.market_summary import played_market
from echo2.coordinator.ledger_files.ledger_export import export
from echo2.coordinator.market.market_replay import market_of
from echo2.coordinator.run.setup import load_run
from echo2.ledger.export_replay import replay
from echo2.node.rollouts import receipts
from tests.faults import audit
from tests.faults.processes import ROOT, Coordinator, Run, free_port, make_template, until
from tests.support.quick_disk import quick_folder
from tests.support.second_replayer import replayed_apart

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
SABOTEUR = Path(__file__).parent / "dies_in_market"
POINTS = 28
STEPS = 14
"""Points at which a process can kill itself during one change of epochs, about."""
ASKS = {"ann": 10, "bob": 12}
NANO = 10**9


@contextmanager
def paying(folder: Path) -> Iterator[Run]:
    """Run a coordinator with a market, and two nodes with an ask each."""
    here = [f"/ip4/127.0.0.1/tcp/{free_port()}"]
    more = {
        "market": dict(MARKET), "payout": {"rail": "csv"}, "ledger": {"head_seconds": 5}, "network": {"listen": here},
    }  # fmt: skip
    with closing(Run(make_template(folder / "template", more=more), folder)) as run:
        run.coordinator.start()
        for name, ask in ASKS.items():
            run.volunteer(name, env={"ECHO2_ASK": f"{ask}/h"})
        yield run


def closed(coordinator: Coordinator) -> int:
    """Return the number of the last epoch that was closed with pay; 0: none."""
    market = coordinator.state().market
    last = None if market is None else market.last
    return last.epoch if last is not None and last.paid else 0


def entries_of(run: Run) -> list[bytes]:
    """Return the hash of each entry, and check rule 3."""
    with closing(Database.read(run.coordinator.folder.database)) as database:
        ledger = Ledger(database)
        ledger.verify()
        entries = list(ledger.entries())
    epochs: dict[str, list[int]] = {"epoch.announced": [], "epoch.opened": [], "epoch.closed": []}
    asks = Counter[tuple[str, str, int]]()
    for entry in entries:
        facts = msgspec.msgpack.decode(entry.facts)
        if entry.kind in epochs:
            epochs[entry.kind].append(facts["epoch"])
        if entry.kind in ("ask.sealed", "ask.opened"):
            asks[entry.kind, facts["node"], facts["epoch"]] += 1
    for numbers in epochs.values():
        assert numbers == list(range(1, len(numbers) + 1))
    assert len(epochs["epoch.opened"]) - len(epochs["epoch.closed"]) in (0, 1)
    assert set(asks.values()) <= {1}
    return [entry.hash for entry in entries]


def check_receipts(run: Run) -> int:
    """Check that every Receipt of a node is the coordinator's verdict; return how many there are."""
    told = {node.name: audit.receipts(node) for node in run.volunteers}
    with closing(Database.read(run.coordinator.folder.database)) as database:
        verdicts = dict(database.all("SELECT lease, receipt FROM verdicts"))
    for mine in told.values():
        assert {lease: verdicts.get(lease) for lease in mine} == mine
    return sum(map(len, told.values()))


def die_between_steps(run: Run, chance: random.Random) -> str:
    """Let the coordinator kill itself as it closes an epoch; return where."""
    steps = chance.randrange(STEPS)
    run.coordinator.env = {"PYTHONPATH": f"{SABOTEUR}:{ROOT}", "DIES_AT": str(steps), "DIES_FROM": "20"}
    run.coordinator.start()
    until("it has killed itself", lambda: not run.coordinator.alive)
    return f"step {steps} of a close"


def die_at_any_time(run: Run, chance: random.Random) -> str:
    """Kill the coordinator at a random moment after an epoch has closed; return when."""
    run.coordinator.env = {}
    run.coordinator.start()
    until("the page answers", lambda: run.coordinator.state())
    before = closed(run.coordinator)
    until("an epoch with pay has closed", lambda: closed(run.coordinator) > before)
    after = chance.uniform(0.0, MARKET["epoch_seconds"])
    time.sleep(after)
    run.coordinator.kill()
    return f"{after:.2f} s after a close"


def test_a_coordinator_killed_at_28_points_of_its_epochs_loses_and_doubles_nothing() -> None:
    chance = random.Random(17)
    with quick_folder() as folder, paying(folder) as run:
        until("an epoch has closed with pay", lambda: closed(run.coordinator) > 0)
        run.coordinator.kill()
        told = entries_of(run)
        for point in range(POINTS):
            where = (die_between_steps if point % 2 else die_at_any_time)(run, chance)
            now = entries_of(run)
            assert now[: len(told)] == told, "an entry was lost, or changed"
            print(f"point {point + 1}: {where}; {len(now)} entries, {len(now) - len(told)} since the last point, "
                  f"{check_receipts(run)} receipts")  # fmt: skip
            told = now
        run.coordinator.env = {}
        run.coordinator.start()
        before = until("epochs go on", lambda: closed(run.coordinator))
        until("epochs go on", lambda: closed(run.coordinator) > before + 1)
        until(
            "nodes have proofs",
            lambda: all(receipts.verify_receipts(one.home, None).epochs > 3 for one in run.volunteers),
        )
        end_and_compare(run, folder)


def end_and_compare(run: Run, folder: Path) -> None:
    """End all in order, and check rule 4."""
    run.close()
    check_receipts(run)
    export(run.coordinator.folder, folder / "export", unsigned=True, market_of=market_of)
    state = replay(folder / "export", market_of).state.as_bytes()
    assert replayed_apart(folder / "export") == state
    name = load_run(run.coordinator.home, now=0, env={}).id
    with closing(Database.read(run.coordinator.folder.database)) as database:
        played = played_market(name, Ledger(database).entries())
    nodes = {one.peer_id: one for one in run.volunteers}
    assert {nodes[peer].name: ask // NANO for peer, ask in played.asks.items()} == ASKS
    for peer, node in nodes.items():
        checked = receipts.verify_receipts(node.home, None)
        assert checked.faults == []
        assert checked.epochs > 0
        print(f"{node.name}: {played.places[peer]['active']} epochs active, {checked.epochs} of them checked by it, "
              f"{played.pay[peer] / NANO:.6f} USD earned")  # fmt: skip
        assert played.pay[peer] > 0
    print(f"{played.epochs} epochs; both replayers: {hashlib.sha256(state).hexdigest()}")
