"""Commands in surroundings that are not as they should be, as processes of their own: each ends with its sentence."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from echo2.p2p.discovery.invite import Invite
from echo2.runtime.exit_codes import Exit
from tests.support.paths import ROOT

NOBODY = 54_321
"""A user without an entry in the list of users."""
AS_NOBODY = (
    "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
)  # fmt: skip
"""This user may read all, since Python and the checkout may lie in a folder of root's, and write nothing."""
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="root and setpriv try another user"
)
INVITE = Invite(run=b"r" * 32, root_hash=b"h" * 32, addresses=["/ip4/127.0.0.1/tcp/1/p2p/x"]).to_text()
ENDING = """
import os, sqlite3, sys
from echo2.runtime.cli_errors import run_command
def command():
    {lines}
sys.exit(run_command(command, "echo2-test", lambda error: None))
"""


def ended(argv: list[str], before: tuple[str, ...] = (), **variables: str) -> tuple[int, str]:
    """Run a command of Python; return its code, and what it wrote to stderr. `before`: the command that runs it."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]), **variables}
    command = [*before, sys.executable, "-P", *argv]
    done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


def test_a_database_that_cannot_be_opened_for_want_of_descriptors_is_not_called_read_only(tmp_path: Path) -> None:
    """SQLite says `unable to open database file`, as it does for a folder that may not be written."""
    lines = f"""
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
    try:
        while True: os.open(os.devnull, os.O_RDONLY)
    except OSError: pass
    sqlite3.connect({str(tmp_path / "x")!r}).execute("CREATE TABLE t (a)")"""
    code, said = ended(["-c", ENDING.format(lines=lines)])
    assert code == Exit.TEMPORARY
    assert said.startswith("echo2-test: this process may have 32 files and connections open, and has reached that")
    assert "`ulimit" not in said, "its hard limit allows no more"


def test_a_disk_without_room_is_told(tmp_path: Path) -> None:
    code, said = ended(["-c", ENDING.format(lines="with open('/dev/full', 'w') as file: file.write('x')")])
    assert (code, said) == (Exit.TEMPORARY, "echo2-test: no space is left for a file: make room there\n")


@needs_root
@pytest.mark.parametrize("words", [["status"], ["config", "path"], ["keys", "show"]])
def test_a_user_without_an_entry_and_a_home_is_told_to_set_one(words: list[str]) -> None:
    code, said = ended(["-m", "echo2.node.cli", *words], AS_NOBODY)
    assert code == Exit.CONFIG
    assert said.startswith(f"echo2-node: the user {NOBODY} has no entry in the list of users and no HOME: set HOME")


@needs_root
def test_a_user_without_an_entry_works_with_a_home(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    code, said = ended(["-m", "echo2.node.cli", "config", "get"], AS_NOBODY, HOME=str(tmp_path))
    assert (code, said) == (Exit.OK, "")


@needs_root
@pytest.mark.parametrize("program", ["node", "coordinator"])
def test_a_folder_that_may_not_be_written_is_told(program: str, tmp_path: Path) -> None:
    words = {
        "node": ["-m", "echo2.node.cli", "join", INVITE, "--home", str(tmp_path / "home")],
        "coordinator": ["-m", "echo2.coordinator.cli", "init", str(tmp_path / "run"), "--model", "tiny", "--yes"],
    }
    code, said = ended(words[program], AS_NOBODY, HOME="/")
    assert code == Exit.CONFIG
    assert str(tmp_path) in said
    assert "internal fault" not in said
