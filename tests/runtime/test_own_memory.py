"""A process whose memory is its own: what its children of the same user can read of it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARENT = """
import os, subprocess, sys
from echo2.runtime.capabilities import give_up
from echo2.runtime.own_memory import keep_private
if os.geteuid() == 0:
    give_up()  # root would see everything
{private}
sys.exit(subprocess.run([sys.executable, "-c", sys.argv[1]]).returncode)
"""
CHILD = """
import os, sys
try:
    {attempt}
except PermissionError:
    sys.exit(13)
"""
ATTEMPTS = {
    "its environment": "open(f'/proc/{os.getppid()}/environ', 'rb').read()",
    "its memory": "open(f'/proc/{os.getppid()}/mem', 'rb')",
    "its open files": "os.readlink(f'/proc/{os.getppid()}/fd/0')",
}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="of Linux")


def _ends(attempt: str, private: str) -> int:
    """Return how a child's attempt on its parent ends: 0: it succeeded, 13: it was refused."""
    command = [sys.executable, "-c", PARENT.format(private=private), CHILD.format(attempt=attempt)]
    return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL).returncode


@pytest.mark.parametrize("what", ATTEMPTS)
def test_a_child_of_the_same_user_cannot_read(what: str) -> None:
    assert _ends(ATTEMPTS[what], "keep_private()") == 13


def test_a_child_of_a_process_that_is_open_reads_the_passphrase_from_its_environment() -> None:
    assert _ends(ATTEMPTS["its environment"], "") == 0
