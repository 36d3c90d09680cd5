"""A run that the disk has no room for is refused before its model is copied, and before its coordinator starts."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from echo2.coordinator.command_line import process_life
from echo2.coordinator.run import disk_room, setup
from echo2.coordinator.run.disk_room import RUN_BYTES
from echo2.runtime.errors import DiskFull, LocalFault
from tests.support.run_folders import NOW, make_run, write_model

PARAMETERS, COPY = 64, 4 * 64


@pytest.fixture
def with_free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def change(free: int) -> None:
        monkeypatch.setattr(disk_room, "shutil", SimpleNamespace(disk_usage=lambda path: SimpleNamespace(free=free)))

    return change


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_model(tmp_path / "source", "model.layers.0.mlp.up_proj.weight", (2, 32))


def test_init_needs_room_for_the_copy_checkpoints_and_versions(
    source: Path, tmp_path: Path, with_free: Callable[[int], None]
) -> None:
    with_free(COPY + RUN_BYTES * PARAMETERS - 1)
    with pytest.raises(DiskFull, match=r"and the run takes .* for the copy of its model, checkpoints and versions"):
        make_run(tmp_path / "deep" / "run", source)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]
    with_free(COPY + RUN_BYTES * PARAMETERS)
    make_run(tmp_path / "deep" / "run", source)


def test_an_adapter_needs_room_for_the_copy_alone(source: Path, with_free: Callable[[int], None]) -> None:
    with_free(COPY)
    disk_room.check_room_to_make(source, str(source), 1, trains_all=False)
    with pytest.raises(DiskFull):
        disk_room.check_room_to_make(source, str(source), 1, trains_all=True)


def test_the_demos_models_need_room_too(tmp_path: Path, with_free: Callable[[int], None]) -> None:
    with_free(10**9)
    config = setup.settings_for("smollm2", {}, env={})
    with pytest.raises(DiskFull, match=r"has 1\.0 GB free, and the run takes 6\.5 GB"):
        setup.init(tmp_path / "run", "smollm2", config, now=NOW)


def test_run_counts_what_the_folder_has_already(source: Path, tmp_path: Path, with_free: Callable[[int], None]) -> None:
    run = make_run(tmp_path / "run", source)
    with_free(RUN_BYTES * PARAMETERS - 1)
    with pytest.raises(DiskFull, match="for checkpoints and versions: free space there, or name a folder on another"):
        process_life.check_start(run)
    run.folder.learner.mkdir()
    (run.folder.learner / "one").write_bytes(b"!")
    (run.folder.store / "the same").parent.mkdir(exist_ok=True)
    (run.folder.store / "the same").hardlink_to(run.folder.learner / "one")
    before = disk_room.bytes_to_run(run.folder, 1)
    (run.folder.learner / "two").write_bytes(b"!")
    assert before - disk_room.bytes_to_run(run.folder, 1) == 1
    disk_room.check_room_to_run(run.folder, 1)


def test_weights_that_cannot_be_read_are_a_sentence(source: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", source)
    (run.folder.model / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(LocalFault, match="put it back from your backup"):
        disk_room.check_room_to_run(run.folder, 1)
    shutil.rmtree(run.folder.model)
    with pytest.raises(LocalFault, match="put it back from your backup"):
        disk_room.check_room_to_run(run.folder, 1)
