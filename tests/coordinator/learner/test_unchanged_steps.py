"""A step that changes no published weight makes no version, and is as durable as one that does."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from echo2.coordinator.learner import session
from echo2.coordinator.learner.batches.batch_groups import TrainBatch
from echo2.coordinator.learner.messages import Hyper, Republish, Stepped
from echo2.coordinator.learner.session import Session
from tests.support.tiny_learner import Main, ask, group

HYPER = Hyper(warmup_steps=1, minibatches=1, microbatch_tokens=200, learning_rate=1e-3)
JOURNAL_ALONE = 1e-9
FLAT, VARIED = "flat", "varied"
"""Kinds of batches: groups with equal rewards have no gradient, so that no weight changes."""


def batch(number: int, kind: str, step: int) -> TrainBatch:
    chance = random.Random(number)
    reward = 0.5 if kind == FLAT else None
    groups = [group(chance, f"{number}-{place}", max(0, step - 1), reward=reward) for place in range(2)]
    return TrainBatch(step=step, groups=groups)


class Run:
    """A run of batches, one after the other, each at the step that the learner has reached."""

    def __init__(self, folder: Path, model: Path, share: float) -> None:
        self.main = Main(folder, model, HYPER)
        self.main.checkpoint_share = share
        self.session: Session = self.main.open()

    def reopen(self) -> None:
        self.session = self.main.open()

    def make(self, number: int, kind: str) -> Stepped:
        at = self.session.answer_open().step
        stepped = self.session.step(ask(batch(number, kind, at + 1)))
        if stepped.export is not None:
            self.main.publish(stepped.export)
        return stepped

    def roots(self) -> list[bytes]:
        return [one.root for one in self.main.published]

    def on_draw(self) -> list[bytes]:
        return self.session.answer_open().drawn


def ids(kinds: Sequence[str]) -> list[bytes]:
    return [group.id for number, kind in enumerate(kinds, 1) for group in batch(number, kind, 1).groups]


@pytest.mark.parametrize("share", [1.0, JOURNAL_ALONE])
def test_a_step_without_a_change_makes_no_version_and_no_file(share: float, tmp_path: Path, model_folder: Path) -> None:
    run = Run(tmp_path, model_folder, share)
    first = run.make(1, VARIED)
    assert (first.step, first.unchanged, "unchanged" in first.metrics) == (1, 0, False)
    before = {path.name for path in (tmp_path / "exports").iterdir()}
    for number in (2, 3, 4):
        stepped = run.make(number, FLAT)
        assert (stepped.export, stepped.step, stepped.unchanged) == (None, 1, number - 1)
        assert stepped.metrics["unchanged"] == 1.0
    assert {path.name for path in (tmp_path / "exports").iterdir()} <= before
    run.reopen()
    opened = run.session.answer_open()
    assert (opened.step, opened.unchanged, opened.export, opened.undone) == (1, 3, None, "")
    assert opened.drawn == ids([VARIED, FLAT, FLAT, FLAT]), "an unchanged step is made once, whatever ends the learner"
    last = run.make(5, VARIED)
    assert (last.export.version, last.step, last.unchanged) == (2, 2, 3)
    assert next(edge.base for edge in last.export.edges) == 1


@pytest.mark.parametrize(
    "seed", [pytest.param(0), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))]
)
def test_a_version_is_made_if_and_only_if_a_weight_changes_whatever_interrupts(
    seed: int, tmp_path: Path, model_folder: Path
) -> None:
    """Random batches, with and without signal. The broken run is reopened at random, and writes checkpoints or entries
    of the journal at random; the whole one is not interrupted."""
    chance = random.Random(seed)
    kinds = [VARIED if chance.random() < 0.4 else FLAT for _ in range(10)]
    whole, broken = Run(tmp_path / "whole", model_folder, 1.0), Run(tmp_path / "broken", model_folder, JOURNAL_ALONE)
    for number, kind in enumerate(kinds, 1):
        expected, stepped = whole.make(number, kind), broken.make(number, kind)
        assert (stepped.export is None) == (expected.export is None) == (kind == FLAT)
        assert (stepped.step, stepped.step + stepped.unchanged) == (expected.step, number)
        if chance.random() < 0.5:
            broken.main.checkpoint_share = chance.choice([1.0, JOURNAL_ALONE])
            broken.reopen()
            assert broken.session.answer_open().undone == ""
            assert broken.session.answer_open().step + broken.session.answer_open().unchanged == number
    assert broken.roots() == whole.roots(), "bit for bit the same versions"
    assert [one.version for one in whole.main.published] == [*range(kinds.count(VARIED) + 1)]
    assert all(one != other for one, other in zip(whole.roots()[1:], whole.roots(), strict=False))
    assert broken.on_draw() == whole.on_draw() == ids(kinds)
    assert broken.main.reports == [one for one in broken.main.reports if "made again" in one]


def test_a_run_whose_weights_never_change_remembers_a_bounded_number_of_draws(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MOST_UNCHANGED", 3)
    run = Run(tmp_path, model_folder, 1.0)
    run.main.staleness = 1
    run.reopen()
    made, drawn = list[int](), list[int]()
    for number in range(1, 17):
        if number == 10:
            run.reopen()  # the count goes on where it was
        stepped = run.make(number, FLAT)
        assert stepped.step + stepped.unchanged == number
        made.append(-1 if stepped.export is None else stepped.export.version)
        drawn.append(len(run.on_draw()))
    assert made == [-1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1, 3, -1, -1, -1, 4]
    assert len(set(run.roots())) == 1, "five versions of the same weights"
    assert max(drawn) <= 2 * 3 * 4, "those of the versions that are fresh"


def test_an_unchanged_step_behind_an_unpublished_export_is_exported(tmp_path: Path, model_folder: Path) -> None:
    """Main says that it will never publish the last export: the next one must not refer to it."""
    run = Run(tmp_path, model_folder, 1.0)
    exported = run.session.step(ask(batch(1, VARIED, 1))).export
    assert exported is not None
    again = run.session.step(ask(batch(2, FLAT, 2), published=0))
    assert (again.export.version, again.export.root) == (2, exported.root)


def test_a_version_that_is_published_again_is_exported_with_the_same_weights(
    tmp_path: Path, model_folder: Path
) -> None:
    run = Run(tmp_path, model_folder, 1.0)
    run.make(1, VARIED)
    run.main.now = 100.0
    last = run.main.published[-1]
    run.main.republish = Republish(id=1, version=1, root=last.root, snapshot=last.snapshot)
    run.reopen()
    assert [one.version for one in run.main.published] == [0, 1, 2]
    assert run.roots()[2] == run.roots()[1], "an order is obeyed even where nothing changes"
