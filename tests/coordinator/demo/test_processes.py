"""The demo's process group, with real processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from echo2.coordinator.demo.processes import ProcessFault, ProcessGroup, ProcessorTimes, ended_with

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)",
]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ProcessGroup]:
    group = ProcessGroup(tmp_path, os.environ)
    yield group
    group.stop(grace=0.2)
    assert group.names() == []


def ended(group: ProcessGroup, name: str, *argv: str) -> None:
    """Start a process that ends by itself, and wait for its end."""
    group.start(name, argv)
    assert group.wait([name], 20) == []


def test_the_share_of_the_processors_time_is_that_between_two_looks() -> None:
    first = ProcessorTimes.now()
    sum(range(3_000_000))
    later = ProcessorTimes.now()
    assert later.busy + later.free > first.busy + first.free
    assert 0.0 <= first.share_until(later) <= 1.0
    assert ProcessorTimes(10.0, 20.0).share_until(ProcessorTimes(13.0, 21.0)) == 0.75
    assert first.share_until(first) == 0.0


def test_a_process_that_ends_early_is_a_fault_that_names_it(group: ProcessGroup) -> None:
    ended(group, "one", sys.executable, "-c", "print('so long'); raise SystemExit(70)")
    with pytest.raises(ProcessFault, match="one ended with exit code 70") as fault:
        group.check()
    assert fault.value.names == ("one",)
    assert group.tail("one") == ["so long"]


def test_an_orderly_exit_is_a_fault_unless_the_process_may_end(group: ProcessGroup) -> None:
    ended(group, "one", sys.executable, "-c", "pass")
    with pytest.raises(ProcessFault, match="exit code 0"):
        group.check()
    group.check(may_end=["one"])


def test_a_crash_is_a_fault_even_if_the_process_may_end(group: ProcessGroup) -> None:
    ended(group, "one", sys.executable, "-c", "raise SystemExit(70)")
    with pytest.raises(ProcessFault):
        group.check(may_end=["one"])


def test_a_process_killed_on_purpose_is_no_fault(group: ProcessGroup) -> None:
    group.start("one", SLEEP)
    group.kill("one")
    assert group.wait(["one"], 20) == []
    group.check()
    assert not group.alive("one")


def test_a_process_killed_from_outside_is_a_fault(group: ProcessGroup) -> None:
    group.start("one", SLEEP)
    os.kill(group.pid("one"), signal.SIGKILL)
    assert group.wait(["one"], 20) == []
    with pytest.raises(ProcessFault, match="one was ended by SIGKILL"):
        group.check()


def test_a_process_that_ignores_sigterm_is_a_fault_and_is_killed(group: ProcessGroup) -> None:
    group.start("one", STUBBORN)
    while group.tail("one") != ["ready"]:
        os.sched_yield()
    with pytest.raises(ProcessFault, match=r"one did not end within 0\.1 s"):
        group.end("one", signal.SIGTERM, 0.1)
    group.stop(grace=0.1)
    assert not group.alive("one")


def test_the_children_of_a_dead_daemon_do_not_outlive_the_demo(group: ProcessGroup, tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)"
    )
    group.start("one", [sys.executable, "-c", code])
    while not group.tail("one"):
        os.sched_yield()
    child = psutil.Process(int(group.tail("one")[0]))
    group.kill("one")
    group.stop(grace=0.2)
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:  # killed, and not yet seen to be
        os.sched_yield()


def test_a_child_that_is_being_started_as_its_daemon_is_told_to_end_does_not_outlive_the_demo(
    group: ProcessGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon starts its child as soon as it is allowed to; that is while the group looks for children."""
    code = (
        "import pathlib, subprocess, sys, time\n"
        "print('ready', flush=True)\n"
        "while not pathlib.Path(sys.argv[1]).exists(): pass\n"
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True).pid,"
        " flush=True)\n"
        "time.sleep(600)"
    )
    allowed, children = tmp_path / "allowed", psutil.Process.children

    def found(daemon: psutil.Process, recursive: bool = False) -> list[psutil.Process]:
        before = children(daemon, recursive)
        allowed.touch()
        time.sleep(0.3)  # a daemon that does not stand still has started its child by then
        return before

    group.start("one", [sys.executable, "-c", code, str(allowed)])
    while group.tail("one") != ["ready"]:
        os.sched_yield()
    monkeypatch.setattr(psutil.Process, "children", found)
    group.stop(grace=5)
    assert group.tail("one") == ["ready"]


def test_a_process_that_was_being_started_when_ctrl_c_came_is_known(
    group: ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = subprocess.Popen

    def interrupted(*told: Any, **options: Any) -> "subprocess.Popen[bytes]":
        process = started(*told, **options)
        signal.raise_signal(signal.SIGINT)
        return process

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        group.start("one", SLEEP)
    assert group.alive("one")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.skipif(sys.platform != "linux", reason="rule 4 is Linux's")
def test_the_processes_of_a_demo_that_is_killed_end_with_it(tmp_path: Path) -> None:
    demo = (
        "import os, sys, time; from pathlib import Path; "
        "from echo2.coordinator.demo.processes import ProcessGroup; "
        "group = ProcessGroup(Path(sys.argv[1]), os.environ); "
        "group.start('node', sys.argv[2:]); print(group.pid('node'), flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", demo, str(tmp_path), *SLEEP], stdout=subprocess.PIPE) as killed:
        node = psutil.Process(int(killed.stdout.readline()))
        killed.kill()
        try:
            node.wait(20)
        finally:
            with suppress(psutil.NoSuchProcess):
                node.kill()


def test_a_process_ended_by_the_signal_itself_is_no_fault(group: ProcessGroup) -> None:
    group.start("one", SLEEP)
    group.end("one", signal.SIGTERM, 20)
    assert not group.alive("one")


def test_ends_are_described_in_words() -> None:
    assert ended_with(70) == "ended with exit code 70"
    assert ended_with(-9) == "was ended by SIGKILL"
