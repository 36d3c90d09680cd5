"""An export's diffs start from versions whose snapshots are kept, and files that no diff needs are removed."""

from pathlib import Path

import pytest

from echo2.coordinator.learner.checkpoints import export
from echo2.coordinator.learner.checkpoints.checkpoint import Base


def bases(*versions: int) -> list[Base]:
    return [Base(version, bytes(32), f"v{version}") for version in versions]


@pytest.mark.parametrize(
    ("version", "starts"),
    [(1, [0]), (2, [1, 0]), (7, [6]), (12, [11, 10, 8]), (16, [15, 14, 12, 8, 0]), (32, [31, 30, 28, 24, 16, 0])],
)
def test_diffs_start_from_the_predecessor_from_powers_of_two_and_from_the_anchor(
    version: int, starts: list[int]
) -> None:
    chosen = export.starts(version, bases(*range(version)), Base(0, bytes(32), "v0"))
    assert [base.version for base in chosen] == starts


def test_a_version_that_was_not_published_is_no_start() -> None:
    assert [base.version for base in export.starts(12, bases(0, 8, 9), None)] == [9, 8]


def test_every_start_of_a_later_diff_is_still_useful(tmp_path: Path) -> None:
    payload = tmp_path / "back"
    payload.write_bytes(bytes(10))
    here = [Base(version, bytes(32), f"v{version}", str(payload)) for version in range(120)]
    for newest in range(80):
        useful = {base.version for base in export.useful(here[: newest + 1], room=1000)}
        for later in range(newest + 1, newest + 40):
            starts = {base.version for base in export.starts(later, bases(*range(later)), None)}
            assert {version for version in starts if version <= newest} <= useful, (newest, later)


def test_of_the_payloads_back_the_oldest_are_left_out_where_there_is_no_room(tmp_path: Path) -> None:
    payload = tmp_path / "back"
    payload.write_bytes(bytes(10))
    here = [Base(version, bytes(32), f"v{version}", str(payload)) for version in range(10)]
    assert [base.version for base in export.useful(here, room=35)] == [6, 7, 8, 9]
    assert [base.version for base in export.useful(here, room=0)] == [9], "the newest has a snapshot"


def test_a_snapshot_is_adopted_once_and_replaces_an_unpublished_one_of_its_number(tmp_path: Path) -> None:
    folder, snapshot = tmp_path / "exports", tmp_path / "elsewhere"
    folder.mkdir()
    snapshot.write_bytes(b"published")
    export.place(folder, 3).write_bytes(b"never published")
    target = export.adopt(snapshot, 3, folder)
    assert target.read_bytes() == b"published"
    assert target.samefile(snapshot)
    assert export.adopt(snapshot, 3, folder) == target


def test_the_sweep_removes_all_files_but_those_named_and_the_payloads_of_versions_kept(tmp_path: Path) -> None:
    for version in range(4):
        export.place(tmp_path, version).touch()
        (tmp_path / f"v{version:010d}-from-0000000000.edge").touch()
    (tmp_path / ".v0000000001-full.edge.tmp").touch()
    (tmp_path / "notes.txt").touch()
    export.sweep(tmp_path, range(3, 4), {export.place(tmp_path, version) for version in (0, 3)})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "notes.txt",
        "v0000000000.safetensors",
        "v0000000003-from-0000000000.edge",
        "v0000000003.safetensors",
    ]
