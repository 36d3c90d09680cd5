"""Every benchmark is found and started, and one that ends too early says why."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.harness import start_all
from benchmarks.harness.lab import Process, ProcessEnded
from benchmarks.harness.start_all import NEEDS, REDUCED, ROOT, Need, benchmarks, start

PAGE = (ROOT / "docs" / "benchmarks.md").read_text()
NAMELESS = "x = 1\n"
GUARD = '\nif __name__ == "__main__":\n    pass\n'


def test_the_page_has_a_row_for_each_benchmark_and_every_row_is_of_one() -> None:
    rows = [row for row in PAGE.splitlines() if row.startswith("| `python -m benchmarks.")]
    named, every = {row.split("benchmarks.")[1].split("`")[0].split()[0] for row in rows}, set(benchmarks())
    tools = {"attacks.child_memory", "attacks.redteam_app", "claims", "load.large"}
    assert named == every - tools
    assert {"load.host", "flood.wire", "harness.start_all"} & every == set()
    assert (set(REDUCED) | set(NEEDS)) - every == set()


def test_a_new_benchmark_is_found_and_a_process_of_one_is_not(tmp_path: Path) -> None:
    files = {
        "new.py": NAMELESS + GUARD,
        "folder/__main__.py": 'PEER = "benchmarks.folder.peer"\n' + GUARD,
        "folder/peer.py": NAMELESS + GUARD,
        "folder/part.py": NAMELESS,
        "harness/tool.py": NAMELESS + GUARD,
    }
    for name, text in files.items():
        path = tmp_path / "benchmarks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert benchmarks(tmp_path) == ["folder", "new"]


PROGRAMS = {
    "print('a: ratio 1.000 against b, bar 2: short', flush=True); time.sleep(60)": "a closing line",
    "(pathlib.Path(tempfile.mkdtemp()) / 'head').write_text('x'); time.sleep(60)": "a Head",
    "print('no bar')": "its end",
    "sys.exit('the coordinator ended')": "",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_benchmark_has_started_with(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    text = f"import pathlib, sys, tempfile, time\n{program}\n"
    (tmp_path / "benchmarks" / "one.py").write_text(text)
    monkeypatch.setattr(start_all, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    started = start("one", [])
    assert started.by == PROGRAMS[program]
    if not started.by:
        assert started.last.splitlines()[-1] == "the coordinator ended"


def test_a_signal_ends_what_was_started_and_starts_no_more(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    for number in range(start_all.AT_ONCE + 1):
        said = f"pathlib.Path('{tmp_path}/{number}').write_text(str(os.getpid()))"
        text = f"import os, pathlib, time\n{said}\ntime.sleep(60)\n"
        (tmp_path / "benchmarks" / f"b{number}.py").write_text(text)
    program = (
        "import sys, pathlib; from benchmarks.harness import start_all; start_all.ROOT = pathlib.Path(sys.argv[1])\n"
        "sys.exit(start_all.main(sys.argv[2:]))"
    )
    names = [f"b{number}" for number in range(start_all.AT_ONCE + 1)]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path), *names], cwd=ROOT, env=environment)
    pids = [tmp_path / str(number) for number in range(start_all.AT_ONCE)]
    while not all(pid.exists() and pid.read_text() for pid in pids):
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    assert not any(psutil.pid_exists(int(pid.read_text())) for pid in pids)
    assert not (tmp_path / str(start_all.AT_ONCE)).exists()


def test_one_whose_needs_are_not_there_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_all, "NEEDS", {"one": Need("the extra gguf", lambda: False)})
    assert start("one", ["--quick"]).by == "skipped: needs the extra gguf"


def test_a_process_that_has_ended_is_told_at_once_with_its_last_lines(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text("import sys\nprint('a', file=sys.stderr)\nsys.exit('no such setting')\n")
    process = Process(["env", f"PYTHONPATH={tmp_path}"], "ends")
    with pytest.raises(ProcessEnded, match=r"ends ended with exit code 1\na\nno such setting"):
        process.hear()
    process.kill()
