"""A whole machine is put back to a snapshot after payments went out: as real processes, with the commands that an
operator types. Nothing is planned or sent a second time.

The snapshot is the run folder with all that is in it, `payouts/` too. Nodes ask for heads every `ASK_EVERY` seconds.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.demo.demo_settings import MARKET
from echo2.coordinator.payouts import payout_book
from tests.faults.processes import ROOT, Coordinator, Run, free_port, make_template, until
from tests.support.payout_world import add_payout_role, write_payees
from tests.support.quick_disk import quick_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
QUICK_NODES = Path(__file__).parent / "two_faced"
"""Its sitecustomize.py shortens a node's rounds; without its file it forks nothing."""
ASK_EVERY = "5"
NODES = ("ann", "bob")
OLDER_COPY = "it is an older copy"


@contextmanager
def paying(folder: Path) -> Iterator[Run]:
    """Run a coordinator that pays by files, and two nodes."""
    here = [f"/ip4/127.0.0.1/tcp/{free_port()}"]
    more = {
        "market": dict(MARKET), "payout": {"rail": "csv", "minimum": 1}, "ledger": {"head_seconds": 5},
        "network": {"listen": here},
    }  # fmt: skip
    with closing(Run(make_template(folder / "template", more=more), folder)) as run:
        add_payout_role(run.coordinator.home, folder / "safe", now=time.time_ns() // 1_000_000)
        run.coordinator.start()
        for name in NODES:
            quick = {"PYTHONPATH": f"{QUICK_NODES}:{ROOT}", "ASK_EVERY": ASK_EVERY}
            run.volunteer(name, env={**quick, "ECHO2_ASK": "10/h"})
        until("both nodes have a key", lambda: all((one.home / "node.key").exists() for one in run.volunteers) or None)
        write_payees(run.coordinator.home, {one.peer_id: f"acct_{one.name}" for one in run.volunteers})
        yield run


def command(*words: str) -> tuple[int, str]:
    """Run `echo2-coord`; return its exit code and what it said."""
    argv = [sys.executable, "-m", "echo2.coordinator.cli", *words]
    done = subprocess.run(argv, capture_output=True, timeout=240, check=False, cwd=ROOT)
    return done.returncode, (done.stdout + done.stderr).decode()


def payout(coordinator: Coordinator, *words: str) -> tuple[int, str]:
    return command("payout", *words, "--home", str(coordinator.home))


def is_payable(coordinator: Coordinator) -> bool:
    """Tell whether both nodes would be paid by a plan now."""
    code, said = payout(coordinator, "plan")
    return code == 0 and f"payments    {len(NODES)}, together" in said


def payments(coordinator: Coordinator) -> int:
    with Database.read(coordinator.folder.database) as database:
        return len(payout_book.read(Ledger(database)).payments)


def newest(coordinator: Coordinator) -> int:
    with Database.read(coordinator.folder.database) as database:
        return int(database.value("SELECT coalesce(max(number), 0) FROM ledger_heads"))


def pays(coordinator: Coordinator, safe: Path) -> int:
    """Plan, approve and send all that is payable; return the number of payments."""
    until("payments may be planned", lambda: is_payable(coordinator))
    code, said = payout(coordinator, "plan", "--yes")
    assert code == 0, said
    folder = coordinator.home / "payouts" / "1"
    code, said = command("payout", "approve", str(folder), "--keys", str(safe), "--yes")
    assert code == 0, said
    until("the plan may be sent", lambda: payout(coordinator, "send")[0] == 0 or None)
    code, said = payout(coordinator, "send", "--yes")
    assert code == 0, said
    return payments(coordinator)


def test_a_machine_that_is_put_back_after_payments_sends_none_of_them_again() -> None:
    with quick_folder() as folder, paying(folder) as run:
        coordinator = run.coordinator
        until("something is payable", lambda: is_payable(coordinator), 600)
        coordinator.kill()
        code, said = payout(coordinator, "plan", "--yes")
        assert (code != 0, "no coordinator runs" in said) == (True, True), said
        shutil.copytree(coordinator.home, folder / "snapshot", ignore=shutil.ignore_patterns("*.sock"))
        coordinator.start()
        sent = pays(coordinator, folder / "safe")
        assert sent == len(NODES)
        before = newest(coordinator)
        until("nodes hold a later head", lambda: newest(coordinator) > before + 1 or None)
        time.sleep(2 * float(ASK_EVERY))
        coordinator.kill()
        shutil.rmtree(coordinator.home)
        shutil.copytree(folder / "snapshot", coordinator.home)
        assert payments(coordinator) == 0
        coordinator.start()
        said, refusals = "", 0
        while OLDER_COPY not in said:
            code, said = payout(coordinator, "plan", "--yes")
            assert code != 0, f"it was planned a second time: {said}"
            refusals += 1
            assert refusals < 200, said
        for words in (["plan", "--yes"], ["plan", "--yes", "--unwitnessed"], ["send", "--yes"]):
            code, said = payout(coordinator, *words)
            assert code != 0, said
        assert payments(coordinator) == 0
        assert not (coordinator.home / "payouts" / "csv").exists()
        print(f"\n{sent} payments were sent once; {refusals} plans were refused until a node had shown its head")
