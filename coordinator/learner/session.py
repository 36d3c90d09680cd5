"""Run the opened learner: its state in memory, its steps, and the durable order of its exports and checkpoints.

Rules
1. Order of a step that exports: weights change in memory; the export's files become durable; a checkpoint that names
   them, or an entry of the journal, becomes durable; then `step` returns. So every published version is in one of them.
   Checkpoints are written as often as costs `Open.checkpoint_share` of the time, and for the first export of an era.
   A step whose export would have the weights of the last published version is not exported, but as durable: it leaves
   `State.step`, which numbers versions and by which ages are counted, as it was, and counts in `State.unchanged`. After
   `MOST_UNCHANGED` of them in a row one is exported all the same: groups of a version grow no older meanwhile, and as
   long as they may be drawn, each draw must be remembered (rule 4), in each entry of the journal and in the buffer.
2. After a crash the learner continues from the last checkpoint, and makes the journalled steps behind it again
   (learner/checkpoints/replay.py). If the last export is not published, the same files are returned again, never
   encoded anew. Checkpoint and journal have no hashes of them: after a crash a file is hashed once more before it is
   signed. The journal is empty once a session is open.
3. `learner.eras` decides whether the learner resumes or begins a new era. The first version of a new era is exported as
   the session opens. So is one that main orders to be published again (`Open.republish`): its weights begin a new era,
   with a new optimiser, whose rate warms up once more.
4. The checkpoint has the drawn groups that could be drawn again, and forgets those that are too old for that.
5. A call to `step` implies that the last export has been published, unless `Batch.published` says otherwise.
6. After a step that failed half-way the session must be opened again.
7. Settings change between two entries of the journal, never within one: a replay makes each step with its own. The
   rate of a step follows from them and from the state alone (settings/rate_schedule.py).
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from echo2.coordinator.learner import eras
from echo2.coordinator.learner.age import fresh
from echo2.coordinator.learner.batches.batch_groups import BadBatch, TrainBatch, TrainGroup, cut_answers
from echo2.coordinator.learner.checkpoints import checkpoint, export, journal
from echo2.coordinator.learner.checkpoints.checkpoint import Base, Checkpoint, State, TensorFile
from echo2.coordinator.learner.checkpoints.checkpoint_pace import CheckpointPace
from echo2.coordinator.learner.checkpoints.journal import JournalEntry
from echo2.coordinator.learner.checkpoints.random_state import random_tensors, restore_random
from echo2.coordinator.learner.checkpoints.replay import remade
from echo2.coordinator.learner.eras import KnownVersion
from echo2.coordinator.learner.messages import Batch, Export, Hyper, Open, Opened, Republish, Stepped, at_step
from echo2.coordinator.learner.pass_sizes import PassSizes
from echo2.coordinator.learner.step_arithmetic import arithmetic
from echo2.coordinator.learner.trainer import LocalTrainer, TrainerOf
from echo2.coordinator.settings.rate_schedule import warm_up
from echo2.runtime.files import sync_folder
from echo2.tasks.turn_ends import Ends
from echo2.weights.snapshot import Snapshot

MOST_UNCHANGED: Final = 64
"""Steps in a row without a version (rule 1)."""


class WrongOrder(Exception):
    """A request that does not fit the learner's state or settings; the message names the fix."""


