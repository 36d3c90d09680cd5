"""The files that a process may open, tried from within."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PREFACE = """
import os, subprocess, sys
from pathlib import Path
from echo2.runtime import file_access
from echo2.runtime.landlock import LandlockUnavailable
def tried(attempt, *arguments):
    try:
        attempt(*arguments)
        return "done"
    except OSError as error:
        return type(error).__name__
system = ["/usr", "/bin", "/lib", "/lib64", "/etc", sys.prefix, sys.base_prefix, "/dev/null", *filter(None, sys.path)]
try:
    file_access.limit(read=map(Path, [*system, "read", "one", "not there"]), write=[Path("own")])
except LandlockUnavailable as unavailable:
    sys.exit(f"no rules: {unavailable}")
"""
OUTCOMES: dict[str, tuple[str, str]] = {
    "reads a file of a folder that may be read": ("Path('read/file').read_text", "done"),
    "lists it": ("lambda: os.listdir('read')", "done"),
    "reads a file that may be read": ("Path('one').read_text", "done"),
    "writes one of a folder that may be read": ("lambda: Path('read/file').write_text('x')", "PermissionError"),
    "makes one there": ("lambda: Path('read/new').write_text('x')", "PermissionError"),
    "deletes one there": ("lambda: os.remove('read/file')", "PermissionError"),
    "reads another file": ("Path('secret').read_text", "PermissionError"),
    "lists another folder": ("lambda: os.listdir('.')", "PermissionError"),
    "reads another by a link that it makes": (
        "lambda: (os.symlink('../secret', 'own/link'), open('own/link'))", "PermissionError",
    ),
    "moves another to where it may read": ("lambda: os.rename('secret', 'own/secret')", "PermissionError|OSError"),
    "writes and moves within its own folder": (
        "lambda: (Path('own/a').write_text('x'), os.mkdir('own/b'), os.rename('own/a', 'own/c'), os.remove('own/c'))",
        "done",
    ),
    "has a program read another": (
        "lambda: subprocess.run(['cat', 'secret'], capture_output=True, check=True)", "CalledProcessError",
    ),
}  # fmt: skip


def test_a_process_opens_the_files_that_it_may_and_no_others(tmp_path: Path) -> None:
    for folder in ("read", "own"):
        (tmp_path / folder).mkdir()
    for file in ("read/file", "one", "secret"):
        (tmp_path / file).write_text(file)
    code = PREFACE.replace("except OSError", "except (OSError, subprocess.CalledProcessError)")
    code += "\n".join(f"print(tried({attempt}))" for attempt, _ in OUTCOMES.values())
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    if "no rules: " in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    told = dict(zip(OUTCOMES, done.stdout.splitlines(), strict=True))
    assert {name: outcome in OUTCOMES[name][1].split("|") for name, outcome in told.items()} == dict.fromkeys(
        OUTCOMES, True
    ), told
