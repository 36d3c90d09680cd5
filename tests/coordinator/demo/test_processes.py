"""Supervision of real processes."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from coordinator.demo.processes import MARK, ProcessFault, ProcessGroup, ended_with

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)",
]


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[ProcessGroup]:
    crew = ProcessGroup(tmp_path, {**os.environ, MARK: str(tmp_path)})
    yield crew
    crew.stop(grace=0.2)
    assert crew.names() == []


def ended(crew: ProcessGroup, name: str, *argv: str) -> None:
    """Start a process that ends by itself, and wait for that."""
    crew.start(name, argv)
    crew._members[name].process.wait(20)


def test_a_process_that_ends_unasked_is_a_fault_that_names_it(crew: ProcessGroup) -> None:
    ended(crew, "one", sys.executable, "-c", "print('so long'); raise SystemExit(70)")
    with pytest.raises(ProcessFault, match="one ended with exit code 70") as fault:
        crew.check()
    assert fault.value.names == ("one",)
    assert crew.tail("one") == ["so long"]


def test_even_an_orderly_end_is_a_fault_unless_it_was_free_to_end(crew: ProcessGroup) -> None:
    ended(crew, "one", sys.executable, "-c", "pass")
    with pytest.raises(ProcessFault, match="exit code 0"):
        crew.check()
    crew.check(may_end=["one"])


def test_a_crash_is_a_fault_also_of_one_that_was_free_to_end(crew: ProcessGroup) -> None:
    ended(crew, "one", sys.executable, "-c", "raise SystemExit(70)")
    with pytest.raises(ProcessFault):
        crew.check(may_end=["one"])


def test_one_that_is_killed_on_purpose_is_no_fault(crew: ProcessGroup) -> None:
    crew.start("one", SLEEP)
    crew.kill("one")
    assert crew.wait(["one"], 20) == []
    crew.check()
    assert not crew.alive("one")


def test_one_killed_by_somebody_else_is_a_fault(crew: ProcessGroup) -> None:
    crew.start("one", SLEEP)
    process = crew._members["one"].process
    os.kill(process.pid, signal.SIGKILL)
    process.wait(20)
    with pytest.raises(ProcessFault, match="one was ended by SIGKILL"):
        crew.check()


def test_one_that_will_not_end_is_a_fault_and_ends_all_the_same(crew: ProcessGroup) -> None:
    crew.start("one", STUBBORN)
    while crew.tail("one") != ["ready"]:
        os.sched_yield()
    with pytest.raises(ProcessFault, match=r"one did not end within 0\.1 s"):
        crew.end("one", signal.SIGTERM, 0.1)
    crew.stop(grace=0.1)
    assert not crew.alive("one")


def test_the_children_of_a_dead_daemon_do_not_outlive_the_demo(crew: ProcessGroup, tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)"
    )
    crew.start("one", [sys.executable, "-c", code])
    while not crew.tail("one"):
        os.sched_yield()
    child = psutil.Process(int(crew.tail("one")[0]))
    crew.kill("one")
    crew.stop(grace=0.2)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_one_that_the_signal_itself_ended_did_as_it_was_told(crew: ProcessGroup) -> None:
    crew.start("one", SLEEP)
    crew.end("one", signal.SIGTERM, 20)
    assert not crew.alive("one")


def test_ends_are_told_in_words() -> None:
    assert ended_with(70) == "ended with exit code 70"
    assert ended_with(-9) == "was ended by SIGKILL"
