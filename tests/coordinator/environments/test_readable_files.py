"""What an environment's process sees: its own files and processes, and nothing else of its user's."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SCRIPT = """
import os, sys, tempfile
from echo2.coordinator.environments.limits import Limits, apply
missing = apply(Limits(files=(sys.argv[1],), subprocesses=True))
if missing:
    sys.exit(f"missing: {missing}")
print(sorted(name for name in os.listdir("/proc") if name.isdigit()))
print(open(sys.argv[1] + "/data").read())
for path in (sys.argv[2], os.path.expanduser("~"), "/proc/1/mem"):
    try:
        os.listdir(path) if os.path.isdir(path) else open(path)
        print(path)
    except PermissionError:
        print("closed")
import multiprocessing, random, ssl, zoneinfo  # what reads the system's files
multiprocessing.Lock()
print(zoneinfo.ZoneInfo("Europe/Berlin") if zoneinfo.available_timezones() else "Europe/Berlin")
with tempfile.NamedTemporaryFile() as file:
    print(os.path.dirname(file.name) == os.getcwd())
"""


def test_an_environment_reads_what_it_was_given_writes_in_its_folder_and_sees_no_other_process(tmp_path: Path) -> None:
    for name in ("given", "work", "home"):
        (tmp_path / name).mkdir()
    (tmp_path / "given/data").write_text("a problem")
    (tmp_path / "secret").write_text("a key")
    command = [sys.executable, "-P", "-c", SCRIPT, str(tmp_path / "given"), str(tmp_path / "secret")]
    env = {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "work"), "HOME": str(tmp_path / "home")}
    done = subprocess.run(command, cwd=tmp_path / "work", env=env, capture_output=True, text=True, timeout=60)
    if "missing: " in done.stderr:
        pytest.skip(done.stderr)
    expected = ["['1', '2']", "a problem", "closed", "closed", "closed", "Europe/Berlin", "True"]
    assert done.stdout.splitlines() == expected, done.stderr
