"""kill -9 of a node, of the coordinator and of both while several submissions are under way: each group counts once.

The coordinator is half a second away, so that submissions and their answers are in the air for as long."""

import json
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from benchmarks.harness.delay_proxy import delay_proxy
from echo2.coordinator.database.database import Database
from echo2.p2p.identity import load_key, public_bytes
from tests.faults.audit import check_books
from tests.faults.processes import Run, Volunteer, make_template, until
from tests.support.quick_disk import quick_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
FAR = 0.5
"""Seconds each way."""
QUICK_ANSWERS = 8
"""Answers after which the node's window of submissions is open (node/rollouts/submission_window.py)."""
SEVERAL = 4
SLOW = Path(__file__).parent / "slow_engine"


@contextmanager
def far_run(template: Path, folder: Path) -> Iterator[Run]:
    """Yield a run whose coordinator is reached through a long line alone, always at the same port. End its processes,
    whatever happened."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (
        closing(Run(template, folder)) as run,
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(delay_proxy(port, FAR)) as far,
    ):
        for key, at in (("listen", port), ("advertise", far)):
            run.coordinator.argv += ["--set", f"network.{key}={json.dumps([f'/ip4/127.0.0.1/tcp/{at}'])}"]
        run.coordinator.start()
        yield run


def rows(run: Run, node: Volunteer, query: str) -> set[bytes]:
    """Return the leases of a node that a query on run.sqlite finds."""
    key = public_bytes(load_key(node.home / "node.key", None))
    with closing(Database.read(run.coordinator.folder.database)) as database:
        return {row[0] for row in database.all(query, (key,))}


def open_leases(run: Run, node: Volunteer) -> set[bytes]:
    return rows(run, node, "SELECT id FROM leases WHERE state = 'open' AND node = ?")


def received(run: Run, node: Volunteer) -> set[bytes]:
    return rows(run, node, "SELECT s.lease FROM submissions s JOIN leases l ON l.id = s.lease WHERE l.node = ?")


def in_outbox(node: Volunteer, state: str) -> set[bytes]:
    """Return the leases whose submissions a node has in this state."""
    with closing(sqlite3.connect(f"file:{node.data / 'outbox.sqlite'}?mode=ro", uri=True)) as database:
        return {row[0] for row in database.execute("SELECT lease FROM submissions WHERE state = ?", (state,))}


def unanswered(run: Run, node: Volunteer) -> set[bytes]:
    """Return the leases whose submissions the coordinator has received while the node does not know it."""
    return in_outbox(node, "queued") & received(run, node)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Start one run for all tests here. It never draws a batch, so that no bound but those of a node limits how many
    groups it works on. Each test leaves it running."""
    with quick_folder() as folder:
        template = make_template(folder / "template", {"batch_groups": 4000})
        (folder / "run").mkdir()
        with far_run(template, folder / "run") as running_run:
            yield running_run


@pytest.mark.parametrize("moment", ["in the air", "received"])
@pytest.mark.parametrize("victims", ["node", "coordinator", "node and coordinator"])
def test_each_group_under_way_counts_once_whatever_is_killed(run: Run, victims: str, moment: str) -> None:
    """Each case has a node of its own: the leases that a killed one lost make it pause (expiry_budgets.py)."""
    slow = run.folder / "slow"
    name = f"{victims} {moment}".replace(" ", "-")
    alice = run.volunteer(name, env={"SLOW_WHILE": str(slow), "PYTHONPATH": str(SLOW)})
    until("many answers came quickly", lambda: alice.accepted() >= QUICK_ANSWERS)
    slow.touch()
    until("she works on many groups", lambda: len(open_leases(run, alice)) >= 2 * SEVERAL)
    slow.unlink()
    until("several are queued", lambda: len(in_outbox(alice, "queued")) >= SEVERAL)
    if moment == "received":
        until("several have come, and no answer", lambda: len(unanswered(run, alice)) >= 2)
    for program, what in ((alice, "node"), (run.coordinator, "coordinator")):
        if what in victims:
            program.kill()
    left = in_outbox(alice, "queued")
    if victims == "node" and moment == "received":
        assert len(unanswered(run, alice)) >= 2, "she died before their answers came"
    check_books(run)
    for program in (run.coordinator, alice):
        if not program.alive:
            until("no orphan is left", lambda one=program: not one.orphans())
            program.start()
    until("all that was queued is accepted", lambda: left <= in_outbox(alice, "accepted"))
    check_books(run)
    assert left
    assert received(run, alice) >= left
    assert not in_outbox(alice, "refused")
    alice.end()
