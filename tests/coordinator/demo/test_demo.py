"""The demo with stand-ins for its processes: its output, its exit code, and the files and processes left."""

import dataclasses
import io
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from echo2.coordinator.demo import demo, processes
from echo2.coordinator.demo.demo import environment
from echo2.coordinator.demo.demo_settings import DemoOptions
from echo2.p2p.multiaddr import Route
from echo2.runtime.errors import LocalFault
from echo2.runtime.exit_codes import Exit
from tests.support.children import child
from tests.support.demo_stand_ins import programs
from tests.support.paths import ROOT

STAND_INS = ROOT / "tests/support/demo_stand_ins.py"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make `tmp_path` the parent of the demo's folder, and shorten its waits."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(demo, "API_POLL_SECONDS", 0.05)
    monkeypatch.setattr(demo, "_BY_THEMSELVES", 0.2)
    monkeypatch.setattr(processes, "ORPHAN_SECONDS", 0.05)
    return tmp_path


@pytest.fixture(autouse=True)
def _no_process_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    psutil.wait_procs(processes_of(tmp_path), timeout=3)  # one that was killed may still be on its way out
    assert processes_of(tmp_path) == []


def processes_of(place: Path) -> list[psutil.Process]:
    """Return the processes whose command line names `place`, as that of every stand-in does."""
    pids = []
    for process in psutil.process_iter():
        try:
            if any(str(place) in word for word in process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                pids.append(process)
        except psutil.NoSuchProcess:
            continue
    return pids


def played(story: str, options: DemoOptions | None = None) -> tuple[int, str]:
    text = io.StringIO()
    code = demo.play(options or DemoOptions(), programs(story), Console(file=text, width=200, highlight=False)).code
    return code, text.getvalue()


@pytest.mark.slow
def test_a_good_run_ends_with_zero_and_leaves_nothing(place: Path) -> None:
    code, said = played("good")
    assert code == Exit.OK, said
    assert "the leaderboard is at http://127.0.0.1:" in said
    assert "late-lynx joins late" in said
    assert "quiet-heron is killed (SIGKILL)" in said
    assert "stopping brave-otter, lucky-newt, late-lynx: each drains first" in said
    assert "sampled 0.170 → " in said
    assert "brave-otter" in said
    assert list(place.iterdir()) == []


@pytest.mark.slow
def test_no_port_is_guessed_so_none_can_be_taken_meanwhile(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        monkeypatch.setattr(demo, "free_port", lambda: taken, raising=False)  # once the source of guessed ports
        monkeypatch.setattr(demo, "_START_SECONDS", 5.0)
        code, said = played("good")
    assert code == Exit.OK, said


@pytest.mark.slow
def test_with_ways_the_last_two_nodes_have_restricted_routes_and_a_direct_one_is_killed(place: Path) -> None:
    ways: dict[str, str] = {}
    told = programs("good")

    def node(invite: str, home: Path, name: str, route: Route) -> list[str]:
        ways[name] = route
        return told.node(invite, home, name, route)

    text = io.StringIO()
    spied = dataclasses.replace(told, node=node)
    demo.play(DemoOptions(ways=True), spied, Console(file=text, width=200, highlight=False))
    assert ways == {"brave-otter": "direct", "quiet-heron": "relay", "lucky-newt": "https", "late-lynx": "direct"}
    said = text.getvalue()
    assert "quiet-heron has no open port" in said
    assert "lucky-newt connects over HTTPS only" in said
    assert "brave-otter is killed" in said


def test_with_engines_a_run_that_ends_before_each_worked_has_failed(place: Path) -> None:
    """The stand-in's nodes have other names, so none of the demo's own is seen at work."""
    argvs: list[list[str]] = []
    told = programs("good")
    spied = dataclasses.replace(told, node=lambda *asked: argvs.append(told.node(*asked)) or argvs[-1])
    text = io.StringIO()
    options = DemoOptions(engines=("transformers/float32/cpu", "vllm/float32/cpu"))
    code = demo.play(options, spied, Console(file=text, width=200, highlight=False)).code
    assert code == Exit.INTERNAL
    assert "the work of transformers-float32-cpu, vllm-float32-cpu" in text.getvalue()
    assert "killed" not in text.getvalue()
    assert len(argvs) == 2


@pytest.mark.slow
def test_nodes_that_end_with_the_run_need_no_stopping(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_BY_THEMSELVES", 60.0)
    code, said = played("leaving")
    assert code == Exit.OK, said
    assert "stopping" not in said


def test_without_faults_no_node_is_killed_or_joins_late(place: Path) -> None:
    code, said = played("good", DemoOptions(faults=False, nodes=1))
    assert code == Exit.OK, said
    assert "killed" not in said
    assert "late" not in said.partition("stopping")[0]


@pytest.mark.parametrize(
    ("story", "complaint"),
    {
        "flat": "held-out sampled accuracy rose by 0.000, wanted 0.300",
        "lost": "548 groups were received, but 547 have a final state",
        "fault": "a process of the coordinator died: scorer ended with -9",
        "crash": "lucky-newt ended with exit code 1",
        "deaf": "brave-otter did not end within",
    }.items(),
)
@pytest.mark.slow_but("crash-lucky-newt ended with exit code 1")
def test_a_bad_run_ends_with_a_code_says_why_and_keeps_the_folder(
    story: str, complaint: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if story == "deaf":
        monkeypatch.setattr(demo, "_DRAIN_SECONDS", 0.5)
        monkeypatch.setattr(processes, "KILL_GRACE_SECONDS", 0.5)
    code, said = played(story)
    assert code == Exit.INTERNAL
    assert f"FAILED    {complaint}" in said
    (kept,) = place.iterdir()
    assert f"are in {kept}" in said
    assert (kept / "logs" / "coordinator.log").exists()


def test_a_run_that_cannot_be_made_is_a_local_fault_and_leaves_no_folder(place: Path) -> None:
    with pytest.raises(LocalFault, match="could not be made"):
        played("no making")
    assert list(place.iterdir()) == []


@pytest.mark.slow
def test_a_crash_shows_the_last_lines_of_the_log(place: Path) -> None:
    _, said = played("crash")
    assert "the last lines of lucky-newt's log:\n  echo2-node: the device caught fire" in said


@pytest.mark.slow
def test_a_run_that_takes_too_long_is_ended(place: Path) -> None:
    code, said = played("endless", DemoOptions(seconds=0.5))
    assert code == Exit.INTERNAL
    assert "FAILED    not finished within 0.5 s: step 12 of 40, phase learning" in said


@pytest.mark.slow
def test_with_keep_the_folder_stays(place: Path) -> None:
    code, said = played("good", DemoOptions(keep=True))
    assert code == Exit.OK
    (kept,) = place.iterdir()
    assert (kept / "logs" / "brave-otter.log").exists()
    assert f"are in {kept}" in said


@pytest.mark.parametrize(
    ("story", "when", "number", "ctrl_c"),
    [
        ("long making", "making the run", signal.SIGINT, signal.SIG_DFL),
        ("endless", "late-lynx joins late", signal.SIGINT, signal.SIG_DFL),
        ("endless", "late-lynx joins late", signal.SIGTERM, signal.SIG_DFL),
        ("endless", "late-lynx joins late", signal.SIGINT, signal.SIG_IGN),
        ("endless", "late-lynx joins late", signal.SIGTERM, signal.SIG_IGN),
        ("long making", "making the run", signal.SIGTERM, signal.SIG_IGN),
    ],
    ids=[
        "Ctrl-C while the model is made",
        "Ctrl-C in the middle",
        "SIGTERM in the middle",
        "Ctrl-C in the middle, in the background of a script",
        "SIGTERM in the middle, in the background of a script",
        "SIGTERM while the model is made, in the background of a script",
    ],
)
@pytest.mark.slow_but("Ctrl-C while the model is made")
def test_an_interrupted_demo_leaves_no_process_and_no_folder(
    story: str, when: str, number: signal.Signals, ctrl_c: signal.Handlers, tmp_path: Path
) -> None:
    """Send a signal in the middle of a demo. `ctrl_c`: the disposition of SIGINT that the demo inherits."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, str(STAND_INS), "demo", story]
    before = signal.signal(signal.SIGINT, ctrl_c)  # inherited
    with child(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        signal.signal(signal.SIGINT, before)
        assert process.stdout is not None
        for text_line in process.stdout:
            if when in text_line:
                break
        process.send_signal(number)
        rest = process.stdout.read()
        assert process.wait(60) == Exit.INTERRUPTED
    assert "stopping" in rest
    assert list(tmp_path.iterdir()) == []


def test_no_setting_of_the_user_reaches_the_demo(tmp_path: Path) -> None:
    variables = environment({"ECHO2_INVITE": "x", "ECHO2_COORD_WEB_PORT": "1", "PATH": "/bin"}, tmp_path)
    assert variables["PATH"] == "/bin"
    assert [name for name in variables if name.startswith("ECHO2_")] == ["ECHO2_CONFIG"]
    assert variables["OMP_NUM_THREADS"] == "1"
    assert variables["OMP_WAIT_POLICY"] == "passive"
