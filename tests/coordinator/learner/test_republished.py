"""An earlier version is published again, in a new era: its bytes, a fresh optimiser, and a rate that stays lower."""

import shutil
from pathlib import Path

import pytest

from echo2.coordinator.learner.messages import Hyper, Republish
from echo2.coordinator.learner.session import WrongOrder
from echo2.weights.diff import apply
from echo2.weights.snapshot import Snapshot
from tests.support.tiny_learner import Main

HYPER = Hyper(warmup_steps=2, minibatches=2, microbatch_tokens=40, learning_rate=1e-3)


@pytest.fixture
def main(tmp_path: Path, model_folder: Path) -> Main:
    """Return a run of 5 steps, of which version 2 is kept."""
    made_run = Main(tmp_path / "learner", model_folder, HYPER)
    session = made_run.open()
    for number in range(1, 6):
        made_run.step(session, number)
        if number == 2:
            shutil.copyfile(made_run.published[-1].snapshot, tmp_path / "kept.safetensors")
    return made_run


def back_to(main: Main, version: int, *, order: int = 77, factor: float = 1.0) -> Republish:
    kept = main.folder.parent / "kept.safetensors"
    root = main.published[version].root
    return Republish(id=order, version=version, root=root, snapshot=str(kept), factor=factor, why="it broke")


@pytest.mark.slow
def test_the_version_comes_again_as_a_newer_one_in_a_new_era(main: Main, tmp_path: Path) -> None:
    main.republish = back_to(main, 2)
    session = main.open()
    opened, last = session.answer_open(), main.published[-1]
    assert (opened.step, opened.drawn, opened.era > 0) == (6, [], True)
    assert (last.version, last.root) == (6, main.published[2].root)
    assert "version 2 is published again as version 6: it broke" in opened.undone
    diff = next(edge for edge in last.edges if edge.base == 5)
    assert any(edge.base is None for edge in last.edges), "a new node gets it whole"
    before = Snapshot(Path(main.published[5].snapshot))
    assert apply(before, Path(diff.payload), tmp_path / "node.safetensors", last.root).root == last.root
    stepped = main.step(session, 7)
    assert stepped.export.version == 7


@pytest.mark.slow
def test_the_order_is_obeyed_once_and_a_restart_goes_on_in_the_new_era(main: Main) -> None:
    main.republish = back_to(main, 2)
    era = main.open().answer_open().era
    again = main.open()
    assert (again.answer_open().era, again.answer_open().step, again.answer_open().undone) == (era, 6, "")
    main.step(again, 7)
    assert (main.open().answer_open().era, main.open().answer_open().step) == (era, 7)


@pytest.mark.slow
def test_after_a_kill_before_its_publication_the_same_version_is_published(main: Main) -> None:
    main.republish = back_to(main, 2)
    export = main.open(publish=False).answer_open().export
    again = main.open(publish=False).answer_open().export
    assert export is not None
    assert (again.version, again.root) == (export.version, export.root) == (6, main.published[2].root)


@pytest.mark.slow
def test_the_rate_is_halved_relative_to_the_last_and_stays_so(main: Main) -> None:
    main.republish = back_to(main, 2, factor=0.5)
    session = main.open()
    assert session.answer_open().rate == 0.5
    rates = [main.step(session, number).metrics["learning_rate"] for number in (7, 8, 9)]
    assert rates == [pytest.approx(0.25e-3), pytest.approx(0.5e-3), pytest.approx(0.5e-3)], "it warms up once more"
    main.republish = None
    session = main.open()
    assert session.answer_open().rate == 0.5
    assert main.step(session, 10).metrics["learning_rate"] == pytest.approx(0.5e-3)
    main.republish = back_to(main, 2, order=78, factor=0.5)
    assert main.open().answer_open().rate == 0.25


def test_a_snapshot_of_another_version_is_refused(main: Main) -> None:
    main.republish = back_to(main, 3)
    with pytest.raises(WrongOrder, match="does not have the root of version 3"):
        main.open()
    main.republish = None
    assert main.open().answer_open().step == 5, "nothing is lost"


def test_without_a_checkpoint_the_version_is_published_again_all_the_same(main: Main) -> None:
    main.republish = back_to(main, 2)
    snapshot = Path(main.published[-1].snapshot)
    kept = main.folder.parent / "published.safetensors"
    shutil.copyfile(snapshot, kept)
    main.published[-1] = type(main.published[-1])(
        version=5, root=main.published[-1].root, snapshot=str(kept), edges=[], seconds=0.0
    )
    shutil.rmtree(main.folder)
    opened = main.open().answer_open()
    assert (opened.step, main.published[-1].root) == (6, main.published[2].root)


@pytest.mark.slow
def test_a_learner_whose_new_checkpoint_is_damaged_obeys_the_order_again(main: Main) -> None:
    main.republish = back_to(main, 2, factor=0.5)
    era = main.open().answer_open().era
    newest = max((main.folder / "checkpoints").glob("checkpoint-*"))
    (newest / "state.msgpack").write_bytes(b"torn")
    session = main.open()
    assert (session.answer_open().step, session.answer_open().rate, session.answer_open().era > era) == (7, 0.5, True)
    assert main.published[-1].root == main.published[2].root
