"""A process whose memory is its own: what its children of the same user can read of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOBODY = 65534
ATTEMPTS = {
    "its environment": "open(f'/proc/{os.getppid()}/environ', 'rb').read()",
    "its memory": "open(f'/proc/{os.getppid()}/mem', 'rb')",
    "its open files": "os.listdir(f'/proc/{os.getppid()}/fd')",
}
PARENT = """
import subprocess, sys
from runtime.own_memory import keep_private
keep_private()
sys.exit(subprocess.run([sys.executable, "-c", sys.argv[1]]).returncode)
"""


def _codes(attempt: str) -> int:
    """Return how a child's attempt on its parent ends: 0: it succeeded, 13: it is refused. Without privileges, which
    would open everything."""
    child = f"import os, sys\ntry:\n    {attempt}\nexcept PermissionError:\n    sys.exit(13)"
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    env = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "ECHO2_KEY_PASSPHRASE": "open sesame"}
    command = [sys.executable, "-c", PARENT, child]
    return subprocess.run(command, env=env, cwd="/", **user).returncode  # type: ignore[call-overload, no-any-return]


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
@pytest.mark.parametrize("what", ATTEMPTS)
def test_a_child_of_the_same_user_cannot_read(what: str) -> None:
    assert _codes(ATTEMPTS[what]) == 13
