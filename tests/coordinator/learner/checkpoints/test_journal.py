"""An entry of the journal is whole or absent, and its bytes are pinned."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from echo2.coordinator.learner.checkpoints import journal
from echo2.coordinator.learner.checkpoints.checkpoint import Base, State
from echo2.coordinator.learner.checkpoints.journal import JournalEntry
from echo2.coordinator.learner.messages import Export, ExportedEdge, Hyper
from tests.support.cuts import cuts
from tests.support.quick_disk import quick_folder


def root(version: int) -> bytes:
    return bytes([version]) * 32


def state(step: int, era: int = 1) -> State:
    edge = ExportedEdge(base=step - 1, base_root=root(step - 1), payload=f"/learner/{step}.edge")
    return State(
        step=step, era=era, steps=step, drawn=[b"\1", b"\2"], draws=[(step, 2)], anchor=None,
        export=Export(version=step, root=root(step), snapshot=f"/learner/{step}", edges=[edge], seconds=0.5),
        published=[Base(step - 1, root(step - 1), f"/learner/{step - 1}")],
    )  # fmt: skip


def entry(step: int, era: int = 1) -> JournalEntry:
    return JournalEntry(
        after=step - 1, after_root=root(step - 1), steps=[(step, [b"\1", b"\2"], [16384])],
        state=state(step, era), hyper=Hyper(), ranks=1, threads=2, device="cpu", arithmetic="a processor",
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in (3, 4, 5):
        journal.append(tmp_path, entry(step))
    return tmp_path


def steps(folder: Path, state: State, reports: list[str]) -> list[int]:
    return [one.state.step for one in journal.behind(folder, state, reports.append)]


def test_the_entries_on_disk_are_pinned(repository: Path, tmp_path: Path) -> None:
    vector = json.loads((repository / "tests/vectors/learner_journal.json").read_text())
    journal.append(tmp_path, entry(3))
    (path,) = tmp_path.iterdir()
    assert path.name == vector["name"]
    assert path.read_bytes().hex() == vector["entry"]
    assert journal.behind(tmp_path, state(2), print) == [entry(3)]


@pytest.mark.parametrize("earlier", ["without_temperature", "with_contrast"])
def test_an_entry_with_other_settings_has_the_defaults_of_those_that_it_lacks(
    earlier: str, repository: Path, tmp_path: Path
) -> None:
    vector = json.loads((repository / "tests/vectors/learner_journal.json").read_text())
    (tmp_path / vector["name"]).write_bytes(bytes.fromhex(vector[earlier]))
    assert journal.behind(tmp_path, state(2), print) == [entry(3)]


def test_entries_behind_a_checkpoint_are_those_that_follow_it_one_after_the_other(folder: Path) -> None:
    reports: list[str] = []
    assert [steps(folder, state(step), reports) for step in (2, 3, 5)] == [[3, 4, 5], [4, 5], []]
    assert reports == [], "what a later checkpoint has made superfluous is no fault"
    assert journal.newest_version(folder) == 5


def test_entries_that_do_not_follow_are_lost_with_all_behind_them(folder: Path) -> None:
    reports: list[str] = []
    assert steps(folder, state(1), reports) == []
    assert steps(folder, state(2, era=2), reports) == [], "they are of the era before, which is over"
    (folder / "entry-000000000001-000000000004-000000000004.msgpack").unlink()
    assert steps(folder, state(2), reports) == [3]
    assert ["does not follow step 1" in reports[0], "does not follow step 3" in reports[1]] == [True, True]
    assert len(reports) == 2


def test_an_entry_of_other_weights_does_not_follow(folder: Path) -> None:
    other = state(2)
    assert other.export is not None
    other = structs.replace(other, export=structs.replace(other.export, root=root(9)))
    reports: list[str] = []
    assert steps(folder, other, reports) == []
    assert "does not follow step 2" in reports[0]


def test_tries_are_counted_until_the_journal_is_cleared(folder: Path) -> None:
    assert [journal.begin_try(folder) for _ in range(3)] == [0, 1, 2]
    journal.end_try(folder)
    assert journal.begin_try(folder) == 2
    (folder / "tries").write_bytes(b"torn")
    assert journal.begin_try(folder) == 0
    journal.clear(folder)
    assert list(folder.iterdir()) == []
    assert journal.newest_version(folder) == -1
    assert journal.begin_try(folder) == 0


def test_an_entry_that_was_appended_outlives_any_kill_or_power_cut() -> None:
    with quick_folder() as folder:
        journal_folder = folder / "journal"
        journal_folder.mkdir()

        def life() -> Iterator[int]:
            """Yield the newest version of the journal."""
            yield 2
            for step in (3, 4):
                journal.append(journal_folder, entry(step))
                yield step

        for cut in cuts(life(), folder):
            found = [one.state.step for one in journal.behind(journal_folder, state(2), pytest.fail)]
            assert found in ([*range(3, cut.before + 1)], [*range(3, cut.after + 1)]), cut.where
