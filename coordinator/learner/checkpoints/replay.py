"""Make the journalled steps again, behind the newest checkpoint, after a crash or a restart.

Rules
1. The steps are made from the checkpoint's tensors, each with its entry's settings and threads, from the same groups
   in the same order, in passes of the same sizes (learner/pass_sizes.py). A checkpoint of the result is durable before
   the learner goes on.
2. The exports are those of the entries: their files were durable before the entry, and are never encoded anew.
3. The remade weights must have the root of the last export. On one CPU with equal settings another root is a fault of
   the machine or of the program: the learner does not open. Settings are equal if processor, libraries and program are
   too (learner/step_arithmetic.py). Elsewhere the last bits may differ: the published values become the weights, the
   moments stay as remade, and the operator hears it once.
4. Where tokens of a step are missing, or the process died in `MOST_TRIES` tries, the steps are given up: the newest
   published version goes on in a new era (learner/eras.py). A fault that a person must put right is no death.
"""

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from echo2.coordinator.learner.batches.batch_groups import BadBatch, TrainBatch, TrainGroup
from echo2.coordinator.learner.checkpoints import checkpoint, journal
from echo2.coordinator.learner.checkpoints.checkpoint import Checkpoint
from echo2.coordinator.learner.checkpoints.export import place
from echo2.coordinator.learner.checkpoints.journal import MOST_TRIES, JournalEntry
from echo2.coordinator.learner.checkpoints.random_state import random_tensors, restore_random
from echo2.coordinator.learner.messages import Open, at_step
from echo2.coordinator.learner.pass_sizes import PassSizes
from echo2.coordinator.learner.step_arithmetic import arithmetic
from echo2.coordinator.learner.trainer import Trainer, TrainerOf
from echo2.runtime.errors import LocalFault
from echo2.weights.snapshot import Snapshot

Read = Callable[[Sequence[bytes]], list[TrainGroup]]


class RemadeOtherwise(LocalFault):
    """The journalled steps led to other weights than before, on one CPU with equal settings."""


class Remade(NamedTuple):
    """A checkpoint to go on from. `trainer`: that of the replay, where it has the settings of the order to open."""

    checkpoint: Checkpoint
    trainer: Trainer | None = None


def remade(
    order: Open, newest: Checkpoint, folder: Path, read: Read, trainer_of: TrainerOf, report: Callable[[str], None]
) -> Remade:
    """Return a checkpoint of the state behind the last entry in `folder`: `newest` itself where there is none, or where
    they are given up (rule 4). Raises RemadeOtherwise, CheckpointError, and what a trainer raises."""
    entries = journal.behind(folder, newest.state, report)
    if not entries:
        return Remade(newest)
    if journal.begin_try(folder) >= MOST_TRIES:
        report(f"the learner died while it made {_count(entries)} again: they are given up")
        return Remade(newest)
    report(f"{_count(entries)} behind the checkpoint of step {newest.state.step} will be made again")
    last = entries[-1]
    as_before = msgspec.structs.replace(order, hyper=last.hyper, threads=last.threads)
    try:
        trainer = trainer_of(as_before)
        _make(trainer, newest, entries, read)
        _check(trainer, order, last, folder, report)
        again = _save_checkpoint(trainer, order, last, report)
    except BadBatch as missing:
        report(f"{_count(entries)} cannot be made again ({missing}): they are given up")
        return Remade(newest)
    except LocalFault:
        journal.end_try(folder)
        raise
    report(f"{_count(entries)} made again, up to step {last.state.step}")
    if as_before == order:
        return Remade(again, trainer)
    del trainer
    gc.collect()  # a model has cycles, and the next one needs the memory
    return Remade(again)


def _save_checkpoint(trainer: Trainer, order: Open, last: JournalEntry, report: Callable[[str], None]) -> Checkpoint:
    """Return a durable checkpoint of the remade state, read back."""
    folder = Path(order.folder) / checkpoint.FOLDER
    checkpoint.save(
        folder, last.state.era, last.state.steps_made, lambda: last.state,
        lambda partial: trainer.save_tensors(partial, random_tensors()),
    )  # fmt: skip
    saved = checkpoint.load(folder, report)
    assert saved is not None, "it was just saved"
    return saved


def _make(trainer: Trainer, newest: Checkpoint, entries: Sequence[JournalEntry], read: Read) -> None:
    trainer.start(entries[0].hyper, None, newest)
    restore_random(newest.tensors)
    steps, steps_made = newest.state.steps, newest.state.steps_made
    for entry in entries:
        for step, groups, passes in entry.steps:
            trainer.tune(at_step(entry.hyper, newest.state.rate, steps_made + 1))
            trainer.step(TrainBatch(step=step, groups=read(groups)), steps, PassSizes(passes))
            steps, steps_made = steps + 1, steps_made + 1


def _check(trainer: Trainer, order: Open, last: JournalEntry, folder: Path, report: Callable[[str], None]) -> None:
    """Compare the weights with the last export (rule 3)."""
    export = last.export
    snapshot = trainer.save_snapshot(folder / ".remade.safetensors")
    snapshot.path.unlink()
    if snapshot.root == export.root:
        return
    alike = (last.ranks, last.device, last.arithmetic) == (1, "cpu", arithmetic())
    if alike and trainer.ranks == 1 and order.device == "cpu":
        raise RemadeOtherwise(
            f"the steps up to version {export.version} were made again and gave other weights, on one CPU with equal "
            f"settings: check the memory of this machine, or move {folder} away to go on from the published version "
            "in a new era"
        )
    report(f"the steps up to version {export.version} gave other weights when made again: the published ones are taken")
    trainer.adopt(Snapshot(place(Path(order.folder) / "exports", export.version)))


def _count(entries: Sequence[JournalEntry]) -> str:
    steps = sum(len(entry.steps) for entry in entries)
    return "1 step" if steps == 1 else f"{steps} steps"
