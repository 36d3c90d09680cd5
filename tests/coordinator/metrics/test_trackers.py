"""trackio and W&B: all numbers once, nothing of this machine, a second replay changes nothing. `make test-trackers`."""

import getpass
import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from echo2.coordinator.metrics.history import History
from echo2.coordinator.metrics.views import Evaluation, StepPoint, VersionRow
from tests.support.paths import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("wandb") is None or find_spec("trackio") is None, reason="make test-trackers installs trackio and W&B"
    ),
]
BEGUN = 1_800_000_000_000
Rows = list[tuple[str, float, float]]
"""(curve, step or version, value), sorted."""


def step(number: int, reward: float, later: int = 0) -> StepPoint:
    return StepPoint(
        step=number, at=BEGUN + 1000 * number + later, reward=reward, success=0.25, staleness=1.0, seconds=2.0,
        metrics={},
    )  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a run folder with steps, of which one was made twice after a rollback, an evaluation and two versions."""
    home = tmp_path / "run"
    home.mkdir()
    (home / "coordinator.toml").write_text('[run]\nname = "a secret name"\ntask = "math:/home/me/problems.jsonl"\n')
    written = History(home / "history.jsonl")
    version = VersionRow(version=3, era=1, at=BEGUN + 3001, diff_bytes=None, full_bytes=9, first_node_seconds=None)
    for record in (step(1, 0.5), step(2, 0.5), step(3, 0.5), version, step(2, 0.75, 5_000), step(4, 0.125, 5_000),
                   Evaluation(version=4, at=BEGUN + 10_000, prompts=64, sampled=0.5, greedy=0.25),
                   VersionRow(version=4, era=2, at=BEGUN + 10_001, diff_bytes=5, full_bytes=9,
                              first_node_seconds=1.5)):  # fmt: skip
        written.add(record)
    written.close()
    return home


WANTED: Rows = sorted(
    [
        *((f"train/{name}", number, value)
          for number, reward in ((1, 0.5), (2, 0.75), (3, 0.5), (4, 0.125))
          for name, value in (("reward", reward), ("success", 0.25), ("staleness", 1.0), ("seconds", 2.0))),
        ("heldout/sampled", 4, 0.5), ("heldout/greedy", 4, 0.25), ("heldout/prompts", 4, 64.0),
        ("version/era", 3, 1.0), ("version/full_bytes", 3, 9.0),
        ("version/era", 4, 2.0), ("version/full_bytes", 4, 9.0), ("version/diff_bytes", 4, 5.0),
        ("version/first_node_seconds", 4, 1.5),
    ]
)  # fmt: skip


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "echo2.coordinator.cli", "track", *map(str, words)]


def track(*words: str | Path) -> str:
    """Run a command that must succeed; return what it prints."""
    done = subprocess.run(command(*words), capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def of_trackio(logs: Path) -> Rows:
    with sqlite3.connect(logs / "echo2.db") as database:
        rows = database.execute("SELECT step, metrics FROM metrics").fetchall()
    return sorted((name, number, value) for number, text in rows for name, value in json.loads(text).items())


def log_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a file of W&B: those of LevelDB's log, in blocks of 32 KiB."""
    at, part = 7, b""
    while at + 7 <= len(data):
        if 32_768 - at % 32_768 < 7:
            at += 32_768 - at % 32_768
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        part += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield part
            part = b""


def of_wandb(logs: Path) -> Rows:
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = logs.glob("wandb/offline-run-*/*.wandb")
    read: Rows = []
    last = -1
    for data in log_records(file.read_bytes()):
        record = Record.FromString(data)
        if record.WhichOneof("record_type") != "history":
            continue
        values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        assert record.history.step.num > last, "W&B drops a step that goes backwards"
        last = record.history.step.num
        number = values.pop("step", None)
        number = values.pop("version", number)
        read += [(name, number, value) for name, value in values.items() if not name.startswith("_")]
    return sorted(read)


READERS: dict[str, Callable[[Path], Rows]] = {"trackio": of_trackio, "wandb": of_wandb}


@pytest.mark.parametrize("tool", READERS)
def test_a_replay_has_each_record_once_and_a_second_one_changes_nothing(tool: str, home: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    (logs / "mine").mkdir(parents=True)
    said = track("replay", logs, "--to", tool, "--home", home)
    assert said.startswith(f"7 records of the history are in {logs}: ")
    assert said.count("\n") == 1
    assert READERS[tool](logs) == WANTED
    track("replay", logs, "--to", tool, "--home", home)
    assert READERS[tool](logs) == WANTED
    assert (logs / "mine").is_dir()


def test_curves_of_another_run_in_one_folder_stay(home: Path, tmp_path: Path) -> None:
    other, logs = tmp_path / "other", tmp_path / "logs"
    other.mkdir()
    (other / "coordinator.toml").write_text('[run]\nname = "other"\n')
    written = History(other / "history.jsonl")
    written.add(step(1, 0.375, 999))
    written.close()
    for run in (home, other, home):
        track("replay", logs, "--to", "trackio", "--home", run)
    both = of_trackio(logs)
    assert len(both) == len(WANTED) + 4
    assert ("train/reward", 1, 0.375) in both
    assert set(WANTED) <= set(both)


@pytest.mark.parametrize("tool", READERS)
def test_no_text_and_nothing_of_this_machine_is_in_what_would_be_sent(tool: str, home: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    track("replay", logs, "--to", tool, "--home", home)
    kept = ("*.db*",) if tool == "trackio" else ("wandb/offline-run-*/*.wandb", "wandb/offline-run-*/files/**/*")
    files = [path for pattern in kept for path in logs.glob(pattern) if path.is_file()]
    assert files
    sent = b"".join(path.read_bytes() for path in files)
    for secret in ("secret", "/home/me", str(home), str(ROOT), socket.gethostname(), sys.prefix, os.uname().release):
        assert secret.encode() not in sent, secret
    assert f'"{getpass.getuser()}"'.encode() not in sent
    assert b"run/group_size" in sent, "settings that are numbers are there"


@pytest.mark.parametrize("tool", READERS)
def test_what_is_added_later_is_followed(tool: str, home: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    following = subprocess.Popen(
        command("follow", logs, "--to", tool, "--home", home), stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert following.stdout.readline().startswith("7 records of the history are in")
        written = History(home / "history.jsonl")
        written.add(step(5, 0.875, 6_000))
        written.close()
    finally:
        following.terminate()
        said, _ = following.communicate(timeout=60)
    assert (following.returncode, said) == (0, "")
    assert ("train/reward", 5, 0.875) in READERS[tool](logs)
