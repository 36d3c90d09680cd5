"""A hidden folder: what the process, its children and its namespaces can still see."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from echo2.runtime.hidden_folder import HIDDEN_FOLDER_VARIABLE
from tests.support.paths import ROOT

PREFACE = "import os, sys, subprocess; from echo2.runtime.hidden_folder import hide_named; hide_named()\n"
TRIES: dict[str, str] = {
    "read it": "sys.exit(bool(os.listdir({folder!r})))",
    "read it in a child": "sys.exit(b'key.pem' in subprocess.run(['ls', {folder!r}], capture_output=True).stdout)",
    "unmount it": "import ctypes; sys.exit(ctypes.CDLL(None).umount2({folder!r}.encode(), 2) == 0)",
    "read it through the parent's root": "sys.exit(os.path.exists('/proc/{parent}/root{folder}/key.pem'))",
    "read the parent's memory": "sys.exit(bool(open('/proc/{parent}/mem')))",
    "read the parent's environment": "sys.exit(len(open('/proc/{parent}/environ').read()))",
    "make a namespace and unmount it there": (
        "subprocess.run(['unshare', '-Urm', 'umount', {folder!r}], capture_output=True);"
        "sys.exit(bool(os.listdir({folder!r})))"
    ),
}
DENIED = ("read the parent's memory", "read the parent's environment")


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, HIDDEN_FOLDER_VARIABLE: str(folder), "PYTHONPATH": str(ROOT)}
    text = PREFACE + code.format(folder=str(folder), parent=os.getpid())
    return subprocess.run(
        [sys.executable, "-c", text], env=env, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/key.pem").write_text("secret")
    if "not hidden" in run(tmp_path / "keys", "pass").stderr:
        pytest.skip("this system gives no user namespace to a process without privileges")
    return tmp_path / "keys"


@pytest.mark.parametrize("what", TRIES)
def test_a_process_cannot(what: str, folder: Path) -> None:
    done = run(folder, TRIES[what])
    assert done.returncode == 0 or (what in DENIED and "PermissionError" in done.stderr), done.stderr


def test_all_else_stays_as_it_was(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "before").write_text("1")
    done = run(folder, f"open({str(tmp_path / 'later')!r}, 'w').write(open({str(tmp_path / 'before')!r}).read())")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "later").read_text() == "1"
    assert (folder / "key.pem").read_text() == "secret"


def test_a_folder_that_is_not_there_is_said_and_hinders_nothing(folder: Path) -> None:
    done = run(folder / "none", "print('at work', os.environ.get('ECHO2_HIDDEN_FOLDER'))")
    assert done.stdout == "at work None\n"
    assert "is not hidden from this process" in done.stderr
