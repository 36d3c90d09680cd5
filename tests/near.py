"""Run the tests near the present change: `python -m tests.near`, which `make near` calls.

The change is what differs from the last commit in common with main, committed or not. Its tests are those of the rooms
that it touches, of every room that uses a changed part of tests/support, and the tests of the whole tree, which are
quick. Slow tests are left out, and those of `make test-dist`.
"""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final

from tests.support.paths import ROOT

ALWAYS: Final = ("tests/test_architecture.py", "tests/test_forbidden_calls.py", "tests/test_names.py")
"""Tests of the whole tree."""
DOCUMENTS: Final = (".md", ".toml", ".lock", "Makefile")
"""Endings of files at which tests/docs and tests/test_packaging.py look."""


def near(changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return the folders and files of tests for these changed files, relative to `root`; none lies in another."""
    found = {*ALWAYS}
    for name in changed:
        path = PurePosixPath(name.removeprefix("echo2/"))
        if name.endswith(DOCUMENTS):
            found |= {"tests/docs", "tests/test_packaging.py"}
        elif path.is_relative_to("tests/support"):
            found |= set(_users(path, root))
        elif path.is_relative_to("tests"):
            found.add(str(path) if path.match("tests/test_*.py") else _room(path.parent, root))
        else:
            found.add(_room("tests" / path.parent, root))
    found -= {"", "tests", "tests/dist"}
    return sorted(one for one in found if not any(str(parent) in found for parent in PurePosixPath(one).parents))


def _room(folder: PurePosixPath, root: Path) -> str:
    """Return the deepest folder on the way to `folder` that has tests; empty: none has."""
    for place in (folder, *folder.parents):
        if place.parts and any((root / place).rglob("test_*.py")):
            return str(place)
    return ""


def _users(path: PurePosixPath, root: Path) -> list[str]:
    """Return the rooms whose tests name a module of tests/support."""
    module = path.stem
    imports = re.compile(rf"tests\.support(\.{module}\b| import .*\b{module}\b)")
    return [
        _room(PurePosixPath(user.relative_to(root).parent.as_posix()), root)
        for user in (root / "tests").rglob("*.py")
        if imports.search(user.read_text())
    ]


def changes(root: Path = ROOT) -> list[str]:
    """Return the files that differ from the last commit in common with main, and those that git does not know yet."""
    base = _git(root, "merge-base", "HEAD", "main")[0]
    changed = _git(root, "diff", "--name-only", "--no-renames", base)
    return [*changed, *_git(root, "ls-files", "--others", "--exclude-standard")]


def _git(root: Path, *words: str) -> list[str]:
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()


def main() -> int:
    """Run them; return pytest's exit status."""
    chosen = near(changes())
    print("near this change:", *chosen, flush=True)
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", "not slow", *chosen], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
