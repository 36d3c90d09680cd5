"""Steps behind the newest checkpoint are in a journal, and are made again bit for bit after a restart."""

from pathlib import Path

import pytest
from msgspec import structs

from coordinator.learner import batch_groups, journal, replay
from coordinator.learner.checkpoint_pace import CheckpointPace
from coordinator.learner.messages import Hyper
from coordinator.learner.replay import RemadeOtherwise
from coordinator.learner.session import Session
from tests.support import tiny_learner
from tests.support.tiny_learner import Main

HYPER = Hyper(warmup_steps=2, minibatches=2, microbatch_tokens=40, learning_rate=1e-3)
STEPS = 4


@pytest.fixture
def main(tmp_path: Path, model_folder: Path) -> Main:
    """A run with a checkpoint of its first version alone, and a journal of `STEPS` steps behind it."""
    main = Main(tmp_path / "broken", model_folder, HYPER, keep=10)
    main.checkpoint_share = 1e-9
    session = main.open()
    for number in range(1, STEPS + 1):
        main.step(session, number, export=number != 2)
    assert checkpoints(main) == [0]
    return main


def checkpoints(main: Main) -> list[int]:
    return [int(path.name.rsplit("-")[-1]) for path in sorted((main.folder / "checkpoints").iterdir())]


def entries(main: Main) -> list[Path]:
    return sorted((main.folder / "journal").glob("entry-*"))


def edit(main: Main, threads: int = 1) -> None:
    """Let the last entry of the journal name the groups of another step."""
    stored = journal.behind(main.folder / "journal", loaded_state(main), main.reports.append)
    entries(main)[-1].unlink()
    false = [(step, stored[0].steps[0][1]) for step, _ in stored[-1].steps]
    journal.append(main.folder / "journal", structs.replace(stored[-1], steps=false, threads=threads))


def loaded_state(main: Main) -> replay.checkpoint.State:
    stored = replay.checkpoint.load(main.folder / "checkpoints", main.reports.append)
    assert stored is not None
    return stored.state


def test_the_journal_alone_leads_to_the_same_versions_as_a_run_that_was_not_broken(
    main: Main, tmp_path: Path, model_folder: Path
) -> None:
    whole = Main(tmp_path / "whole", model_folder, HYPER, keep=10)
    session = whole.open()
    for number in range(1, STEPS + 3):
        whole.step(session, number, export=number != 2)
    session = main.open()
    assert session.opened().step == STEPS
    assert session.opened().export is None
    assert main.reports == ["4 steps behind the checkpoint were made again, up to step 4"]
    assert checkpoints(main) == [0, STEPS]
    assert entries(main) == []
    for number in (STEPS + 1, STEPS + 2):
        main.step(session, number)
    assert [export.root for export in main.published] == [export.root for export in whole.published]


def test_an_export_that_was_not_published_comes_from_its_files(main: Main) -> None:
    last = main.published.pop()
    written = Path(last.edges[0].payload).stat().st_mtime_ns
    pending = main.open(publish=False).opened().export
    assert pending is not None
    assert (pending.version, pending.root) == (STEPS, last.root)
    assert Path(pending.edges[0].payload).stat().st_mtime_ns == written


def test_steps_are_made_again_with_the_settings_that_they_were_made_with(main: Main) -> None:
    main.hyper = structs.replace(HYPER, learning_rate=1e-2, minibatches=1)
    assert main.open().opened().undone == ""
    assert main.reports == ["4 steps behind the checkpoint were made again, up to step 4"]


def test_without_the_tokens_of_a_step_the_published_version_goes_on_in_a_new_era(
    main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(leases: list[bytes]) -> list[batch_groups.TrainGroup]:
        raise batch_groups.MissingTokens("its tokens are not stored")

    monkeypatch.setattr(tiny_learner, "read", lost)
    opened = main.open().opened()
    assert "4 steps cannot be made again (its tokens are not stored): they are given up" in main.reports
    assert "a new era begins with version 5" in opened.undone
    assert main.published[-1].version == 5
    assert main.published[-1].root == main.published[-2].root
    assert entries(main) == []


def test_a_journal_at_which_the_learner_died_twice_is_given_up(main: Main) -> None:
    assert [journal.begin_try(main.folder / "journal") for _ in range(2)] == [0, 1]
    assert "a new era begins" in main.open().opened().undone
    assert main.reports[0] == "the learner died while it made 4 steps again: they are given up"
    assert main.open().opened().undone == ""


def test_other_weights_on_one_cpu_with_equal_settings_are_a_fault(main: Main) -> None:
    edit(main)
    with pytest.raises(RemadeOtherwise, match="up to version 4 were made again and gave other weights"):
        main.open()
    assert entries(main)


def test_other_weights_elsewhere_become_the_published_ones_and_the_moments_stay(main: Main) -> None:
    edit(main, threads=2)
    session = main.open()
    assert "gave other weights when made again: the published ones are taken" in main.reports[0]
    assert session.opened().undone == ""
    assert weights_of(session, main.folder) == main.published[-1].root
    session = main.open()
    main.step(session, STEPS + 1)
    assert main.published[-1].version == STEPS + 1


def weights_of(session: Session, folder: Path) -> bytes:
    return session._trainer.save_snapshot(folder / "weights.safetensors").root


@pytest.mark.parametrize("torn", [b"", b"\x92\xc4\x01", None])
def test_an_entry_that_cannot_be_read_ends_the_journal(main: Main, torn: bytes | None) -> None:
    path = entries(main)[-1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content) if torn is None else torn)
    opened = main.open().opened()
    assert any("the steps from there on are lost" in report for report in main.reports)
    assert "a new era begins" in opened.undone or opened.step == STEPS - 1


def test_checkpoints_come_as_often_as_costs_their_share_of_the_time() -> None:
    pace = CheckpointPace(0.05)
    assert pace.is_due
    pace.wrote(2.0)
    due = []
    for _ in range(5):
        pace.worked(10.0)
        due.append(pace.is_due)
    assert due == [False, False, False, True, True]
    pace.wrote(0.4)
    pace.worked(10.0)
    assert pace.is_due
    assert CheckpointPace(1.0).is_due
