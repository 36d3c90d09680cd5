"""A coordinator that signs two histories of its ledger, and nodes as real processes over libp2p that find it.

Each test prints which node found the fork, and how long after the first head of the other history was shown, and when
the coordinator's page told it. A node that finds it shows it to the coordinator and to its peers before it ends.

Nodes ask for heads every `ASK_EVERY` seconds, a quarter of the product's time, and heads are as much closer.
"""

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from echo2.node.rollouts import ledger_exchange
from echo2.runtime.exit_codes import Exit
from tests.faults.processes import ROOT, Run, Volunteer, until
from tests.support.quick_disk import quick_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
SABOTEUR = Path(__file__).parent / "two_faced"
NODES = ("ann", "bob", "cat", "dan", "eve", "fay", "gus", "hal")
ASK_EVERY = ledger_exchange.ASK_EVERY / 4
"""Seconds between two rounds, in each of which a node asks for heads and compares its own with those of two others."""
EPOCH = 5
"""Seconds between two heads."""
LONGEST = 6 * ASK_EVERY
"""Most seconds until the fork is found. A round shows it to a node, and in the next one it and others compare."""
WITHIN = 20.0
"""Most seconds from a finder's end to the page's words, on a busy machine; the finder tells before it ends."""


@contextmanager
def forking(template: Path, folder: Path) -> Iterator[Run]:
    """Run a coordinator that forks once `folder`/fork.json is there, and eight nodes."""
    with closing(Run(template, folder)) as run:
        run.coordinator.env = {"PYTHONPATH": f"{SABOTEUR}:{ROOT}", "TWO_FACED": str(folder / "fork.json")}
        run.coordinator.start("--set", f"ledger.head_seconds={EPOCH}")
        for name in NODES:
            join(run, name)
        yield run


def join(run: Run, name: str) -> None:
    """Start a node whose rounds are short."""
    run.volunteer(name, env={"PYTHONPATH": f"{SABOTEUR}:{ROOT}", "ASK_EVERY": str(ASK_EVERY)})


def heads_of(node: Volunteer) -> int:
    """Return the number of the newest head that a node has on disk."""
    (path,) = node.home.glob("runs/*/ledger.sqlite")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
        return int(file.execute("SELECT coalesce(max(number), 0) FROM heads").fetchone()[0])


def all_reach(run: Run, number: int) -> None:
    until(f"all nodes have head {number}", lambda: all(heads_of(one) >= number for one in run.volunteers) or None, 420)


def show_other_history(run: Run, honest: list[Volunteer]) -> None:
    """Let all nodes but these see another history from now on."""
    temporary = run.folder / "fork.tmp"
    temporary.write_text(json.dumps({"honest": [one.peer_id for one in honest]}))
    temporary.rename(run.folder / "fork.json")


def first_shown(run: Run) -> float:
    """Return when the first head of the other history was shown, seconds since 1970."""
    record = run.folder / "fork.heads"
    return until("the other history is shown", lambda: float(record.read_text().split()[0]))


def finders(run: Run) -> list[Volunteer]:
    """Return the nodes that have ended by themselves."""
    return [one for one in run.volunteers if not one.alive]


def command(node: Volunteer, *words: str) -> tuple[int, str]:
    argv = [sys.executable, "-m", "echo2.node.cli", *words, "--home", str(node.home)]
    done = subprocess.run(argv, capture_output=True, timeout=240, check=False, cwd=ROOT)
    return done.returncode, (done.stdout + done.stderr).decode()


@pytest.mark.parametrize("view", ["halves", "single", "late"])
def test_a_fork_is_found_by_a_node_within_minutes_and_told(template: Path, tmp_path: Path, view: str) -> None:
    with quick_folder() as folder, forking(template, folder) as run:
        until("all nodes have come", lambda: all(list(one.home.glob("runs/*/ledger.sqlite")) for one in run.volunteers))
        all_reach(run, 2)
        honest = {"halves": run.volunteers[:4], "single": run.volunteers[:7], "late": run.volunteers[:]}[view]
        show_other_history(run, honest)
        if view == "late":
            join(run, "ida")
        shown = first_shown(run)
        until("a node has found the fork", lambda: finders(run) or None, LONGEST)
        after = time.time() - shown
        said = until("the page tells it", lambda: run.coordinator.state().ledger.foreign, WITHIN)
        told = time.time() - shown
        assert "two histories are signed" in said
        first = finders(run)[0]
        deceived = "shown the other history" if first not in honest else "shown the true one"
        print(f"\n{view}: {first.name} ({deceived}) found it {after:.0f} s after it was shown, "
              f"{after / ASK_EVERY:.1f} rounds of {ASK_EVERY:.0f} s")  # fmt: skip
        print(f"{view}: the page told it at most {told:.0f} s after it was shown")
        for words in (["why"], ["receipts", "verify"]):
            code, said = command(first, *words)
            assert (code, "signed two histories" in said) == (Exit.TRUST, True), said
        assert first.wait() == Exit.TRUST
        print(f"{view}: {len(finders(run))} nodes have stopped after {time.time() - shown:.0f} s")
        assert all(one.wait() == Exit.TRUST for one in finders(run))
