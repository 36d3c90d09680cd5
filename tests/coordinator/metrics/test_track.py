"""Curves for TensorBoard: from the history alone, once each, numbers alone."""

import errno
import sys
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.metrics import history, track
from echo2.coordinator.metrics.history import History
from echo2.coordinator.metrics.views import Evaluation, StepPoint, VersionRow
from echo2.coordinator.settings import config as configuration
from echo2.runtime.errors import LocalFault

pytest.importorskip("tensorboardX", reason="the extra tensorboard is not installed")

Curves = dict[str, dict[int, list[float]]]


def point(step: int, reward: float = 0.5) -> StepPoint:
    return StepPoint(
        step=step, at=1_800_000_000_000 + step, reward=reward, success=0.25, staleness=1.0, seconds=2.0,
        metrics={"loss": 0.125},
    )  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a run folder with settings, three steps, one of them made twice, an evaluation and a version."""
    home = tmp_path / "run"
    home.mkdir()
    (home / "coordinator.toml").write_text('[run]\nname = "a secret name"\ntask = "math:/home/me/problems.jsonl"\n')
    written = History(home / "history.jsonl")
    for record in (point(1), point(2), point(2, 0.75), point(3),
                   Evaluation(version=3, at=1_800_000_000_009, prompts=64, sampled=0.5, greedy=0.25),
                   VersionRow(version=3, era=7, at=1_800_000_000_010, diff_bytes=None, full_bytes=9,
                              first_node_seconds=None)):  # fmt: skip
        written.add(record)
    written.close()
    return home


def curves(logs: Path) -> Curves:
    """Read all event files of a folder: values by curve and step."""
    from tensorboardX.proto.event_pb2 import Event

    read: Curves = {}
    for path in logs.iterdir():
        data, at = path.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            event = Event.FromString(data[at + 12 : at + 12 + size])
            at += 12 + size + 4
            for value in event.summary.value:
                read.setdefault(value.tag, {}).setdefault(event.step, []).append(value.simple_value)
    return read


def test_a_replay_writes_each_record_once_and_a_second_one_changes_nothing(home: Path, tmp_path: Path) -> None:
    assert track.replay(home, tmp_path / "logs").startswith("5 records of the history are in")
    first = curves(tmp_path / "logs")
    assert first["train/reward"] == {1: [0.5], 2: [0.75], 3: [0.5]}
    assert first["train/loss"] == {1: [0.125], 2: [0.125], 3: [0.125]}
    assert first["heldout/sampled"] == {3: [0.5]}
    assert first["version/era"] == {3: [7.0]}
    assert "version/diff_bytes" not in first
    track.replay(home, tmp_path / "logs")
    assert curves(tmp_path / "logs") == first
    assert len(list((tmp_path / "logs").iterdir())) == 1


def test_a_number_that_is_not_finite_is_not_sent() -> None:
    record = msgspec.structs.replace(point(1), metrics={"kl": float("nan"), "loss": 1.0}, reward=float("inf"))
    assert track.points_of(record).values == {
        "train/loss": 1.0, "train/success": 0.25, "train/staleness": 1.0, "train/seconds": 2.0
    }  # fmt: skip


def test_no_text_of_the_settings_is_sent(home: Path, tmp_path: Path) -> None:
    track.replay(home, tmp_path / "logs")
    sent = b"".join(path.read_bytes() for path in (tmp_path / "logs").iterdir())
    assert b"secret" not in sent
    assert b"/home/me" not in sent
    settings = configuration.load(home / "coordinator.toml", env={})
    assert curves(tmp_path / "logs")["settings/run/group_size"] == {0: [float(settings.run.group_size)]}


def test_what_is_added_is_sent_also_over_a_new_file_and_a_torn_line(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def add_meanwhile(seconds: float) -> bool:
        looks.append(seconds)
        written = History(home / "history.jsonl")
        monkeypatch.setattr(history, "MOST_BYTES", 1 if len(looks) == 2 else 1 << 20)
        written.add(point(3 + len(looks)))
        written.close()
        if len(looks) == 1:
            with (home / "history.jsonl").open("ab") as file:
                file.write(b'{"kind": "step", "rec')
        return len(looks) == 4

    said: list[str] = []
    track.follow(home, tmp_path / "logs", said.append, "tensorboard", add_meanwhile)
    assert said == [f"5 records of the history are in {tmp_path / 'logs'}; what comes is added"]
    assert list(curves(tmp_path / "logs")["train/reward"]) == [1, 2, 3, 4, 5, 6, 7]


def test_files_of_others_in_the_folder_stay(home: Path, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/events.out.tfevents.1.host").write_bytes(b"")
    track.replay(home, tmp_path / "logs")
    track.replay(home, tmp_path / "logs")
    assert len(list((tmp_path / "logs").iterdir())) == 2


def test_what_is_wrong_is_one_sentence(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LocalFault, match="is a file: name a folder"):
        track.replay(home, tmp_path / "file")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "logs")

    with monkeypatch.context() as patched:
        patched.setattr("tensorboardX.record_writer.RecordWriter.write", full)
        with pytest.raises(LocalFault, match="no space is left for logs: make room there"):
            track.replay(home, tmp_path / "logs")
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "tensorboardX.record_writer", None)
        with pytest.raises(LocalFault, match="install the extra tensorboard"):
            track.replay(home, tmp_path / "logs")
    (home / "history.jsonl").unlink()
    with pytest.raises(LocalFault, match="has no history yet: start the run"):
        track.replay(home, tmp_path / "logs")
