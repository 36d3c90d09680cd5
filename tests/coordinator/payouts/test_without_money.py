"""A run without money loads nothing of the rooms by which money leaves: neither payouts nor rails."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.run_folders import NOW

ROOMS = ("echo2.coordinator.payouts", "echo2.coordinator.rails")
COORDINATOR = """
import sys
from pathlib import Path
import echo2.coordinator.cli, echo2.coordinator.command_line.process_life, echo2.coordinator.command_line.serving
from echo2.coordinator.daemon import Coordinator
from echo2.coordinator.database.database import Database
from echo2.coordinator.run.setup import load_run
from echo2.coordinator.training.model_processes import Models
from benchmarks.memory_network.transport import MemoryNetwork
from echo2.p2p.network import Network
from echo2.p2p.peer.peer import Peer
from echo2.weights.store import Store

run = load_run(Path(sys.argv[1]), env={}, now=int(sys.argv[2]))
network = Network.of(Peer(MemoryNetwork(0).transport(run.peer_id), seed=0))
with Store(run.folder.store) as store, Database.open(run.folder.database) as database:
    made = Coordinator(run, network, Models(None, [None]), store=store, database=database)
    print("a market:", made.market is not None)
if "more" in sys.argv:
    import echo2.coordinator.epochs.running_market
print("loaded:", *sys.modules)
"""


def loaded(home: Path, *more: str) -> list[str]:
    """Return the modules of the two rooms that a process has loaded once it has made the coordinator of a run."""
    argv = [sys.executable, "-c", COORDINATOR, str(home), str(NOW), *more]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    market, names = done.stdout.splitlines()[-2:]
    assert market == "a market: False"
    return [name for name in names.split()[1:] if name.startswith(ROOMS)]


def test_the_coordinator_of_a_run_in_points_loads_neither_payouts_nor_rails(home: Path) -> None:
    assert loaded(home) == []


@pytest.mark.slow
def test_the_market_loads_both_so_the_look_would_see_them(home: Path) -> None:
    assert {*ROOMS} <= {*loaded(home, "more")}


def test_all_others_import_them_within_the_function_that_pays_but_for_the_market() -> None:
    importing = re.compile(r"^( *)(?:from|import) echo2\.coordinator\.(?:payouts|rails)\b", re.MULTILINE)
    files = [path for path in (ROOT / "coordinator").rglob("*.py") if path.parent.name not in ("payouts", "rails")]
    at_once = {
        str(path.relative_to(ROOT)) for path in files for indent in importing.findall(path.read_text()) if not indent
    }
    assert at_once == {"coordinator/epochs/running_market.py"}
