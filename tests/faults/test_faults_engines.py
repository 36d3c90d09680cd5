"""One node with two engines, of which one is killed until it falls out: the other works on, under the same identity."""

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from echo2.coordinator.database.database import Database
from echo2.node.config import NodeConfig
from echo2.node.control.bench import bench
from echo2.node.control.owner_socket import ask_daemon
from echo2.node.errors import NodeError
from tests.faults.audit import check_books
from tests.faults.processes import ROLES, Run, Volunteer, running, until

pytestmark = pytest.mark.slow


def engines(node: Volunteer) -> list[psutil.Process]:
    """Return the node's engine processes, the oldest first."""
    children = [child for child in node.children() if _is_engine(child)]
    return sorted(children, key=lambda child: child.create_time())


def _is_engine(child: psutil.Process) -> bool:
    try:
        return ROLES["engine"] in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def rows(node: Volunteer) -> list[dict[str, Any]]:
    """Return the rows of the engines in `echo2-node status`; empty before the node answers."""
    try:
        return list(ask_daemon(node.home, command="status")["engines"])
    except NodeError:
        return []


def kill_until_out(node: Volunteer, survivor: psutil.Process) -> int:
    """Kill every engine but one as soon as it runs, until the node says that one is out; return how many died."""
    killed, ends = 0, time.monotonic() + 200
    while "the others go on" not in node.log.read_text(errors="replace"):
        assert time.monotonic() < ends
        for engine in engines(node):
            if engine != survivor:
                engine.kill()
                killed += 1
        time.sleep(0.05)
    return killed


def left_open(run: Run) -> int:
    """Return the number of leases that the coordinator still waits for."""
    with closing(Database.read(run.coordinator.folder.database)) as database:
        return int(database.value("SELECT count(*) FROM leases WHERE state = 'open'"))


def test_an_engine_killed_until_it_falls_out_costs_its_own_leases_only(template: Path, tmp_path: Path) -> None:
    with running(template, tmp_path) as run:
        node = run.volunteer("twin", gpu="cpu,cpu")
        until("both engines work", lambda: [row["leases"] > 2 for row in rows(node)] == [True, True])
        _, survivor = engines(node)
        assert kill_until_out(node, survivor) >= 7
        lone = rows(node)
        assert "died 7 times in a row" in lone[0]["state"]
        assert lone[1]["restarts"] == 0
        version = run.coordinator.state().version
        run.coordinator.past(version + 2)
        check_books(run)
        until("the engine is back", lambda: rows(node)[0]["leases"] > lone[0]["leases"])
        assert rows(node)[1]["leases"] > lone[1]["leases"]
        assert survivor in engines(node)
        ask_daemon(node.home, command="finish")
        assert node.wait() == 0
        until("no lease is left open", lambda: not left_open(run), seconds=20)
        check_books(run)
        state = run.coordinator.state()
        (row,) = state.nodes
        assert row.id == node.peer_id
        assert row.accepted == node.accepted()
        (text,) = bench(NodeConfig(home=node.home, gpu="cpu,cpu"), again=True, as_json=True)
        timed = json.loads(text)
        assert [(one["device"], one["reason"]) for one in timed] == [("cpu", "")] * 2
        assert all(one["tokens_per_second"] > 0 for one in timed)