class Session:
    """An opened learner. `report`: gets sentences for the operator. `read`: returns the groups of leases, in their
    order; raises `MissingTokens`."""

    def __init__(
        self,
        order: Open,
        report: Callable[[str], None],
        read: Callable[[Sequence[bytes]], list[TrainGroup]],
        trainer_of: TrainerOf = LocalTrainer,
    ) -> None:
        """`trainer_of`: loads the model. Raises WrongOrder, CheckpointError, BadModelFolder, NotFinetunable,
        BadTensors, BadSnapshot; RankFault of several ranks."""
        check_hyper(order.hyper, order.limit, order.ends)
        self._order = order
        self._read = read
        self._checkpoints = Path(order.folder) / checkpoint.FOLDER
        self._journal = Path(order.folder) / journal.FOLDER
        self._exports = Path(order.folder) / "exports"
        for folder in (self._checkpoints, self._journal, self._exports):
            folder.mkdir(parents=True, exist_ok=True)
        sync_folder(Path(order.folder))
        checkpoint_found, trainer = checkpoint.load(self._checkpoints, report), None
        if checkpoint_found is not None:
            _check_run(order, checkpoint_found.state)
        journalled = journal.newest_version(self._journal)
        if checkpoint_found is not None and self._ordered_again(checkpoint_found) is None:
            checkpoint_found, trainer = remade(order, checkpoint_found, self._journal, read, trainer_of, report)
        if checkpoint_found is not None:
            state = export.locate_files(checkpoint_found.state, self._exports)
            checkpoint_found = checkpoint_found._replace(state=state)
        self._trainer = trainer or trainer_of(order)
        if checkpoint_found is not None and len(checkpoint_found.files) != self._trainer.ranks:
            report(_divided_anew(len(checkpoint_found.files), self._trainer.ranks))
        self._undone = ""
        self._pace, self._arithmetic = CheckpointPace(order.checkpoint_share), arithmetic()
        self._state, self._since = self._begin(checkpoint_found, journalled), list[tuple[int, list[bytes], list[int]]]()
        self._drawn = set(self._state.drawn)
        if self._state.export is None:
            new = self._trainer.save_snapshot(export.place(self._exports, self._state.step))
            self._export(new, whole=True)
        else:
            if (pending := self._pending()) is not None:
                export.check_files(pending)
            journal.clear(self._journal)
        self._sweep()

    def answer_open(self) -> Opened:
        return Opened(
            era=self._state.era,
            undone=self._undone,
            step=self._state.step,
            unchanged=self._state.unchanged,
            drawn=self._state.drawn,
            parameters=self._trainer.parameters,
            export=self._pending(),
            rate=self._state.rate,
            learning_rate=self._next_hyper().learning_rate * warm_up(self._order.hyper, self._state.steps),
        )

    def step(self, batch: Batch, begun: Callable[[int], None] = lambda step: None) -> Stepped:
        """Make the step, and export if the batch asks for it. `begun`: called once the tokens are read, before
        the computation. Raises BadBatch (MissingTokens is one) before any change."""
        self._check(batch)
        started = time.perf_counter()
        groups = self._groups(batch)
        begun(batch.step)
        self._settle(batch.published)
        if batch.hyper is not None:
            self._take_hyper(batch.hyper)
        self._trainer.tune(self._next_hyper())
        sizes = PassSizes()
        metrics = self._trainer.step(groups, self._state.steps, sizes)
        if self._order.ends:
            metrics["cut_answers"] = cut_answers(groups, self._order.ends)
        seconds = time.perf_counter() - started
        self._drew(batch, sizes, metrics["learning_rate"])
        exported, full, changed = None, batch.export and self._pace.is_due, True
        if batch.export:
            new = self._trainer.save_snapshot(export.place(self._exports, batch.step))
            changed = not self._is_published(new.root) or self._unchanged_in_a_row() >= MOST_UNCHANGED
            if changed:
                exported = self._export(new, full=full)
            else:
                metrics["unchanged"] = 1.0
                self._leave_unchanged(new, full=full)
        self._pace.on_work(time.perf_counter() - started)
        return Stepped(
            step=self._state.step, metrics=metrics, seconds=seconds, export=exported, checkpointed=full,
            unchanged=self._state.unchanged,
        )  # fmt: skip

    def _take_hyper(self, hyper: Hyper) -> None:
        """Take other settings for the steps to come (rule 7). Raises WrongOrder."""
        if hyper == self._order.hyper:
            return
        if self._since:
            raise WrongOrder("other settings came before the steps with the present ones are durable")
        check_hyper(hyper, self._order.limit, self._order.ends)
        self._order = msgspec.structs.replace(self._order, hyper=hyper)

    def _next_hyper(self) -> Hyper:
        """Return the settings of the next step."""
        return at_step(self._order.hyper, self._state.rate, self._state.steps_made + 1)

    def _drew(self, batch: Batch, sizes: PassSizes, learning_rate: float) -> None:
        """Add the step's draw to the state, and remove draws whose groups are all too old now: a group drawn by step t
        has version t - 1 at most."""
        state = self._state
        drawn, draws = [*state.drawn, *batch.groups], [*state.draws, (batch.step, len(batch.groups))]
        self._since.append((batch.step, batch.groups, sizes.used))
        while draws and not fresh(batch.step, draws[0][0] - 1, self._order.staleness):
            drawn, draws = drawn[draws[0][1] :], draws[1:]
        self._drawn = set(drawn)
        self._state = msgspec.structs.replace(
            state, step=batch.step, steps=state.steps + 1, drawn=drawn, draws=draws, learning_rate=learning_rate
        )

    def _groups(self, batch: Batch) -> TrainBatch:
        groups = self._read(batch.groups)
        if any(group.version >= batch.step for group in groups):
            raise BadBatch("a group names a version that this step has yet to make")
        return TrainBatch(step=batch.step, groups=groups)

    def _begin(self, checkpoint_found: Checkpoint | None, journalled: int) -> State:
        """Return the state to start from: the checkpoint's, or that of a new era (learner/eras.py). `journalled`: the
        newest version that the journal names."""
        published = self._published_bases()
        again = self._ordered_again(checkpoint_found)
        last, state = _known_version(published[-1:]), checkpoint_found.state if checkpoint_found else None
        rate = (state.rate if state else 1.0) * (again.factor if again else 1.0)
        hyper = self._order.hyper
        if again is not None:
            self._trainer.start(hyper, export.adopt(Path(again.snapshot), again.version, self._exports), None)
        elif checkpoint_found is not None:
            self._trainer.start(hyper, None, checkpoint_found)
            restore_random(checkpoint_found.tensors)
            if eras.is_behind(last, _known_version([checkpoint_found.state.export])):
                self._trainer.adopt(Snapshot(Path(published[-1].snapshot)))
        else:
            self._trainer.start(hyper, Path(published[-1].snapshot) if published else None, None)
        known, before = (
            (_known_version([state.export]), _known_version(state.published[-1:])) if state else (None, None)
        )
        if last and known and last.version == known.version and last.root != known.root:
            raise WrongOrder(f"version {last.version} was published with other bytes than this learner exported")
        copied = state is not None and state.era < self._order.least_era
        if again is None and not copied and (state or not published) and eras.covers(last, known, before, journalled):
            return self._resume_state(state, published) if state else self._fresh(self._order.era, 0, [])
        version = eras.first_version([last, known, before, KnownVersion(journalled, b"")])
        self._undone = _undone(state, last, journalled, version) if again is None else _gone_back(again, version)
        if copied and again is None:
            self._undone = f"the run was restored from a backup: a new era begins with version {version}"
        era = max(self._order.next_era, state.era + 1 if state else 0)
        bases = published or ([_base(state.export)] if state and state.export else [])
        bases = [base for base in bases if Path(base.snapshot).is_file()]
        fresh_state = self._fresh(era, version, bases, steps=state.steps if state and again is None else 0)
        obeyed = again.id if again else state.republished if state else 0
        unchanged = state.unchanged if state else 0
        return msgspec.structs.replace(fresh_state, rate=rate, republished=obeyed, unchanged=unchanged)

    def _ordered_again(self, checkpoint_found: Checkpoint | None) -> Republish | None:
        """Return the order to go back to a version, unless it was obeyed. Raises WrongOrder."""
        order = self._order.republish
        if order is None or (checkpoint_found is not None and checkpoint_found.state.republished == order.id):
            return None
        if Snapshot(Path(order.snapshot)).root != order.root:
            raise WrongOrder(f"{order.snapshot} does not have the root of version {order.version}")
        return order

    def _fresh(self, era: int, step: int, published: list[Base], *, steps: int = 0) -> State:
        """Return the first state of an era."""
        return State(
            step=step, era=era, steps=steps, drawn=[], export=None, published=published, anchor=None,
            run=self._order.run,
        )  # fmt: skip

    def _resume_state(self, state: State, published: list[Base]) -> State:
        """Return the checkpoint's state, with the published version as main names it."""
        older = [base for base in state.published if not published or base.version < published[-1].version]
        known = export.append_version(older, published[-1], self._exports) if published else []
        anchor = export.anchor_of_version(state.export, state.anchor, known[-1].version if known else -1)
        draws = state.draws or ([(state.step, len(state.drawn))] if state.drawn else [])
        return msgspec.structs.replace(
            state, published=known, anchor=anchor, draws=draws, run=self._order.run or state.run
        )  # fmt: skip

    def _published_bases(self) -> list[Base]:
        """Return the published version as main names it, its file read and checked; empty if there is none."""
        order = self._order
        if not order.published:
            return []
        if Snapshot(Path(order.published)).root != order.published_root:
            raise WrongOrder(f"{order.published} does not have the root of version {order.published_version}")
        path = export.adopt(Path(order.published), order.published_version, self._exports)
        return [Base(version=order.published_version, root=order.published_root, snapshot=str(path))]

    def _pending(self) -> Export | None:
        """Return the last export, if it has not been published."""
        last, published = self._state.export, self._state.published
        return None if last is None or (published and published[-1].version >= last.version) else last

    def _settle(self, published: int | None) -> None:
        """Record that the pending export is published (rule 5)."""
        last = self._pending()
        if last is None or (published is not None and published < last.version):
            return
        self._state = msgspec.structs.replace(
            self._state,
            published=export.append_version(self._state.published, _base(last), self._exports),
            anchor=export.anchor_of_version(last, self._state.anchor, last.version),
        )
        self._sweep()

    def _is_published(self, root: bytes) -> bool:
        """Tell whether these are the weights of the last export, and that is published."""
        last = self._state.export
        return last is not None and last.root == root and self._pending() is None

    def _unchanged_in_a_row(self) -> int:
        """Count the last steps that left `State.step` as it was: all of them drew for the step that was just made."""
        state = self._state
        return sum(step == state.step for step, _ in state.draws) - 1

    def _check(self, batch: Batch) -> None:
        if batch.step != self._state.step + 1:
            raise BadBatch(f"step {batch.step} was asked for, the learner is at {self._state.step}")
        if len(set(batch.groups)) < len(batch.groups) or not self._drawn.isdisjoint(batch.groups):
            raise BadBatch("a group would be drawn twice")

    def _export(self, new: Snapshot, *, whole: bool = False, full: bool = True) -> Export:
        """Write the export's files, then a checkpoint or, unless it is to be `full`, an entry of the journal; then
        remove files that are no longer needed (rule 1). The diffs are encoded while the checkpoint's tensors are
        written."""
        state = self._state
        whole = whole or export.full_due(state.step, state.anchor)
        with export.writing(new, state.step, state.published, state.anchor, self._exports, whole=whole) as encoded:
            if full:
                self._write_checkpoint(lambda: msgspec.structs.replace(state, export=_without_hashes(encoded())))
            exported = encoded()
        self._state = msgspec.structs.replace(state, export=_without_hashes(exported))
        if not full:
            assert state.export is not None, "the first export of an era has a checkpoint"
            self._write_entry(state.export, self._state)
        self._since = []
        self._sweep()
        return exported

    def _leave_unchanged(self, new: Snapshot, *, full: bool) -> None:
        """Make the step durable as one that changed nothing, and remove its snapshot (rule 1)."""
        new.path.unlink()
        state = self._state
        self._state = msgspec.structs.replace(state, step=state.step - 1, unchanged=state.unchanged + 1)
        if full:
            self._write_checkpoint(lambda: self._state)
        else:
            assert state.export is not None, "it has the weights of the last one"
            self._write_entry(state.export, self._state)
        self._since = []

    def _write_checkpoint(self, finished: Callable[[], State]) -> None:
        """Write a checkpoint, and clear the journal. `finished`: see `checkpoint.save`."""

        def write(partial: Path) -> list[TensorFile]:
            began = time.perf_counter()
            files = self._trainer.save_tensors(partial, random_tensors())
            self._pace.wrote(time.perf_counter() - began)
            return files

        checkpoint.save(self._checkpoints, self._state.era, self._state.steps_made, finished, write)
        journal.clear(self._journal)

    def _write_entry(self, before: Export, exported: State) -> None:
        order = self._order
        entry = JournalEntry(
            after=before.version, after_root=before.root, steps=self._since, state=exported, hyper=order.hyper,
            ranks=self._trainer.ranks, threads=order.threads, device=order.device, arithmetic=self._arithmetic,
        )  # fmt: skip
        journal.append(self._journal, entry)
        self._pace.on_entry()

    def _sweep(self) -> None:
        state = self._state
        named, newest = set[Path](), state.published[-1:]
        end = 1 + max((base.version for base in newest), default=0)
        if state.export:
            named = {Path(state.export.snapshot), *(Path(edge.payload) for edge in state.export.edges)}
            named |= {export.back_place(self._exports, base.version, state.export.version) for base in newest}
        room = sum(int(export.BACK_SHARE * Path(base.snapshot).stat().st_size) for base in newest)
        remaining = export.useful(state.published, room)
        bases = remaining + ([state.anchor] if state.anchor else [])
        kept = range(end - self._order.keep, end)
        export.sweep(self._exports, kept, named | {Path(base.snapshot or base.payload) for base in bases})
        self._state = msgspec.structs.replace(state, published=remaining)


