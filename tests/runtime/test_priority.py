"""Programs that give way: seen from outside, in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from echo2.runtime import priority

OWN_NICE = os.getpriority(os.PRIO_PROCESS, 0)
"""That of the tests, which a developer may run beside other work."""
PROGRAM = """
import os, sys, threading
from echo2.runtime.priority import give_way
there = threading.Event()
threading.Thread(target=there.wait, daemon=True).start()
give_way(sys.argv[1])
later = threading.Thread(target=there.wait, daemon=True)
later.start()
import psutil
tasks = [int(task) for task in os.listdir("/proc/self/task")]
print(len(tasks), sorted({os.sched_getscheduler(task) for task in tasks}),
      sorted({os.getpriority(os.PRIO_PROCESS, task) for task in tasks}), int(psutil.Process().ionice().ioclass))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="SCHED_IDLE and idle I/O are Linux's")
@pytest.mark.parametrize(
    ("level", "seen"), [("idle", "3 [5] [19] 3"), ("low", "3 [0] [10] 0"), ("normal", f"3 [0] [{OWN_NICE}] 0")]
)
def test_every_thread_of_a_process_gives_way(level: str, seen: str, repository: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, level]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=repository, check=True)
    assert ended.stdout.strip() == seen


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("0::/user.slice/app.scope\n", "/user.slice/app.scope"),
        ("3:cpuset:/a\n1:cpu,cpuacct:/init.scope\n0::/b\n", "/init.scope"),
        ("0::/\n", "/"),
        ("", "/"),
    ],
)
def test_the_control_group_is_read_from_both_kinds_of_systems(text: str, group: str, tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(text)
    described = priority.describe("idle", tmp_path)
    assert (f"({group})" in described) == (group != "/")
    assert ("every program" in described) == (group == "/")


AUTOGROUP = """
import pathlib, sys
from echo2.runtime import priority
priority._AUTOGROUP = pathlib.Path(sys.argv[1])
priority.give_way(sys.argv[2])
"""


@pytest.mark.parametrize(("level", "leads", "seen"), [("idle", True, "19"), ("low", True, "10"), ("idle", False, "0")])
def test_only_a_session_of_our_own_is_lowered_and_never_the_terminals(
    level: str, leads: bool, seen: str, repository: Path, tmp_path: Path
) -> None:
    (tmp_path / "autogroup").write_text("0")
    command = [sys.executable, "-c", AUTOGROUP, str(tmp_path / "autogroup"), level]
    subprocess.run(command, cwd=repository, check=True, start_new_session=leads)
    assert (tmp_path / "autogroup").read_text() == seen
