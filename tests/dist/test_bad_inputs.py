"""Bad surroundings of an installation: one sentence, an exit code of its own, and nothing is lost."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.built_wheels import NO_INDEX, build
from tests.support.installations import Installation

INSTALL = r"\S+ -m pip install \S.*/dist/echo2-0\.1\.0-\S*\.whl"
OLD = """#!/bin/sh
exec '{python}' -c 'import sys; sys.version_info = (3, 9, 2); code = sys.argv.pop(2); del sys.argv[1]; exec(code)' "$@"
"""
"""A Python that says it is 3.9 and runs what `-c` names."""
OLD_PIP = """
import collections, runpy, sys
sys.version_info = collections.namedtuple("Version", "major minor micro releaselevel serial")(3, 10, 2, "final", 0)
runpy.run_module("pip", run_name="__main__")
"""
"""The newest pip in a Python that says it is 3.10. Release 23 names a library's Python instead of echo2's."""


@contextmanager
def without(place: Installation, aside: Path, *names: str) -> Iterator[None]:
    """Take distributions out of an environment, files and metadata, and put them back."""
    (packages,) = place.venv.glob("lib/python3*/site-packages")
    found = [path for name in names for path in packages.glob(f"{name}*") if re.match(rf"{name}(-|$)", path.name)]
    assert len(found) == 2 * len(names), found
    aside.mkdir()
    for path in found:
        path.rename(aside / path.name)
    try:
        yield
    finally:
        for path in found:
            (aside / path.name).rename(path)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["transformers"], r"the learner needs PyTorch, which this installation of echo2 lacks \(transformers\): "),
        (["regex"], r"the learner's libraries are installed in part: regex is missing: "),
        (["networkx", "mpmath"], r"the learner's libraries are installed in part: mpmath, networkx is missing: "),
    ],
    ids=["a library of the extra", "what the library requires", "what that requires in turn"],
)
def test_a_run_with_a_half_installed_extra_is_refused_in_one_sentence_with_the_command(
    names: list[str], says: str, with_torch: Installation, tmp_path: Path
) -> None:
    with without(with_torch, tmp_path / "aside", *names):
        done = with_torch.run("echo2-coord", "init", str(tmp_path / "run"), "--model", "tiny", "--yes")
    assert done.returncode == 78, done.stdout
    assert re.fullmatch(rf"echo2-coord: {says}{INSTALL}\[train\]'?\n", done.stdout), done.stdout
    assert not (tmp_path / "run").exists()


def test_a_task_whose_extra_is_missing_is_refused_in_one_sentence_with_the_command(
    with_torch: Installation, tmp_path: Path
) -> None:
    words = ("init", str(tmp_path / "run"), "--model", "tiny", "--task", "math", "--yes")
    done = with_torch.run("echo2-coord", *words)
    assert done.returncode == 78, done.stdout
    assert re.fullmatch(rf"echo2-coord: task math needs the extra math \(.*\): {INSTALL}\[math\]'?", lines(done)[-1])
    assert not (tmp_path / "run").exists()


def test_an_engine_that_lacks_a_library_is_refused_in_one_sentence_with_the_command(
    with_torch: Installation, tmp_path: Path
) -> None:
    with without(with_torch, tmp_path / "aside", "regex"):
        done = with_torch.run("echo2-node", "doctor", "--json", "--engine", "transformers")
    (row,) = (one for one in json.loads(lines(done)[-1]) if one["check"] == "engine")
    assert (done.returncode, row["verdict"]) == (80, "bad")
    assert re.fullmatch(rf"engine transformers needs regex: {INSTALL}\[torch\]'?", row["remedy"])


def lines(done: "subprocess.CompletedProcess[str]") -> list[str]:
    return done.stdout.splitlines()


@pytest.fixture
def fixed_home(bare: Installation, tmp_path: Path) -> Iterator[Path]:
    """A home of a user in which nothing can be written."""
    home = tmp_path / "fixed"
    home.mkdir(mode=0o500)
    yield home
    home.chmod(0o700)


def confined(place: Installation, home: Path, program: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run a program that has no right beyond those of its files' owner; root has them all otherwise."""
    drop = [str(shutil.which("setpriv")), "--bounding-set", "-all", "--inh-caps", "-all"] if os.geteuid() == 0 else []
    return subprocess.run(
        [*drop, str(place.bin / program), *words], cwd=home, env=place.environment({"HOME": str(home)}), text=True,
        check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
    )  # fmt: skip


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root, without setpriv")
def test_a_home_without_permission_to_write_is_one_sentence_of_each_command_that_writes(
    bare: Installation, fixed_home: Path
) -> None:
    refused = {
        ("run",): r"cannot write to \S+/fixed/\S+: Permission denied; choose another folder with --home",
        ("config", "set", "rows", "3"): r"cannot write \S+/fixed/\S+\.toml: Permission denied; name another file in .*",
        ("keys", "show"): r"no key file at .*",
    }
    for words, says in refused.items():
        done = confined(bare, fixed_home, "echo2-node", *words)
        assert (done.returncode, len(lines(done))) == (78, 1), done.stdout
        assert re.fullmatch(f"echo2-node: {says}", lines(done)[0]), done.stdout
    done = confined(bare, fixed_home, "echo2-node", "doctor", "--json")
    (row,) = (one for one in json.loads(lines(done)[-1]) if one["check"] == "home")
    assert (done.returncode, row["verdict"]) == (78, "bad")
    assert not list(fixed_home.iterdir())


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root, without setpriv")
def test_a_folder_of_runs_without_permission_to_write_is_one_sentence(
    with_torch: Installation, fixed_home: Path
) -> None:
    done = confined(with_torch, fixed_home, "echo2-coord", "init", "runs/first", "--model", "tiny")
    says = r"echo2-coord: cannot write in \S+/fixed/runs: Permission denied; name another folder"
    assert done.returncode == 78
    assert re.fullmatch(says, done.stdout.strip()), done.stdout
    assert not list(fixed_home.iterdir())