def _check_run(order: Open, state: State) -> None:
    """Check that a checkpoint is of this run. Raises WrongOrder."""
    if order.run and state.run not in ("", order.run):
        raise WrongOrder(
            f"{Path(order.folder) / checkpoint.FOLDER} has checkpoints of run {state.run}, and this is run "
            f"{order.run}: move the learner's folder away to go on from the published version, or put this run's back"
        )


def check_hyper(hyper: Hyper, limit: int = 0, ends: Ends = ()) -> None:
    """Check what settings need of the run; all else was checked when they were read (settings/training_config.py).
    `limit`, `ends`: limit and ends of Open. Raises WrongOrder, which names the invalid one."""
    bad = [
        (hyper.aggregate == "constant" and limit < 1, "aggregate constant: the limit of a rollout is not known"),
        (hyper.cut_rollouts == "penalised" and limit < 1, "cut_rollouts: the limit of a rollout is not known"),
        (hyper.cut_rollouts == "masked" and not ends, "cut_rollouts: the tokens that end an answer are not known"),
    ]
    for wrong, sentence in bad:
        if wrong:
            raise WrongOrder(sentence)


def _known_version(last: Sequence[Base | Export | None]) -> KnownVersion | None:
    """Return version and root of the only item, if there is one, for `learner.eras`."""
    return KnownVersion(last[0].version, last[0].root) if last and last[0] else None


