"""`make setup` and its kin, with a stand-in for Python: an interrupted or a second make leaves what works."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")

PYTHON = """#!/bin/sh
echo "$(dirname "$0") $*" >> "$CALLS"
case "$1 $2" in
"-c "*fcntl*) exec {python} "$@" ;;
"-c "*version_info*) [ -z "$OLD" ] || {{ echo "echo2 needs Python 3.11" >&2; exit 1; }} ;;
"-m venv") for folder; do :; done; rm -rf "$folder"; mkdir -p "$folder/bin"
  cp "$0" "$folder/bin/python"; [ -n "$INTERRUPTED" ] || touch "$folder/pip"; [ -z "$INTERRUPTED" ] || exit 1 ;;
"-m pip") [ -f "$(dirname "$0")/../pip" ] || {{ echo "No module named pip" >&2; exit 1; }}
  case "$*" in *"index versions"*) echo "Available versions: 2.14.1, $OFFERED, 2.12.0"; exit 0 ;; esac
  while [ -f "$CALLS.wait" ]; do touch "$CALLS.reached"; sleep 0.01; done ;;
esac
"""
"""Stands in for Python, also in the environment that it makes; only the lock is taken by a real one. `OFFERED`:
versions of PyTorch that pip finds."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the Makefile and empty files of the names that it is made from."""
    folder = tmp_path / "checkout"
    for room in ("weights/codec/native", "plugins/echo2-rails"):
        (folder / room).mkdir(parents=True)
    text = (ROOT / "Makefile").read_text()
    (folder / "Makefile").write_text(text)
    made_of = re.findall(r"^MADE_OF := (.*)", text, re.MULTILINE)[0].split()
    for name in {*re.findall(r"requirements[\w-]*\.lock", text), *made_of} - {"Makefile"}:
        (folder / name).touch()
    (folder / "requirements-torch-cpu.lock").write_text("# 2.12.0+cpu was before\ntorch==2.13.0+cpu \\\n    --hash=x\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_text(PYTHON.format(python=sys.executable))
    (tmp_path / "bin/python").chmod(0o700)
    return folder


def started(folder: Path, target: str, **variables: str) -> subprocess.Popen[str]:
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR", "HOME") if name in os.environ}
    return subprocess.Popen(
        ["make", target, f"PYTHON={folder.parent / 'bin/python'}"], cwd=folder, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env={**kept, "CALLS": str(folder.parent / "calls"), **variables},
    )  # fmt: skip


def make(folder: Path, target: str, **variables: str) -> tuple[int, str]:
    process = started(folder, target, **variables)
    said, _ = process.communicate(timeout=60)
    return process.returncode, said


def environments_made(folder: Path) -> int:
    return (folder.parent / "calls").read_text().count("-m venv")


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come about")


@pytest.mark.parametrize("target", ["setup", "setup-light", "verifiers"])
def test_an_environment_that_was_interrupted_is_made_anew_and_a_whole_one_is_left_alone(
    target: str, folder: Path
) -> None:
    assert make(folder, target, INTERRUPTED="yes")[0] != 0
    assert [path.parent.name for path in folder.glob(".venv*/bin")] != [], "an environment without pip is left"
    code, said = make(folder, target)
    assert (code, environments_made(folder)) == (0, 2), said
    before = (folder.parent / "calls").read_text()
    assert make(folder, target)[0] == 0
    assert (folder.parent / "calls").read_text() == before, "nothing is run for what is there"


@pytest.mark.parametrize(
    ("variables", "lock"),
    {
        "the build for CPUs is offered": ({"OFFERED": "2.13.0+cpu, 2.13.0"}, "-r requirements-torch-cpu.lock"),
        "PyPI's alone is": ({"OFFERED": "2.13.0"}, "-r requirements-torch.lock -r requirements-torch-cuda.lock"),
        "that of another version is": (
            {"OFFERED": "2.12.0+cpu, 12.13.0+cpu, 2.13.0+cpu5, 2.13.0"},
            "-r requirements-torch.lock -r requirements-torch-cuda.lock",
        ),
        "a lock is named": ({"OFFERED": "2.13.0+cpu", "TORCH_LOCK": "my torch.lock"}, "-r my torch.lock"),
    }.values(),
    ids=["CPU", "PyPI", "other versions", "own lock"],
)
def test_pytorch_is_installed_by_hashes_in_the_build_that_pip_is_offered(
    variables: dict[str, str], lock: str, folder: Path
) -> None:
    code, said = make(folder, "setup", **variables)
    assert code == 0, said
    calls = (folder.parent / "calls").read_text().splitlines()
    (installed,) = [one for one in calls if "torch" in one and " install " in one]
    assert installed.endswith(f" --require-hashes --no-deps --only-binary :all: {lock}")


@pytest.mark.parametrize("target", ["setup", "setup-light"])
def test_an_old_python_is_refused_before_anything_is_made(target: str, folder: Path) -> None:
    code, said = make(folder, target, OLD="yes")
    assert (code != 0, "echo2 needs Python 3.11" in said, list(folder.glob(".venv*"))) == (True, True, [])


def test_a_second_make_waits_for_the_first_and_sets_nothing_up_again(folder: Path) -> None:
    waiting, reached = folder.parent / "calls.wait", folder.parent / "calls.reached"
    waiting.touch()
    first = started(folder, "setup")
    wait_for(reached.exists)
    second = started(folder, "setup")
    assert second.stdout is not None
    said = second.stdout.readline()
    waiting.unlink()
    ends = [one.communicate(timeout=60)[0] for one in (first, second)]
    assert "another make sets up an environment in this folder" in said
    assert (first.returncode, second.returncode, environments_made(folder)) == (0, 0, 1), ends
    assert (folder.parent / "calls").read_text().count("-r requirements.lock") == 1


def test_clean_removes_every_environment(folder: Path) -> None:
    names = set(re.findall(r"\.venv[\w-]*", (folder / "Makefile").read_text()))
    for name in names:
        (folder / name).mkdir()
    assert {".venv", ".venv-vllm", ".venv-verifiers", ".venv-stock"} <= names
    assert (make(folder, "clean")[0], list(folder.glob(".venv*"))) == (0, [])