def test_another_distribution_that_writes_into_our_folder_is_named_with_what_to_do(
    bare: Installation, wheel: Path, tmp_path: Path
) -> None:
    rival = tmp_path / "echo2_fork-1-py3-none-any.whl"
    with zipfile.ZipFile(rival, "w") as file:
        file.writestr("echo2/__init__.py", "")
        file.writestr("echo2/other.py", "")
        file.writestr("echo2_fork-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: echo2-fork\nVersion: 1\n")
        file.writestr("echo2_fork-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("echo2_fork-1.dist-info/RECORD", "echo2/__init__.py,,\necho2/other.py,,\n")
    pip = ("python", "-m", "pip")
    bare.check(*pip, "install", "--quiet", "--no-deps", "--no-index", str(rival))
    try:
        done = bare.run("echo2-node", "doctor", "--json")
        (row,) = (one for one in json.loads(lines(done)[-1]) if one["check"] == "installation")
        assert (done.returncode, row["verdict"]) == (78, "bad")
        assert row["remedy"].startswith("uninstall echo2-fork, and install this one again")
    finally:
        bare.check(*pip, "uninstall", "--quiet", "--yes", "echo2-fork")
        bare.check(*pip, "install", "--quiet", "--no-deps", "--no-index", "--force-reinstall", str(wheel))
    assert bare.run("echo2-node", "doctor").returncode == 0
    assert not list(bare.venv.glob("lib/python3*/site-packages/echo2/other.py"))


def test_a_python_that_is_too_old_is_one_sentence_of_each_installer(tools: Path, wheel: Path, tmp_path: Path) -> None:
    place = ["install", "--no-index", "--target", str(tmp_path)]
    by_pip = [str(tools / "python"), "-c", OLD_PIP, *place, str(wheel)]
    done = subprocess.run(by_pip, capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    assert (done.returncode, said) == (
        1,
        ["ERROR: Package 'echo2' requires a different Python: 3.10.2 not in '>=3.11'"],
    )
    by_uv = [
        str(tools / "uv"),
        "pip",
        *place,
        "--python",
        str(tools / "python"),
        "--python-version",
        "3.10",
        str(wheel),
    ]
    done = subprocess.run(by_uv, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "does not satisfy Python>=3.11 and echo2==0.1.0 depends on Python>=3.11" in " ".join(done.stderr.split())
    assert not (tmp_path / "echo2").exists()


def test_a_python_that_is_too_old_is_one_sentence_of_make(commit: Path, tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text(OLD.format(python=sys.executable))
    old.chmod(0o755)
    done = subprocess.run(["make", "setup", f"PYTHON={old}"], cwd=commit, capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert done.returncode == 2
    assert said == ["echo2 needs Python 3.11 or newer; name one with: make setup PYTHON=python3.12"]
    assert not (commit / ".venv").exists()


@pytest.mark.parametrize("former", [False, True], ids=["the first time", "beside a bundle of before"])
def test_an_index_that_cannot_be_reached_while_a_wheel_is_built_is_one_sentence(
    former: bool, commit: Path, tmp_path: Path
) -> None:
    clone, kept = tmp_path / "clone", tmp_path / "clone/echo2/_libp2p/STAMP"
    subprocess.run(["git", "clone", "--quiet", str(commit), str(clone)], check=True)
    if former:
        kept.parent.mkdir()
        kept.write_text("of another lock\n")
    done = build(str(clone), tmp_path / "wheels", NO_INDEX)
    said = [line.strip() for line in done.stderr.splitlines() if "libp2p, which goes into" in line]
    assert done.returncode != 0
    assert len(said) == 1, done.stderr
    assert re.fullmatch(r".* was not downloaded \(.*\): check the connection and build again", said[0])
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "wheels").glob("*"))
    assert kept.exists() == former
