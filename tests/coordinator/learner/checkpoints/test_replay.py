"""Steps behind the newest checkpoint are in a journal, and are made again bit for bit after a restart."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from echo2.coordinator.learner.batches import batch_groups
from echo2.coordinator.learner.checkpoints import checkpoint, journal
from echo2.coordinator.learner.checkpoints.checkpoint import CheckpointError
from echo2.coordinator.learner.checkpoints.journal import JournalEntry
from echo2.coordinator.learner.checkpoints.replay import RemadeOtherwise
from echo2.coordinator.learner.messages import Hyper, Open, Republish
from echo2.coordinator.learner.session import Session, WrongOrder
from echo2.coordinator.learner.trainer import LocalTrainer
from echo2.runtime.errors import DiskFull
from tests.support import tiny_learner
from tests.support.tiny_learner import Main, batch, read

HYPER = Hyper(warmup_steps=2, minibatches=2, microbatch_tokens=40, learning_rate=1e-3)
STEPS = 4
MADE_AGAIN = ["4 steps behind the checkpoint of step 0 will be made again", "4 steps made again, up to step 4"]


@pytest.fixture
def main(tmp_path: Path, model_folder: Path) -> Main:
    """A run with a checkpoint of its first version alone, and a journal of `STEPS` steps behind it."""
    return broken_run(tmp_path, model_folder, HYPER)


def broken_run(tmp_path: Path, model_folder: Path, hyper: Hyper) -> Main:
    main = Main(tmp_path / "broken", model_folder, hyper, keep=10)
    main.checkpoint_share, main.store = 1e-9, tmp_path / "store"
    main.store.mkdir()
    session = main.open()
    for number in range(1, STEPS + 1):
        main.step(session, number, export=number != 2)
    assert checkpoints(main) == [0]
    return main


def checkpoints(main: Main) -> list[int]:
    return [int(path.name.rsplit("-")[-1]) for path in sorted((main.folder / "checkpoints").iterdir())]


def entries(main: Main) -> list[Path]:
    return sorted((main.folder / "journal").glob("entry-*"))


def stored_entries(main: Main) -> list[JournalEntry]:
    return journal.behind(main.folder / "journal", loaded_state(main), main.reports.append)


def edit(main: Main, **changes: Any) -> None:
    """Let the last entry of the journal name the groups of another step, and change other fields."""
    stored = stored_entries(main)
    entries(main)[-1].unlink()
    false = [(step, stored[0].steps[0][1], passes) for step, _, passes in stored[-1].steps]
    journal.append(main.folder / "journal", structs.replace(stored[-1], steps=false, **changes))


def loaded_state(main: Main) -> checkpoint.State:
    stored = checkpoint.load(main.folder / "checkpoints", main.reports.append)
    return stored.state


@pytest.mark.parametrize("kind", ["float32", "8bit"])
def test_the_journal_alone_leads_to_the_same_versions_as_a_run_that_was_not_broken(
    tmp_path: Path, model_folder: Path, kind: str
) -> None:
    hyper = structs.replace(HYPER, optimiser_state=kind)
    main = broken_run(tmp_path, model_folder, hyper)
    whole = Main(tmp_path / "whole", model_folder, hyper, keep=10)
    session = whole.open()
    for number in range(1, STEPS + 3):
        whole.step(session, number, export=number != 2)
    session = main.open()
    assert session.answer_open().step == STEPS
    assert session.answer_open().export is None
    assert main.reports == MADE_AGAIN
    assert checkpoints(main) == [0, STEPS]
    assert entries(main) == []
    for number in (STEPS + 1, STEPS + 2):
        main.step(session, number)
    assert [export.root for export in main.published] == [export.root for export in whole.published]


@pytest.mark.slow
def test_an_export_that_was_not_published_comes_from_its_files(main: Main) -> None:
    last = main.published.pop()
    written = Path(last.edges[0].payload).stat().st_mtime_ns
    pending = main.open(publish=False).answer_open().export
    assert (pending.version, pending.root) == (STEPS, last.root)
    assert Path(pending.edges[0].payload).stat().st_mtime_ns == written


@pytest.mark.slow
def test_steps_are_made_again_with_the_settings_and_threads_that_they_were_made_with(main: Main) -> None:
    main.hyper, main.threads = structs.replace(HYPER, learning_rate=1e-2, minibatches=1), 2
    session = main.open()
    assert session.answer_open().undone == ""
    assert main.reports == MADE_AGAIN
    assert weights_of(session, main.folder) == main.published[-1].root


SCHEDULED = structs.replace(HYPER, schedule="cosine", schedule_steps=12, schedule_end=0.0)


def changed_in_mid_run(folder: Path, model: Path, *, broken: bool) -> list[bytes]:
    """Return the roots of a run whose settings change after step 3 and after step 5, in a journal alone. `broken`: the
    learner dies before and after each change, and at the end."""
    main = Main(folder, model, SCHEDULED, keep=10)
    main.checkpoint_share, main.tells = 1e-9, True
    main.store = folder.with_name(f"{folder.name}-store")
    main.store.mkdir()
    session = main.open()
    for number in range(1, 8):
        if number in (4, 6):
            session = main.open() if broken else session
            change = {"learning_rate": 5e-3, "minibatches": 1} if number == 4 else {"schedule": "linear"}
            main.hyper = structs.replace(main.hyper, **change)
        main.step(session, number, export=number != 2)
        session = main.open() if broken and number in (4, 6, 7) else session
    return [export.root for export in main.published]


def test_a_change_of_settings_in_mid_run_is_made_again_with_the_settings_of_each_step(
    tmp_path: Path, model_folder: Path
) -> None:
    whole = changed_in_mid_run(tmp_path / "whole", model_folder, broken=False)
    main = Main(tmp_path / "whole", model_folder, SCHEDULED, keep=10)
    made = stored_entries(main)
    assert [entry.hyper.learning_rate for entry in made] == [1e-3, 1e-3, 5e-3, 5e-3, 5e-3, 5e-3]
    assert [entry.hyper.schedule for entry in made] == ["cosine"] * 4 + ["linear"] * 2
    rates = [entry.state.learning_rate for entry in made]
    assert rates[-1] == pytest.approx(5e-3 * 0.5), "the schedule counts the steps of the run"
    assert rates[1] < rates[3] < rates[2], "the change raises the rate, and the schedule goes on to lower it"
    assert changed_in_mid_run(tmp_path / "broken", model_folder, broken=True) == whole


def test_settings_do_not_change_within_an_entry_of_the_journal(main: Main) -> None:
    session = main.open()
    main.step(session, STEPS + 1, export=False)
    main.hyper, main.tells = structs.replace(HYPER, learning_rate=1e-2), True
    with pytest.raises(WrongOrder, match="before the steps with the present ones are durable"):
        main.step(session, STEPS + 2)


def test_the_rate_right_after_a_resume_and_a_rollback_follows_from_the_steps_of_the_run(
    tmp_path: Path, model_folder: Path
) -> None:
    main = Main(tmp_path / "run", model_folder, structs.replace(SCHEDULED, schedule_steps=7, schedule="linear"))
    session = main.open()
    for number in range(1, 5):
        main.step(session, number)
    assert loaded_state(main).learning_rate == pytest.approx(1e-3 * 0.6)
    assert main.open().answer_open().learning_rate == pytest.approx(1e-3 * 0.4), "of step 5"
    last = main.published[-1]
    main.republish = Republish(
        id=1, version=last.version, root=last.root, snapshot=last.snapshot, factor=0.5, why="it broke"
    )
    opened = main.open().answer_open()
    assert opened.step == 5, "the rollback is version 5, and warms up anew towards the rate of step 6"
    assert opened.learning_rate == pytest.approx(1e-3 * 0.5 * 0.2 * 0.5)


@pytest.mark.parametrize(("rate", "models"), [(HYPER.learning_rate, 1), (1e-2, 2)])
@pytest.mark.slow_but("0.001-1")
def test_the_model_is_loaded_twice_only_where_the_settings_have_changed(main: Main, rate: float, models: int) -> None:
    asked: list[float] = []

    def counted(order: Open) -> LocalTrainer:
        asked.append(order.hyper.learning_rate)
        return LocalTrainer(order)

    main.hyper = structs.replace(HYPER, learning_rate=rate)
    session = Session(main.order(), main.reports.append, read, counted)
    assert len(asked) == models
    assert asked[-1] == rate
    assert weights_of(session, main.folder) == main.published[-1].root


def lose_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(leases: list[bytes]) -> list[batch_groups.TrainGroup]:
        raise batch_groups.MissingTokens("its tokens are not stored")

    monkeypatch.setattr(tiny_learner, "read", lost)


def check_published_goes_on(main: Main, session: Session) -> None:
    """Check that a new era has begun with the weights that were published last, and the checkpoint's optimiser."""
    assert "a new era begins with version 5" in session.answer_open().undone
    assert (main.published[-1].version, main.published[-1].root) == (5, main.published[-2].root)
    assert entries(main) == []
    session = main.open()
    assert session.answer_open().undone == ""
    assert main.step(session, 6).metrics["learning_rate"] == HYPER.learning_rate / 2, "the checkpoint made no step"


