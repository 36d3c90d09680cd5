"""Modules that a checkout has beside the wheel: loaded from there and nowhere else, refused in one sentence without."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from echo2.runtime.checkout import checkout_command, checkout_of, load_from_checkout
from echo2.runtime.errors import LocalFault
from tests.support.paths import ROOT

OURS = '[project]\nname = "echo2"\n'
COMMANDS = ("redteam", "simulate", "market simulate", "demo --pay")


def hostile(folder: Path) -> Path:
    """Put a foreign package `benchmarks` into a folder; it ends the process that imports it."""
    (folder / "benchmarks").mkdir(parents=True)
    (folder / "benchmarks" / "__init__.py").write_text('raise SystemExit(f"the hostile {__file__} was imported")\n')
    return folder


def run(argv: list[str], folder: Path, *path: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command in a folder, with these folders first on the search path."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "TMPDIR": str(folder), "COLUMNS": "200"}
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("project", "benchmarks", "is_one"),
    {
        "echo2's": (OURS, True, True),
        "echo2's, with its benchmarks removed": (OURS, False, False),
        "another project's, as where pip installed into it": ('[project]\nname = "other"\n', True, False),
        "a file without a project": ("[tool.ruff]\n", True, False),
        "a file that is no TOML": ("[project", True, False),
        "a table that is none": ('project = "echo2"\n', True, False),
        "no file": (None, True, False),
    }.values(),
)
def test_a_checkout_is_known_by_its_project_and_its_benchmarks(
    tmp_path: Path, project: str | None, benchmarks: bool, is_one: bool
) -> None:
    if project is not None:
        (tmp_path / "pyproject.toml").write_text(project)
    if benchmarks:
        hostile(tmp_path)
    assert checkout_of(tmp_path / "echo2") == (tmp_path if is_one else None)


@pytest.mark.parametrize("command", COMMANDS[:3])
@pytest.mark.slow_but("market simulate")
def test_a_foreign_package_in_the_current_folder_or_on_the_path_is_never_run(command: str, tmp_path: Path) -> None:
    here, foreign = hostile(tmp_path / "here"), hostile(tmp_path / "foreign")
    argv = [sys.executable, "-m", "echo2.coordinator.cli", *command.split(), "--help"]
    done = run(argv, here, foreign, ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Usage: echo2-coord {command} [OPTIONS]" in done.stdout


@pytest.mark.slow
def test_a_child_finds_the_module_from_any_folder_and_gets_its_arguments(tmp_path: Path) -> None:
    here, foreign = hostile(tmp_path / "here"), hostile(tmp_path / "foreign")
    missing = str(tmp_path / "missing")
    done = run(checkout_command("benchmarks.payments.trial_provider", missing), here, foreign, ROOT)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("FileNotFoundError")
    assert missing in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.slow_but("simulate")
def test_without_a_checkout_a_command_says_what_it_needs_and_leaves_nothing(command: str, tmp_path: Path) -> None:
    """An installation has `echo2` beside foreign packages, and no project."""
    site, here = hostile(tmp_path / "site"), tmp_path / "here"
    (site / "echo2").symlink_to(ROOT / "echo2")
    here.mkdir()
    done = run([sys.executable, "-P", "-m", "echo2.coordinator.cli", *command.split()], here, site)
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr == (
        f"echo2-coord: `echo2-coord {command}` needs a checkout of echo2, since the wheel leaves benchmarks/ out: "
        f"run `make setup` in a checkout, then `.venv/bin/echo2-coord {command}` there\n"
    )
    assert list(here.iterdir()) == []


def test_a_foreign_package_that_was_loaded_before_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    foreign = ModuleType("benchmarks")
    foreign.__file__ = str(tmp_path / "benchmarks.py")
    monkeypatch.setitem(sys.modules, "benchmarks", foreign)
    with pytest.raises(LocalFault, match=f"another package named benchmarks was loaded from {foreign.__file__}"):
        load_from_checkout("benchmarks.plays.simulate_app", "echo2-coord simulate")
