"""Private processes: what others of the same user can read of them, and that all of ours are."""

import ast
import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

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
OWN = """
import ctypes
from echo2.runtime import namespaces, resident_memory
from echo2.runtime.own_memory import keep_private
keep_private()
try:
    namespaces.leave(namespaces.USER)
except namespaces.NamespaceRefused as refused:
    print(refused)
else:
    print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), resident_memory.own_memory() > 1 << 20)
"""
MAINS = (
    "coordinator/cli.py",
    "node/cli.py",
    "engines/process/host.py",
    "coordinator/learner/__main__.py",
    "coordinator/learner/ranks/torchrun.py",
    "coordinator/environments/environment_host.py",
    "coordinator/ray_scorers/ray_driver.py",
)

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


def test_a_private_process_without_privileges_gets_its_namespaces_measures_itself_and_stays_private() -> None:
    as_a_user = ["unshare", "--user", "--map-user=65534", "--map-group=65534"] if os.geteuid() == 0 else []
    done = subprocess.run([*as_a_user, sys.executable, "-c", OWN], cwd=ROOT, capture_output=True, text=True)
    if "refuses a namespace" in done.stdout or "unshare failed" in done.stderr:
        pytest.skip(done.stdout + done.stderr)
    assert done.stdout == "0 True\n", done.stderr


@pytest.mark.parametrize("path", MAINS)
def test_the_first_act_of_each_program_and_child_of_ours_is_to_make_itself_private(path: str) -> None:
    tree = ast.parse((ROOT / path).read_text())
    (main,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main"]
    first = next(one for one in main.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)))
    assert ast.unparse(first) == "keep_private()"


def test_every_child_with_a_pipe_has_a_main_that_is_tried_here() -> None:
    with_a_pipe = {
        str(path.relative_to(ROOT))
        for folder in ("coordinator", "node", "engines", "tasks")
        for path in (ROOT / folder).rglob("*.py")
        if "Pipe()" in path.read_text()
    }
    assert with_a_pipe <= set(MAINS)