@pytest.mark.slow
def test_without_the_tokens_of_a_step_the_published_version_goes_on_in_a_new_era(
    main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_tokens(monkeypatch)
    session = main.open()
    assert "4 steps cannot be made again (its tokens are not stored): they are given up" in main.reports
    monkeypatch.undo()
    check_published_goes_on(main, session)


def test_steps_that_are_given_up_before_any_was_published_begin_a_new_era_too(
    main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last version of the journal was perhaps signed, when the main process was killed."""
    del main.published[1:]
    lose_tokens(monkeypatch)
    session = main.open()
    assert (
        "step 0, and version 4 of the journal is lost: a new era begins with version 5" in session.answer_open().undone
    )
    assert [export.version for export in main.published] == [0, 5]
    assert main.published[1].root == main.published[0].root
    assert entries(main) == []
    assert main.open().answer_open().undone == ""


def test_the_number_of_a_lost_version_is_not_used_again(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    main.published.pop()
    lose_tokens(monkeypatch)
    main.open()
    assert [export.version for export in main.published] == [0, 1, 3, 5], "version 4 was perhaps signed"


@pytest.mark.slow
def test_a_journal_at_which_the_learner_died_twice_is_given_up(main: Main) -> None:
    assert [journal.begin_try(main.folder / "journal") for _ in range(2)] == [0, 1]
    session = main.open()
    assert main.reports[0] == "the learner died while it made 4 steps again: they are given up"
    check_published_goes_on(main, session)


@pytest.mark.slow
def test_a_death_before_the_journal_was_removed_counts_for_no_later_one(main: Main) -> None:
    """The replay has ended with a durable checkpoint, and the journal behind the one before is still there."""
    kept = main.folder / "kept"
    shutil.copytree(main.folder / "journal", kept)
    main.open()
    shutil.rmtree(main.folder / "journal")
    shutil.move(kept, main.folder / "journal")
    for _ in range(journal.MOST_TRIES):
        journal.begin_try(main.folder / "journal")
    main.reports.clear()
    session = main.open()
    main.step(session, STEPS + 1)
    main.step(session, STEPS + 2)
    assert main.open().answer_open().step == STEPS + 2
    assert main.reports == [
        f"1 step behind the checkpoint of step {STEPS + 1} will be made again",
        f"1 step made again, up to step {STEPS + 2}",
    ]


@pytest.mark.parametrize("fault", [DiskFull("no room"), RemadeOtherwise("other weights")])
@pytest.mark.slow_but("fault0")
def test_a_fault_that_a_person_must_put_right_gives_nothing_up(
    main: Main, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def fails(*_: object) -> None:
        raise fault

    with monkeypatch.context() as patched:
        patched.setattr(LocalTrainer, "step", fails)
        for _ in range(journal.MOST_TRIES + 1):
            with pytest.raises(type(fault), match=str(fault)):
                main.open()
    main.reports.clear()
    assert main.open().answer_open().step == STEPS
    assert main.reports == MADE_AGAIN


@pytest.mark.slow
def test_an_error_in_the_replay_counts_as_a_death(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise MemoryError("no memory for a step")

    with monkeypatch.context() as patched:
        patched.setattr(LocalTrainer, "step", fails)
        for _ in range(journal.MOST_TRIES):
            with pytest.raises(MemoryError):
                main.open()
    check_published_goes_on(main, main.open())


@pytest.mark.slow
def test_other_weights_on_one_cpu_with_equal_settings_are_a_fault_until_the_journal_is_moved_away(main: Main) -> None:
    edit(main)
    for _ in range(journal.MOST_TRIES + 1):
        with pytest.raises(RemadeOtherwise, match="up to version 4 were made again and gave other weights"):
            main.open()
    shutil.move(main.folder / "journal", main.folder / "moved")
    check_published_goes_on(main, main.open())


ELSEWHERE = {
    "several ranks": {"ranks": 2},
    "another device": {"device": "cuda"},
    "another processor, library or program": {"arithmetic": "another processor"},
}


@pytest.mark.parametrize("sentence", ELSEWHERE)
@pytest.mark.slow_but("several ranks")
def test_other_weights_elsewhere_become_the_published_ones_and_the_moments_stay(main: Main, sentence: str) -> None:
    edit(main, **ELSEWHERE[sentence])
    session = main.open()
    assert [report for report in main.reports if "gave other weights" in report] == [
        "the steps up to version 4 gave other weights when made again: the published ones are taken"
    ]
    assert session.answer_open().undone == ""
    assert weights_of(session, main.folder) == main.published[-1].root
    session = main.open()
    assert main.step(session, STEPS + 1).metrics["learning_rate"] == HYPER.learning_rate, "the optimiser has gone on"
    assert main.published[-1].version == STEPS + 1


def weights_of(session: Session, folder: Path) -> bytes:
    return session._trainer.save_snapshot(folder / "weights.safetensors").root


@pytest.mark.parametrize("torn", [b"", b"\x93\x01\xc4\x01", None])
@pytest.mark.slow_but("\\x93\\x01\\xc4\\x01")
def test_an_entry_that_cannot_be_read_ends_the_journal(main: Main, torn: bytes | None) -> None:
    path = entries(main)[-1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content) if torn is None else torn)
    session = main.open()
    assert any("the steps from there on are lost" in report for report in main.reports)
    assert "3 steps made again, up to step 3" in main.reports
    assert "the checkpoint is of step 3, and version 4 is published" in session.answer_open().undone
    assert (main.published[-1].version, main.published[-1].root) == (5, main.published[-2].root)


def test_an_entry_of_a_newer_program_is_an_error_and_stays(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = stored_entries(main)[-1]
    with monkeypatch.context() as patched:
        patched.setattr(journal, "FORMAT", 2)
        journal.append(main.folder / "journal", stored)
    with pytest.raises(CheckpointError, match="format 2, this program reads 1: update it"):
        main.open()
    assert len(entries(main)) == STEPS - 1


@pytest.mark.slow
def test_the_journal_of_another_run_is_not_taken(main: Main, tmp_path: Path, model_folder: Path) -> None:
    """It has the steps and the era of this one."""
    other = Main(tmp_path / "other", model_folder, structs.replace(HYPER, learning_rate=2e-3), keep=10)
    session = other.open()
    other.step(session, 1)
    other.checkpoint_share = main.checkpoint_share
    session = other.open()
    for number in (2, 3):  # the first export of a session has a checkpoint
        other.step(session, number)
    other.step(session, 4)
    other.step(session, 5)
    shutil.rmtree(main.folder / "journal")
    shutil.copytree(other.folder / "journal", main.folder / "journal")
    session = main.open()
    assert any("does not follow step 0: its steps are lost" in report for report in main.reports)
    assert session.answer_open().undone
    assert main.published[-1].root == main.published[-2].root


def test_a_journal_of_groups_that_this_run_lacks_is_given_up(main: Main) -> None:
    """Another run began with the same model, so its journal follows this run's first version."""
    stored = stored_entries(main)

    def of_another_run(leases: list[bytes]) -> list[batch_groups.TrainGroup]:
        raise batch_groups.MissingTokens(f"group {leases[0].hex()} is not in the buffer")

    session = Session(main.order(), main.reports.append, of_another_run)
    assert (
        f"4 steps cannot be made again (group {stored[0].steps[0][1][0].hex()} is not in the buffer): they are"
        in (main.reports[-1])
    )
    assert "a new era begins" in session.answer_open().undone


def test_the_journal_names_what_a_step_was_made_of(main: Main) -> None:
    one, both, last = stored_entries(main)
    assert [(step, ids) for step, ids, _ in both.steps] == [
        (number, [group.id for group in batch(number).groups]) for number in (2, 3)
    ]
    assert (one.after, both.after, last.after) == (0, 1, 3)
    assert [one.after_root, both.after_root] == [main.published[0].root, main.published[1].root]
    assert [entry.export.root for entry in (one, both, last)] == [export.root for export in main.published[1:]]
    assert last.hyper == HYPER
