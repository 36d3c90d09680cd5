"""A node whose home lies on a real NFS: it works, is killed and goes on, and leaves nothing behind.

This needs root, a kernel with NFS, and a server on this machine that exports a folder to it as the root of NFS 4, as
with `exportfs -o rw,fsid=0,no_root_squash,insecure 127.0.0.1:/srv`.
"""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from echo2.runtime.exit_codes import Exit
from echo2.runtime.network_disk import SHARED_HOME
from tests.faults.audit import check_books
from tests.faults.processes import PATIENCE, ROOT, Run, Volunteer, running, until
from tests.support.quick_disk import quick_folder

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Mount the export of this machine's own server; yield an empty folder on it."""
    place = tmp_path_factory.mktemp("nfs")
    mounted = subprocess.run(
        ["mount", "-t", "nfs4", "127.0.0.1:/", str(place)], capture_output=True, text=True, check=False, timeout=60
    )
    if mounted.returncode:
        pytest.skip(f"no NFS here: {mounted.stderr.strip()}")
    folder = place / place.name
    try:
        folder.mkdir()
        yield folder
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=False)
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture(scope="module")
def run(far: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    template = request.getfixturevalue("template")  # only where there is NFS
    with quick_folder() as folder, running(template, folder) as running_run:
        running_run.volunteer("ann", disk=far)
        yield running_run


def ask(node: Volunteer, *words: str, code: int = 0) -> str:
    """Return what a command of the node's home prints; its exit code is checked."""
    argv = [sys.executable, "-m", "echo2.node.cli", *words, "--home", str(node.home)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=ROOT)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def works(node: Volunteer) -> None:
    before = node.accepted()
    until("the node is credited", lambda: node.accepted() >= before + 3)
    until("it follows", lambda: len(node.versions()) >= 3)


def test_the_node_says_where_its_home_lies_and_works(run: Run) -> None:
    (ann,) = run.volunteers
    works(ann)
    (said,) = [one for one in ann.lines() if one["event"] == "home on a shared disk"]
    assert said["disk"] == "nfs4, from 127.0.0.1:/"
    with closing(sqlite3.connect(ann.data / "outbox.sqlite", timeout=PATIENCE)) as outbox:
        assert outbox.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_its_commands_reach_it_over_the_socket_there(run: Run) -> None:
    (ann,) = run.volunteers
    assert json.loads(ask(ann, "status", "--json"))["way"] == "direct"
    assert "accepted" in ask(ann, "receipts", "list")
    rows = {row["check"]: row for row in json.loads(ask(ann, "doctor", "--json"))}
    assert (rows["file system"]["verdict"], rows["file system"]["remedy"]) == ("poor", SHARED_HOME)


def test_a_second_node_in_the_same_home_is_refused(run: Run) -> None:
    (ann,) = run.volunteers
    ask(ann, "run", code=Exit.TEMPORARY)


@pytest.mark.parametrize("times", range(3))
def test_it_is_killed_and_goes_on(run: Run, times: int) -> None:
    (ann,) = run.volunteers
    ann.kill()
    until("its engine has ended by itself", lambda: not ann.orphans())
    ann.start()
    works(ann)
    check_books(run)


def test_it_leaves_and_nothing_of_the_run_stays(run: Run) -> None:
    (ann,) = run.volunteers
    ask(ann, "leave")
    assert ann.wait() == Exit.OK
    assert "right, 0 wrong" in ask(ann, "receipts", "verify")
    assert list(ann.home.rglob(".nfs*")) == []
    assert not (ann.data / "weights").exists()
    ask(ann, "leave", "--forget", "--yes")
    assert not ann.home.exists()
