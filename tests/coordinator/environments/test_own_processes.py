"""A process with a namespace of processes: what it starts ends with it, and it ends as if it had none."""

import fcntl
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

ENTER = """
import fcntl, os, signal, subprocess, sys, time
from echo2.coordinator.environments import own_processes
missing = own_processes.enter()
if missing:
    sys.exit(f"no namespace: {missing}")
"""
LOCKS = 'import fcntl; lock = open("lock", "w"); fcntl.flock(lock, 2); print(flush=True); import time; time.sleep(600)'
START = f"""
started = subprocess.Popen([sys.executable, "-c", {LOCKS!r}], stdout=subprocess.PIPE, start_new_session=True)
started.stdout.readline()
print("locked", flush=True)
"""


def process(folder: Path, script: str) -> "subprocess.Popen[str]":
    """Start a script in a namespace of processes."""
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.Popen(
        [sys.executable, "-c", ENTER + script],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env=env,
    )  # fmt: skip


def ended(one: "subprocess.Popen[str]") -> tuple[str, int]:
    """Wait for the end of a process and of its outputs; skip the test where the system has no namespace."""
    out, err = one.communicate(timeout=30)
    if "no namespace" in err:
        pytest.skip(err)
    assert not err
    return out, one.returncode


@pytest.mark.parametrize(
    ("script", "code"),
    {
        "of itself": ("", 0),
        "with a code": ("os._exit(7)", 7),
        "by a signal": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        "by abort": ("os.abort()", -signal.SIGABRT),
    }.values(),
    ids=lambda value: "",
)
def test_a_process_ends_with_the_code_of_what_ran_in_it(tmp_path: Path, script: str, code: int) -> None:
    assert ended(process(tmp_path, script)) == ("", code)


def test_its_user_and_group_are_what_they_were(tmp_path: Path) -> None:
    out, _ = ended(process(tmp_path, "print(os.getuid(), os.getgid(), os.geteuid(), os.getegid())"))
    same = "import os; print(os.getuid(), os.getgid(), os.geteuid(), os.getegid())"
    assert out == subprocess.check_output([sys.executable, "-c", same], text=True)


@pytest.mark.parametrize("end", ["by SIGKILL", "of itself"])
def test_what_it_started_ends_with_it(tmp_path: Path, end: str) -> None:
    one = process(tmp_path, START + ("os._exit(3)" if end == "of itself" else "time.sleep(600)"))
    if end == "by SIGKILL":
        one.stdout.readline()
        one.kill()
    ended(one)  # the process that was started has this one's stderr, which is at its end now
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
