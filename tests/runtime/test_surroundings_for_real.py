"""Commands in surroundings that are not as they should be, as processes of their own: each ends with its sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from echo2.runtime.exit_codes import Exit
from tests.support.paths import ROOT

NOBODY = 54_321
"""A user without an entry in the list of users."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="another user is tried by root")
ENDING = """
import os, sqlite3, sys
from echo2.runtime.cli_errors import run_command
def command():
    {lines}
sys.exit(run_command(command, "echo2-test", lambda error: None))
"""


def ended(argv: list[str], *, user: int | None = None, **variables: str) -> tuple[int, str]:
    """Run a command; return its code, and what it wrote to stderr."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]), **variables}
    who = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    command = [sys.executable, "-P", *argv]
    done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, timeout=60, check=False, **who)  # type: ignore[call-overload]
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
    assert "ulimit" not in said, "its hard limit allows no more"


def test_a_disk_without_room_is_told(tmp_path: Path) -> None:
    code, said = ended(["-c", ENDING.format(lines="with open('/dev/full', 'w') as file: file.write('x')")])
    assert (code, said) == (Exit.TEMPORARY, "echo2-test: no space is left for a file: make room there\n")


@needs_root
@pytest.mark.parametrize("words", [["status"], ["config", "path"], ["keys", "show"]])
def test_a_user_without_an_entry_and_a_home_is_told_to_set_one(words: list[str]) -> None:
    code, said = ended(["-m", "echo2.node.cli", *words], user=NOBODY)
    assert code == Exit.CONFIG
    assert said.startswith(f"echo2-node: the user {NOBODY} has no entry in the list of users and no HOME: set HOME")


@needs_root
def test_a_user_without_an_entry_works_with_a_home(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    for parent in (tmp_path, *tmp_path.parents[:3]):
        parent.chmod(parent.stat().st_mode | 0o055)
    code, said = ended(["-m", "echo2.node.cli", "config", "get"], user=NOBODY, HOME=str(tmp_path))
    assert (code, said) == (Exit.OK, "")