def _without_hashes(export: Export) -> Export:
    """Return the export without hashes, for the checkpoint (rule 2)."""
    edges = [msgspec.structs.replace(edge, hashed=None) for edge in export.edges]
    return msgspec.structs.replace(export, edges=edges)


def _base(export: Export) -> Base:
    return Base(version=export.version, root=export.root, snapshot=export.snapshot)


def _undone(state: State | None, last: KnownVersion | None, journalled: int, version: int) -> str:
    """Explain to the operator why a new era begins. `journalled`: the newest version that the journal names."""
    if state is None:
        why = f"there is no checkpoint, and version {last.version if last else 0} is published"
    elif last is None:
        why = "no version that the checkpoint knows is published any more"
    elif journalled > last.version:
        why = f"the checkpoint is of step {state.step}, and version {journalled} of the journal is lost"
    else:
        why = f"the checkpoint is of step {state.step}, and version {last.version} is published"
    return f"{why}: a new era begins with version {version}, and groups of the old one are paid and not trained on"


def _divided_anew(before: int, ranks: int) -> str:
    written = "1 rank" if before == 1 else f"{before} ranks"
    return f"the checkpoint was written by {written}, and the learner has {ranks} now: the state is divided anew"


def _gone_back(order: Republish, version: int) -> str:
    return f"version {order.version} is published again as version {version}: {order.why}"
